# shellcheck shell=bash
# Suites that are too long for every change. One function a suite, one line in the table.

# shellcheck source=tools/dev.d/test.sh
source "$ROOT/tools/dev.d/test.sh"

readonly LONG_SUITES='
tsan         unit tests under ThreadSanitizer
fuzz         every fuzz target for some seconds each (default 60), under the sanitizers
protections  takes out each protection of proto/base/protections.def, or the named ones, and shows that its test fails
'

long_tsan() {
    setup_configure build-tsan clang -Dbuildtype=debugoptimized -Db_ndebug=false -Db_sanitize=thread \
        -Db_lundef=false
    setup_build build-tsan
    export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=$ROOT/tests/support/tsan.supp
    test_run build-tsan --suite unit --timeout-multiplier 6
    test_close "$TEST_COUNTS"
}

# A target keeps what it learnt in the cache folder, so that the next run starts from there.
long_fuzz() {
    local seconds=${1:-60} target name corpus passed=0 failed=0
    setup_configure build-fuzz clang -Dbuildtype=debugoptimized -Db_ndebug=false -Db_sanitize=address,undefined \
        -Db_lundef=false -Dfuzz=true
    setup_build build-fuzz
    for target in "$ROOT"/build-fuzz/tests/fuzz/fuzz_*; do
        name=$(basename "$target")
        # Beside each target lies a test that runs it over its seeds.
        [[ -f $target && -x $target && $name != *_seeds ]] || continue
        corpus=$(cache_dir)/corpus/$name
        mkdir -p "$corpus" "$ROOT/build-fuzz/found"
        if [[ $name == fuzz_gguf ]]; then
            "$ROOT/build-fuzz/tests/support/kvd-tiny-gguf" "$corpus/tiny.gguf"
        fi
        say "fuzz: $name for $seconds s"
        if quietly "$ROOT/build-fuzz/$name.log" "$target" -max_total_time="$seconds" -rss_limit_mb=2048 \
            -artifact_prefix="$ROOT/build-fuzz/found/$name-" "$corpus"; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
        fi
    done
    test_close "$passed $failed 0"
}

# protections_rows: a line for each row of the table: name, kind, meson test, test function, text, parted by tabs.
protections_rows() {
    sed -nE 's/^KVD_PROTECTION\(([A-Z0-9_]+), ([0-9]+), "([^"]+)", "([^"]+)", "([^"]+)"\)$/\1\t\2\t\3\t\4\t\5/p' \
        "$ROOT/proto/base/protections.def"
}

# protections_try NAME TEST FUNCTION: runs one test with one protection taken out (NAME may be empty: none is). The
# outcome is "passed", "failed" (also where it crashed or hung), or "no such test".
protections_try() {
    local log=$ROOT/build-takeout/meson-logs/testlog.json rc=0
    rm -f "$log"
    KVD_TAKE_OUT=$1 meson test -C "$ROOT/build-takeout" --no-rebuild "$2" --test-args "$3" \
        >"$ROOT/build-takeout/protections.log" 2>&1 || rc=$?
    if [[ ! -s $log ]] || jq -e '(.stderr // "") | test("has no test")' "$log" >"$ROOT/build-takeout/jq.log"; then
        printf 'no such test\n'
    elif ((rc == 0)); then
        printf 'passed\n'
    else
        printf 'failed\n'
    fi
}

long_protections() {
    local name kind test function with without passed=0 failed=0 wanted=" $* "
    export KVD_REQUIRE=model
    setup_configure build-takeout gcc -Dbuildtype=debugoptimized -Db_ndebug=false -Dtake_out=true
    setup_build build-takeout
    printf '%-28s %-4s %-36s %-12s %s\n' protection kind test 'in place' 'taken out'
    while IFS=$'\t' read -r name kind test function _; do
        if (($# > 0)) && [[ $wanted != *" $name "* ]]; then
            continue
        fi
        with=$(protections_try '' "$test" "$function")
        without=$(protections_try "$name" "$test" "$function")
        printf '%-28s %-4s %-36s %-12s %s\n' "$name" "$kind" "$function" "$with" "$without"
        if [[ $with == passed && $without == failed ]]; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
        fi
    done < <(protections_rows)
    test_close "$passed $failed 0"
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
