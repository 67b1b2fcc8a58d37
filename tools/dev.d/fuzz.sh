# shellcheck shell=bash
# Fuzz targets: built in build-fuzz/ with libFuzzer and the sanitizers, run from their kept corpus (tests/fuzz/corpus) and
# from what earlier runs found, which is kept in the cache folder.

fuzz_setup() {
    setup_configure build-fuzz clang -Dbuildtype=debugoptimized -Db_ndebug=false -Db_sanitize=address,undefined \
        -Db_lundef=false -Dfuzz=true
    setup_build build-fuzz fuzz-targets
}

# The targets' names.
fuzz_names() {
    local target
    for target in "$ROOT"/tests/fuzz/fuzz_*.c; do
        target=${target##*/fuzz_}
        [[ $target == *_seeds.c ]] || printf '%s\n' "${target%.c}"
    done
}

# fuzz_one NAME SECONDS: one target; its last lines tell what it did. What it ended with is in build-fuzz/found/.
fuzz_one() {
    local name=$1 seconds=$2 rc=0 learnt log tmp
    learnt=$(cache_dir)/corpus/$name
    log=$ROOT/build-fuzz/fuzz_$name.log
    mkdir -p "$learnt" "$ROOT/build-fuzz/found"
    tmp=$(mktemp -d /dev/shm/kvd-fuzz.XXXXXX) # stores lie in memory: no device is waited for
    # The targets with a daemon or a peer have threads whose memory comes and goes while an input runs; that they give
    # back what they took, they check themselves.
    TMPDIR=$tmp "$ROOT/build-fuzz/tests/fuzz/fuzz_$name" -max_total_time="$seconds" -rss_limit_mb=2048 \
        -timeout=60 -detect_leaks="$([[ $name =~ ^(client|socket|store)$ ]] && echo 0 || echo 1)" \
        -artifact_prefix="$ROOT/build-fuzz/found/$name-" "$learnt" "$ROOT/tests/fuzz/corpus/$name" >"$log" 2>&1 || rc=$?
    rm -rf "$tmp"
    if ((rc != 0)); then
        tail -n 40 "$log" >&2
        say "fuzz: $name failed (exit status $rc); all of its output is in $log"
    else
        say "fuzz: $name: $(grep -E '^#[0-9]+.*DONE' "$log" | tail -n 1)"
    fi
    printf '%s\n' "$rc" >"$ROOT/build-fuzz/fuzz_$name.rc"
}

# fuzz_run SECONDS JOBS: all targets, so many at a time; sets FUZZ_COUNTS="passed failed skipped".
fuzz_run() {
    local seconds=$1 jobs=$2 name passed=0 failed=0
    export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
    rm -f "$ROOT"/build-fuzz/fuzz_*.rc
    for name in $(fuzz_names); do
        while (($(jobs -rp | wc -l) >= jobs)); do
            wait -n
        done
        say "fuzz: $name for $seconds s"
        fuzz_one "$name" "$seconds" &
    done
    wait
    for name in $(fuzz_names); do
        if [[ $(cat "$ROOT/build-fuzz/fuzz_$name.rc") == 0 ]]; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
        fi
    done
    # shellcheck disable=SC2034 # for the caller
    FUZZ_COUNTS="$passed $failed 0"
}
