#!/usr/bin/env bash
# kvdepot key against a real daemon and a real engine: it calls a prompt's blocks what the engine called them, and asking
# counts as nothing.
# usage: test_key.sh KVDEPOT KVDEPOTD ENGINE TINY-GGUF
set -euo pipefail

kvdepot=$1
kvdepotd=$2
engine=$3
work=$(mktemp -d "${TMPDIR:-/var/tmp}/kvdepot-test.XXXXXX")
socket=$work/s
model=$work/tiny.gguf
passed=0
failed=0
daemon=

cleanup() {
    [[ -z $daemon ]] || kill -KILL "$daemon" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

# same NAME WANTED GOT
same() {
    if [[ $2 == "$3" ]]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'failed: %s\n  wanted: %s\n  got:    %s\n' "$1" "$2" "$3"
    fi
}

daemon_up() {
    mkfifo "$work/says"
    "$kvdepotd" --dir "$work/store" --socket "$socket" --dram.path "$work/pool" --dram.cap 64MiB --nvme.cap 64MiB "$@" \
        >"$work/says" 2>&1 &
    daemon=$!
    exec 3<"$work/says"
    while IFS= read -r line <&3; do
        [[ $line != *ready* ]] || break
    done
    cat <&3 >"$work/log" &
    rm "$work/says"
}

daemon_down() {
    kill -TERM "$daemon"
    wait "$daemon"
    daemon=
    exec 3<&-
}

if ! command -v jq >/dev/null; then
    printf 'skipped: jq is not installed\n0 passed, 0 failed, 1 skipped\n'
    exit 77
fi

"$4" "$model"
text=$(printf 'line %d of a long text, ' $(seq 40))
key() {
    "$kvdepot" key --model "$model" --prompt "$text" --tenant alice "$@"
}
stored() {
    key --socket "$socket" --json "$@" | jq -c '[.blocks[].stored | .missing // .tier] | group_by(.) | map({(.[0]): length}) | add'
}

daemon_up
n=$(key --seed 0 --json | jq '.blocks | length')
same "some blocks" yes "$( ((n >= 5)) && echo yes || echo "$n")"
same "nothing is stored yet" "{\"never_seen\":$n}" "$(stored)"
"$engine" --model "$model" --prompt "$text" --user-id alice --socket "$socket" --fingerprint-cache '' --max-tokens 1 \
    --match-ms 5000 >"$work/answer"
same "the engine's blocks are called so" "{\"dram\":$n}" "$(stored)"
same "another tenant's are not" "{\"never_seen\":$n}" "$(stored --tenant bob)"
same "in the table too" "$n" "$(key --socket "$socket" | grep -cE '^ +[0-9]+ +64 +[0-9a-f]{32}  [0-9a-f]{24}  dram( nvme)?$')"
same "asking is no look-up" 1 "$("$kvdepot" hitrate --json --socket "$socket" | jq '.rows[0].lookups')"
from_daemon=$(key --socket "$socket" --json | jq -r '.seed, .root')
daemon_down
same "the store's folder has the same seed" "$from_daemon" "$(key --store "$work/store" --json | jq -r '.seed, .root')"
daemon_up --drop-dram
same "below dram" "{\"nvme\":$n}" "$(stored)"
same "and still there" "{\"nvme\":$n}" "$(stored)"
daemon_down

printf '%d passed, %d failed, 0 skipped\n' "$passed" "$failed"
[[ $failed == 0 ]]
