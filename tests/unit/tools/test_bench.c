/* Figures of the benchmarks: medians of pairs. */
#include "kvd_test.h"

#include "tools/kvdepot/bench_stats.h"

static void test_median(void **state)
{
    const double odd[] = {5, 1, 3};
    const double even[] = {4, 1, 3, 2};
    assert_float_equal(kvd_bench_median(odd, 3), 3, 1e-12);
    assert_float_equal(kvd_bench_median(even, 4), 2.5, 1e-12);
    assert_float_equal(odd[0], 5, 0); /* the input keeps its order */
}

/* A machine that becomes ten times slower on the way changes both of a pair, not the ratio. */
static void test_ratio_is_of_pairs(void **state)
{
    struct kvd_bench_pairs pairs = {0};
    for (int i = 0; i < 7; i++) {
        double slow = i < 3 ? 1 : 10;
        kvd_bench_pairs_add(&pairs, 2 * slow, 1 * slow);
    }
    assert_float_equal(kvd_bench_ratio(&pairs), 0.5, 1e-12);
}

static void test_difference_ignores_an_outlier(void **state)
{
    struct kvd_bench_pairs pairs = {0};
    kvd_bench_pairs_add(&pairs, 1.2, 1.0);
    kvd_bench_pairs_add(&pairs, 99.0, 1.0);
    kvd_bench_pairs_add(&pairs, 1.1, 1.0);
    assert_float_equal(kvd_bench_difference(&pairs), 0.2, 1e-9);
}

static void test_full_set_drops(void **state)
{
    struct kvd_bench_pairs pairs = {0};
    for (int i = 0; i < KVD_BENCH_PAIRS_MAX + 5; i++) {
        kvd_bench_pairs_add(&pairs, 1, 1);
    }
    assert_int_equal(pairs.n, KVD_BENCH_PAIRS_MAX);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_median),
    cmocka_unit_test(test_ratio_is_of_pairs),
    cmocka_unit_test(test_difference_ignores_an_outlier),
    cmocka_unit_test(test_full_set_drops),
};

KVD_TEST_MAIN(tests)
