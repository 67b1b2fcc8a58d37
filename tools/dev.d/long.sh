# shellcheck shell=bash
# Suites that are too long for every change. One function a suite, one line in the table.

# shellcheck source=tools/dev.d/test.sh
source "$ROOT/tools/dev.d/test.sh"
# shellcheck source=tools/dev.d/fuzz.sh
source "$ROOT/tools/dev.d/fuzz.sh"

readonly LONG_SUITES='
tsan         unit and scenario tests under ThreadSanitizer, daemons and engines too
crash        200 kills of a daemon under load, and 1,000 images of what a power cut leaves
fuzz         every fuzz target for some seconds each (default 60), under the sanitizers
protections  takes out each protection of proto/base/protections.def, or the named ones, and shows that its test fails
'

long_tsan() {
    setup_configure build-tsan clang -Dbuildtype=debugoptimized -Db_ndebug=false -Db_sanitize=thread \
        -Db_lundef=false
    setup_build build-tsan
    export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=$ROOT/tests/support/tsan.supp
    export KVD_PATIENCE=6
    test_run build-tsan --suite unit --suite scenario --timeout-multiplier 6
    test_close "$TEST_COUNTS"
}

long_fuzz() {
    fuzz_setup
    fuzz_run "${1:-60}" 2
    test_close "$FUZZ_COUNTS"
}

# KVD_CRASH_KILLS, KVD_CRASH_IMAGES and KVD_CRASH_SEED in the environment say how many, and where chance begins. What the
# programs say of a run is shown, as are their seeds.
long_crash() {
    export KVD_CRASH_KILLS=${KVD_CRASH_KILLS:-200} KVD_CRASH_IMAGES=${KVD_CRASH_IMAGES:-1000}
    setup_release
    test_run build crash_kills crash_images
    jq -r '(.stdout // "") | split("\n")[] | select(test("^KVD_CRASH_|^[0-9]+ (kills|images)"))' \
        "$ROOT/build/meson-logs/testlog.json"
    test_close "$TEST_COUNTS"
}

# protections_rows: a line for each row of the table: name, kind, meson test, test function, text, parted by tabs.
protections_rows() {
    sed -nE 's/^KVD_PROTECTION\(([A-Z0-9_]+), ([0-9]+), "([^"]+)", "([^"]+)", "([^"]+)"\)$/\1\t\2\t\3\t\4\t\5/p' \
        "$ROOT/proto/base/protections.def"
}

# protections_try NAME TEST FUNCTION LOG: runs one test with one protection taken out (none where NAME is empty). Prints
# "passed", "failed" (also where it crashed or hung), or "no such test".
protections_try() {
    local log=$ROOT/build-takeout/meson-logs/$4.json rc=0
    rm -f "$log"
    KVD_TAKE_OUT=$1 meson test -C "$ROOT/build-takeout" --no-rebuild --logbase "$4" "$2" --test-args "$3" \
        >"$ROOT/build-takeout/meson-logs/$4.out" 2>&1 || rc=$?
    if [[ ! -s $log ]] || jq -e '(.stderr // "") | test("has no test")' "$log" >"$log.jq"; then
        printf 'no such test\n'
    elif ((rc == 0)); then
        printf 'passed\n'
    else
        printf 'failed\n'
    fi
}

# protections_row NAME KIND TEST FUNCTION: the row's line of the table, into build-takeout/rows/NAME.
protections_row() {
    local with without
    with=$(protections_try '' "$3" "$4" "$1-in")
    without=$(protections_try "$1" "$3" "$4" "$1-out")
    printf '%-32s %-4s %-52s %-12s %s\n' "$1" "$2" "$4" "$with" "$without" >"$ROOT/build-takeout/rows/$1"
}

long_protections() {
    local name kind test function failed wanted=" $* "
    local -a names=()
    export KVD_REQUIRE=model
    setup_configure build-takeout gcc -Dbuildtype=debugoptimized -Db_ndebug=false -Dtake_out=true
    setup_build build-takeout
    rm -rf "$ROOT/build-takeout/rows"
    mkdir -p "$ROOT/build-takeout/rows" "$ROOT/build-takeout/meson-logs"
    while IFS=$'\t' read -r name kind test function _; do
        if (($# > 0)) && [[ $wanted != *" $name "* ]]; then
            continue
        fi
        names+=("$name")
        while (($(jobs -rp | wc -l) >= 2)); do
            wait -n
        done
        protections_row "$name" "$kind" "$test" "$function" &
    done < <(protections_rows)
    wait
    printf '%-32s %-4s %-52s %-12s %s\n' protection kind test 'in place' 'taken out'
    for name in "${names[@]}"; do
        cat "$ROOT/build-takeout/rows/$name"
    done | tee "$ROOT/build-takeout/protections.txt"
    failed=$(awk '!/ passed +failed$/ { n++ } END { print n + 0 }' "$ROOT/build-takeout/protections.txt")
    test_close "$((${#names[@]} - failed)) $failed 0"
}

dev_long() {
    local suite=${1:-}
    if [[ -z $suite ]]; then
        printf 'usage: tools/dev long SUITE\n%s' "$LONG_SUITES"
        return
    fi
    if ! grep -q "^$suite " <<<"$LONG_SUITES"; then
        die "there is no long suite '$suite'; tools/dev long lists them"
    fi
    if [[ $suite == fuzz && -n ${2:-} && ! $2 =~ ^[1-9][0-9]{0,5}$ ]]; then
        die "'$2' is not a number of seconds"
    fi
    setup_packages build check
    setup_model
    "long_$suite" "${@:2}"
}
