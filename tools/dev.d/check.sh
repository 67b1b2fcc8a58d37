# shellcheck shell=bash
# What a change must pass: style, gcc (release) and clang (ASan, UBSan) without a warning, the suites unit, kernels and
# scenario with gcc, unit and kernels under the sanitizers, every fuzz target for some seconds. The last line is the sum
# of all.

# shellcheck source=tools/dev.d/test.sh
source "$ROOT/tools/dev.d/test.sh"
# shellcheck source=tools/dev.d/lint.sh
source "$ROOT/tools/dev.d/lint.sh"
# shellcheck source=tools/dev.d/fuzz.sh
source "$ROOT/tools/dev.d/fuzz.sh"

readonly CHECK_FUZZ_SECONDS=5

check_step() {
    say ""
    say "==== $* ($(since_start) s)"
}

# The demo checks itself; this checks that others can read what it says. The demo is a process of its own: bash ignores
# errexit in all that a function calls whose status is asked for.
check_demo() {
    "$ROOT/tools/dev" demo --json >"$ROOT/build/demo.json" &&
        jq -e '(.steps | length == 7) and (.hitrate.rows | length == 1) and
               all(.steps[]; .text_sha256 == .reference_sha256 and .logits_sha256 == .reference_logits_sha256 and
                             .hit_tokens == (.hit_by_tier | add) and .ttft_ms > 0 and
                             (.text_sha256 | length == 64) and (.logits_sha256 | length == 64))' \
            "$ROOT/build/demo.json" >&2
}

dev_check() {
    local style gcc clang demo fuzz
    if (($# > 0)); then
        die "check takes no arguments"
    fi
    export KVD_DEV_WERROR=1
    check_step "packages and model"
    setup_packages build check
    setup_model
    check_step "style"
    style="1 0 0"
    lint_run || style="0 1 0"
    check_step "gcc, release"
    setup_release
    check_step "clang, AddressSanitizer and UndefinedBehaviorSanitizer"
    setup_sanitized
    check_step "suites unit, kernels, scenario"
    test_run build --suite unit --suite kernels --suite scenario
    gcc=$TEST_COUNTS
    check_step "demo"
    demo="1 0 0"
    check_demo || demo="0 1 0"
    check_step "suites unit and kernels under the sanitizers"
    (
        test_sanitizer_settings
        test_run build-asan --suite unit --suite kernels --timeout-multiplier 4
        printf '%s\n' "$TEST_COUNTS" >"$ROOT/build-asan/counts.txt"
    )
    clang=$(cat "$ROOT/build-asan/counts.txt")
    check_step "fuzz targets, $CHECK_FUZZ_SECONDS s each"
    fuzz_setup
    fuzz_run "$CHECK_FUZZ_SECONDS" "$(nproc)"
    fuzz=$FUZZ_COUNTS
    check_step "sum: style, gcc, demo, clang, fuzz (passed failed skipped): $style, $gcc, $demo, $clang, $fuzz"
    test_close "$style" "$gcc" "$demo" "$clang" "$fuzz"
}
