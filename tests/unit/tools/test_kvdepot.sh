#!/usr/bin/env bash
# The kvdepot command where there is no daemon: exit statuses, and errors that say what to do.
# usage: test_kvdepot.sh KVDEPOT
set -euo pipefail

kvdepot=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0

# run_is STATUS TEXT ARGUMENT…: the command ends with STATUS and says TEXT, on standard error if STATUS isn't 0. Its
# output goes to $output.
output=$work/out
run_is() {
    local wanted=$1 text=$2 rc=0 told=$work/err
    shift 2
    "$kvdepot" "$@" >"$output" 2>"$work/err" || rc=$?
    if [[ $wanted == 0 ]]; then
        told=$work/out
    fi
    if [[ $rc == "$wanted" ]] && grep -qF -- "$text" "$told"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'failed: kvdepot %s: exit status %d, wanted %d and the text "%s":\n' "$*" "$rc" "$wanted" "$text"
        cat "$work/out" "$work/err"
    fi
}

long=$(printf 'x%.0s' {1..120})
run_is 3 "usage: kvdepot COMMAND"
run_is 0 "usage: kvdepot COMMAND" --help
run_is 0 "usage: kvdepot status" status --help
run_is 0 "usage: kvdepot hitrate" hitrate --help
run_is 0 "usage: kvdepot key" key --help
run_is 0 "usage: kvdepot bench" bench --help
run_is 3 "there is no command 'nonsense'" nonsense
run_is 3 "no option --nonsense" status --nonsense
run_is 3 "at most 107 bytes" status --socket "/$long"
run_is 2 "$work/none" status --socket "$work/none"
run_is 2 "--socket PATH" status --socket "$work/none"
run_is 2 "$work/none" hitrate --socket "$work/none"
run_is 3 "tier, scenario, space, tenant" hitrate --by moon
run_is 3 "10s, 1m, 5m" hitrate --window 2h
run_is 0 "usage: kvdepot verify" verify --help
run_is 2 "$work/none" verify --socket "$work/none"
run_is 3 "dram or nvme" verify --tier moon
run_is 3 "bytes a second" verify --rate fast
run_is 1 "name a store's folder" verify --offline "$work/none"
for option in "--socket $work/none" "--tier nvme" "--rate 0"; do
    # shellcheck disable=SC2086 # an option and its value
    run_is 3 "none goes with --offline" verify --offline "$work" $option
done
run_is 0 "usage: kvdepot purge" purge --help
run_is 3 "say what" purge --yes
run_is 2 "$work/none" purge --all --yes --socket "$work/none"
run_is 1 "has no IDENTITY" verify --offline "$work"
run_is 3 "kvdepot bench local" bench
run_is 3 "whole number" bench local --rounds 0
run_is 1 "name another one with --dir" bench local --daemon /bin/false --dir "$work/none"
run_is 1 "ended at once" bench local --daemon /bin/false --dir "$work"

# Output that is lost is a failure, and does not hide another one.
output=/dev/full
run_is 1 "standard output could not be written: No space left" --help
run_is 1 "standard output could not be written: No space left" --version
run_is 1 "standard output could not be written: No space left" status --help
run_is 3 "there is no command 'nonsense'" nonsense
output=$work/out

if [[ -z $(find "$work" -name 'kvdepot-bench*') ]]; then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
    printf 'failed: a benchmark that failed left its folder\n'
fi

printf '%d passed, %d failed, 0 skipped\n' "$passed" "$failed"
[[ $failed == 0 ]]
