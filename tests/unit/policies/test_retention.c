/* Retention: never early, at most a day late, for every second of a day and every built-in class.
 */
#include "kvd_test.h"
#include "policies/policy.h"
#include "proto/base/cleanup.h"

static void check_use_at(const struct kvd_scenario *s, uint64_t used_s)
{
    uint32_t day = kvd_day_of(used_s);
    uint64_t exact = used_s + s->retention_s;
    assert_false(kvd_retention_expired(s, day, day, exact));
    assert_true(kvd_retention_expired(s, day, day, exact + KVD_DAY_S));
}

static void test_never_early_at_most_a_day_late(void **state)
{
    (void)state;
    KVD_CLEANUP(kvd_scenarios_destroy) struct kvd_scenarios *table = NULL;
    struct kvd_diag diag;
    size_t bytes = 0;
    const char *text = kvd_scenarios_builtin(&bytes);
    assert_int_equal(kvd_scenarios_parse(text, bytes, "built-in", &diag, &table), 0);
    for (uint32_t i = 0; i < kvd_scenarios_count(table); i++) {
        for (uint64_t t = UINT64_C(1700006400); t < UINT64_C(1700006400) + 2 * KVD_DAY_S; t += 7) {
            check_use_at(kvd_scenario_at(table, i), t);
        }
        check_use_at(kvd_scenario_at(table, i), UINT64_C(1700006400) - 1);
    }
}

static const struct kvd_scenario sliding = {.id = 1, .retention_s = 86400, .sliding = true};
static const struct kvd_scenario fixed = {.id = 2, .retention_s = 86400, .sliding = false};
static const struct kvd_scenario shorter = {.id = 3, .retention_s = 3600, .sliding = true};

static void test_fixed_counts_from_the_put(void **state)
{
    (void)state;
    assert_int_equal(kvd_retention_expiry_s(&sliding, 20, 10), 22 * 86400);
    assert_int_equal(kvd_retention_expiry_s(&fixed, 20, 10), 12 * 86400);
}

static void test_far_future_does_not_wrap(void **state)
{
    (void)state;
    assert_true(kvd_retention_expiry_s(&sliding, UINT32_MAX, 0) > (uint64_t)UINT32_MAX * KVD_DAY_S);
}

static void test_longer(void **state)
{
    (void)state;
    assert_ptr_equal(kvd_retention_longer(&shorter, &sliding), &sliding);
    assert_ptr_equal(kvd_retention_longer(&sliding, &shorter), &sliding);
    assert_ptr_equal(kvd_retention_longer(&fixed, &sliding), &sliding);
    assert_ptr_equal(kvd_retention_longer(&sliding, &fixed), &sliding);
    struct kvd_scenario same = sliding;
    assert_ptr_equal(kvd_retention_longer(&same, &sliding), &same);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_never_early_at_most_a_day_late),
    cmocka_unit_test(test_fixed_counts_from_the_put),
    cmocka_unit_test(test_far_future_does_not_wrap),
    cmocka_unit_test(test_longer),
};
KVD_TEST_MAIN(tests)
