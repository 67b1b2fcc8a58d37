# shellcheck shell=bash
# Runs suites with meson and sums what the test programs themselves counted. A program prints "N passed, N failed, N
# skipped"; meson's log of the run holds it. Rules of the sum:
#   passed or skipped without counts    one passed, or one skipped
#   anything else (crash, time-out, …)  its counts, and at least one failure

# shellcheck disable=SC2016 # jq's variables
readonly COUNTS_OF_LOG='
def counts:
    [(.stdout // "") | split("\n")[] | select(test("^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$"))]
    | last // null
    | if . == null then null else [scan("[0-9]+")] | map(tonumber) end;
(.name | sub("^[^/]*/ "; "") | gsub(" / "; "/")) as $name
| if .result == "OK" then (counts // [1, 0, 0])
  elif .result == "SKIP" then (counts // [0, 0, 1])
  else (counts // [0, 0, 0]) | if .[1] == 0 then .[1] = 1 else . end
  end
| [$name] + . | @tsv'

readonly TAILS_OF_LOG='
select(.result != "OK" and .result != "SKIP")
| "---- \(.name): \(.result), exit status \(.returncode)",
  ((.stdout // "") | split("\n")[-40:][]),
  ((.stderr // "") | split("\n")[-40:][])'

# test_run FOLDER MESON-TEST-OPTION…: runs, shows the tails of what failed, and sets TEST_COUNTS="passed failed skipped".
test_run() {
    local folder=$1 log rc=0
    shift
    log=$ROOT/$folder/meson-logs/testlog.json
    rm -f "$log"
    meson test -C "$ROOT/$folder" --no-rebuild "$@" >&2 || rc=$?
    if [[ ! -s $log ]]; then
        die "no test ran in $folder/"
    fi
    TEST_COUNTS=$(test_sum "$log")
    jq -r "$TAILS_OF_LOG" "$log" >&2
    # Whatever meson calls a failure is one here, too.
    if ((rc != 0)) && [[ $TEST_COUNTS == *' 0 '* ]]; then
        TEST_COUNTS=$(awk '{ print $1, 1, $3 }' <<<"$TEST_COUNTS")
    fi
}

# test_sum LOG: "passed failed skipped"
test_sum() {
    jq -r "$COUNTS_OF_LOG" "$1" | awk -F '\t' '{ p += $2; f += $3; s += $4 } END { print p + 0, f + 0, s + 0 }'
}

# test_close COUNTS…: prints the closing line of all counts given; fails when something failed or nothing passed.
test_close() {
    printf '%s\n' "$@" | awk '
        { p += $1; f += $2; s += $3 }
        END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 || p == 0 }'
}

test_sanitizer_settings() {
    export ASAN_OPTIONS=detect_stack_use_after_return=1:abort_on_error=0
    export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
}

dev_test() {
    local folder=build
    if [[ ${1:-} == --sanitize ]]; then
        folder=build-asan
        shift
    fi
    if [[ ${1:-} == -* ]]; then
        die "unknown option '$1' of test; tools/dev help"
    fi
    local -a what=(--suite unit --suite kernels --suite scenario)
    if (($# > 0)); then
        what=("$@")
    fi
    if [[ $folder == build ]]; then
        dev_setup
    else
        setup_packages build check
        setup_model
        setup_sanitized
        test_sanitizer_settings
        what+=(--timeout-multiplier 4)
    fi
    test_run "$folder" "${what[@]}"
    test_close "$TEST_COUNTS"
}
