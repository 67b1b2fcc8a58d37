/* RocksDB's files fail. What isn't in the index is never reported as stored below; dram goes on;
 * and when the folder takes writes again the index does too, without a restart. */
#include "kvd_test.h"

#include <errno.h>

#include "faults_rig.h"

enum { N = 12, TOKENS = N * RIG_BLOCK_TOKENS + 5 };

static int setup(void **state)
{
    int err = faults_setup(state);
    rig_open(*state, false);
    return err;
}

/* The index takes changes again by itself, and a use writes down what could not be. */
static void assert_mends(struct rig *rig, const uint32_t *tokens)
{
    rig_expect_problem(rig, "goes on again");
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    rig_settle(rig);
    rig_close(rig);
    rig_open(rig, true);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    faults_assert_sound(rig);
}

static void fail_index(struct rig *rig, enum fault_op op, int err)
{
    uint32_t before[TOKENS];
    uint32_t tokens[TOKENS];
    rig_tokens(1, TOKENS, before);
    rig_tokens(2, TOKENS, tokens);
    assert_int_equal(rig_put(rig, "", "chat", before, N), N);
    rig_settle(rig);
    uint64_t written = rig_number(rig, "status", "", "tiers.1.written_bytes");
    int id = fault_fail(op, "/index/", err);
    assert_true(fault_wait_hits(id, 1)); /* the counters are written every second */
    rig_expect_problem(rig, "can't be written");
    assert_int_equal(rig_put(rig, "", "chat", tokens, N), N);
    rig_settle(rig);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    assert_int_equal(rig_hit(rig, "", before, TOKENS), N);
    rig_expect_problem(rig, "not written down");
    assert_int_equal(rig_number(rig, "status", "", "puts.not_written_down_blocks"), N);
    /* nothing is written that the index could not point to */
    assert_int_equal(rig_number(rig, "status", "", "tiers.1.written_bytes"), written);
    faults_assert_sound(rig);
    fault_clear();
    assert_mends(rig, tokens);
    assert_int_equal(rig_hit(rig, "", before, TOKENS), N); /* what was durable before */
    faults_assert_sound(rig);
}

static void r_index_write_fails(void **state)
{
    fail_index(*state, FAULT_WRITE, -EIO);
}

static void r_index_folder_full(void **state)
{
    fail_index(*state, FAULT_WRITE, -ENOSPC);
}

/* It can't be opened anew either: neither written nor read for a while. What is in dram is served,
 * the rest is a miss that says why. */
static void r_index_unreadable(void **state)
{
    struct rig *rig = *state;
    uint32_t below[TOKENS];
    uint32_t tokens[TOKENS];
    rig_tokens(5, TOKENS, below);
    rig_tokens(6, TOKENS, tokens);
    assert_int_equal(rig_put(rig, "", "chat", below, N), N);
    rig_close(rig);
    rig_open(rig, true);
    assert_int_equal(rig_put(rig, "", "chat", tokens, N), N);
    rig_settle(rig);
    (void)fault_fail(FAULT_WRITE, "/index/MANIFEST", -EIO);
    (void)fault_add(&(struct fault){
        .op = FAULT_WRITE, .kind = FAULT_FAIL, .file = ".log", .times = 1, .err = -EIO});
    rig_expect_problem(rig, "nor read");
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    assert_int_equal(rig_hit(rig, "", below, TOKENS), 0);
    assert_int_equal(rig_number(rig, "hitrate", "", "rows.0.missed.failed.blocks"), N);
    assert_int_equal(rig_put(rig, "", "chat", below, N), N); /* computed: dram takes it */
    assert_int_equal(rig_hit(rig, "", below, TOKENS), N);
    faults_assert_sound(rig);
    fault_clear();
    assert_mends(rig, tokens);
    assert_int_equal(rig_hit(rig, "", below, TOKENS), N);
    faults_assert_sound(rig);
}

/* The daemon ends while its index fails: what is found at the next start is right. */
static void r_index_fails_to_the_end(void **state)
{
    struct rig *rig = *state;
    uint32_t before[TOKENS];
    uint32_t tokens[TOKENS];
    rig_tokens(3, TOKENS, before);
    rig_tokens(4, TOKENS, tokens);
    assert_int_equal(rig_put(rig, "", "chat", before, N), N);
    rig_settle(rig);
    int id = fault_fail(FAULT_WRITE, "/index/", -EIO);
    assert_true(fault_wait_hits(id, 1));
    assert_int_equal(rig_put(rig, "", "chat", tokens, N), N);
    rig_settle(rig);
    rig_close(rig);
    fault_clear();
    rig_open(rig, true);
    assert_int_equal(rig_hit(rig, "", before, TOKENS), N);
    uint32_t good = rig_hit(rig, "", tokens, TOKENS); /* a scan may find it: then it is right */
    assert_true(good == 0 || good == N);
    assert_int_equal(rig_put(rig, "", "chat", tokens, N), N);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    faults_assert_sound(rig);
}

#define TEST(name)                                                                                 \
    {                                                                                              \
#name, name, setup, faults_teardown, NULL                                                  \
    }

static const struct CMUnitTest tests[] = {
    TEST(r_index_write_fails),
    TEST(r_index_folder_full),
    TEST(r_index_unreadable),
    TEST(r_index_fails_to_the_end),
};

KVD_TEST_MAIN(tests)
