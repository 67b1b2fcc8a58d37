# shellcheck shell=bash
# Benchmarks: the cache against the limits of this machine, and the kernels against their reference in C. Figures, no
# verdicts: nothing here fails because a machine is slow.

dev_bench() {
    if (($# > 0)); then
        die "bench takes no arguments; kvdepot bench --help has more of them"
    fi
    setup_packages build bench
    setup_release cachesvc/kvdepotd tools/kvdepot tests/kernels/test_kernels
    say "the cache, each path beside its limit (median of interleaved pairs):"
    "$ROOT/build/tools/kvdepot" bench local
    say ""
    say "the kernels:"
    "$ROOT/build/tests/kernels/test_kernels" --bench
}
