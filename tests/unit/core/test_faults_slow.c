/* A device that is slow, or never answers. Whoever waits for it is answered in time, memory that
 * the kernel may still write to is nobody else's, and when it comes back nothing was leaked. */
#include "kvd_test.h"

#include <errno.h>
#include <unistd.h>

#include "faults_rig.h"
#include "proto/base/clock.h"

enum { N = 12, TOKENS = N * RIG_BLOCK_TOKENS + 5, STOP_WAIT_S = 45 };

/* N blocks of a prompt, on the device only. */
static void put_below(struct rig *rig, const uint32_t *tokens)
{
    rig_open(rig, false);
    assert_int_equal(rig_put(rig, "", "chat", tokens, N), N);
    rig_close(rig);
    rig_open(rig, true);
    assert_int_equal(rig_match(rig, "", "chat", tokens, TOKENS), N);
    assert_int_equal(rig->results[0].tier, KVD_TIER_NVME);
}

/* Puts prompts until something had to go. Returns how many. */
static uint32_t fill_dram(struct rig *rig, uint32_t seed)
{
    uint32_t other[TOKENS];
    uint32_t n = 0;
    while (rig_number(rig, "status", "", "tiers.0.evicted_blocks") < 10 * N) {
        rig_tokens(seed + n++, TOKENS, other);
        assert_int_equal(rig_put(rig, "", "batch", other, N), N);
    }
    return n;
}

static void assert_resident_are_right(struct rig *rig, uint32_t seed, uint32_t n)
{
    uint32_t other[TOKENS];
    uint32_t hits = 0;
    for (uint32_t i = 0; i < n; i++) {
        rig_tokens(seed + i, TOKENS, other);
        hits += rig_hit(rig, "", other, TOKENS); /* compares every byte */
    }
    assert_true(hits > 0);
}

/* The reads hang. The answer comes at the deadline; the slots stay taken, whatever else wants room,
 * and are whole when the device is back. */
static void r_slow_reads(void **state)
{
    enum { OTHERS_SEED = 100 };
    struct rig *rig = *state;
    uint32_t tokens[TOKENS];
    uint32_t good = 0;
    rig_fini(rig);
    rig_init(rig, "32MiB", "64MiB");
    rig_tokens(1, TOKENS, tokens);
    put_below(rig, tokens);
    int held = fault_hold(FAULT_READ, ".seg");
    struct rig_answer *a = rig_load_begin(rig, kvd_mono_ns() + 50 * KVD_NS_PER_MS);
    assert_true(fault_wait_held(held, N));
    assert_int_equal(rig_load_end(&a, &good), -KVD_E_DEADLINE);
    assert_int_equal(rig_number(rig, "hitrate", "", "rows.0.hit.nvme.blocks"), 0);
    assert_int_equal(rig_number(rig, "hitrate", "", "rows.0.missed.failed.blocks"), N);
    rig_assert_adds_up(rig);
    /* the client computes and goes on; the load still has its slots */
    kvd_service_release(rig->session, rig->match.lease, UINT32_MAX);
    uint32_t others = fill_dram(rig, OTHERS_SEED);
    assert_resident_are_right(rig, OTHERS_SEED, others);
    assert_int_equal(rig_put(rig, "", "chat", tokens, N), N);

    fault_release(held);
    rig_settle(rig);
    assert_resident_are_right(rig, OTHERS_SEED, others);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    faults_assert_sound(rig);
}

/* The client goes while its reads hang. */
static void r_client_gone_during_slow_reads(void **state)
{
    struct rig *rig = *state;
    uint32_t tokens[TOKENS];
    uint32_t good = 0;
    rig_tokens(2, TOKENS, tokens);
    put_below(rig, tokens);
    int held = fault_hold(FAULT_READ, ".seg");
    struct rig_answer *a = rig_load_begin(rig, kvd_mono_ns() + 50 * KVD_NS_PER_MS);
    assert_true(fault_wait_held(held, N));
    rig_connect(rig, 1);
    assert_int_equal(rig_load_end(&a, &good), -KVD_E_DEADLINE);
    fault_release(held);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    faults_assert_sound(rig);
}

/* Opening a file hangs: a load waits, look-ups and dram go on. */
static void r_slow_open(void **state)
{
    struct rig *rig = *state;
    uint32_t tokens[TOKENS];
    uint32_t other[TOKENS];
    uint32_t good = 0;
    rig_tokens(3, TOKENS, tokens);
    rig_tokens(4, TOKENS, other);
    put_below(rig, tokens);
    int held = fault_hold(FAULT_OPEN, ".seg");
    struct rig_answer *a = rig_load_begin(rig, kvd_mono_ns() + 50 * KVD_NS_PER_MS);
    assert_true(fault_wait_held(held, 1));
    assert_int_equal(rig_load_end(&a, &good), -KVD_E_DEADLINE);
    kvd_service_release(rig->session, rig->match.lease, UINT32_MAX);
    assert_int_equal(rig_match(rig, "", "chat", tokens, TOKENS), N);
    kvd_service_release(rig->session, rig->match.lease, UINT32_MAX);
    assert_int_equal(rig_put(rig, "", "batch", other, N), N);
    assert_int_equal(rig_hit(rig, "", other, TOKENS), N);
    fault_release(held);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    faults_assert_sound(rig);
}

/* Writes hang. What is being written keeps its slots; puts go on in dram until the queue is full,
 * and are told from there on. */
static void r_hung_writes(void **state)
{
    enum { SEED = 200 };
    struct rig *rig = *state;
    uint32_t tokens[TOKENS];
    uint32_t n = 0;
    rig_fini(rig);
    rig_init(rig, "32MiB", "64MiB");
    rig_open(rig, false);
    rig_tokens(SEED, TOKENS, tokens);
    int held = fault_hold(FAULT_WRITE, ".seg");
    while (rig_number(rig, "status", "", "tiers.0.evicted_blocks") < 10 * N) {
        rig_tokens(SEED + n++, TOKENS, tokens);
        assert_int_equal(rig_put_unwritten(rig, "", "chat", tokens, N), N);
    }
    assert_true(fault_wait_held(held, 1));
    uint64_t not_written = rig_number(rig, "status", "", "puts.not_written_down_blocks");
    assert_true(not_written > 0);
    rig_expect_problem(rig, "not written down");
    assert_resident_are_right(rig, SEED, n);

    fault_release(held);
    rig_settle(rig);
    faults_assert_sound(rig);
    uint64_t blocks = rig_number(rig, "status", "", "tiers.1.blocks");
    assert_true(blocks > 0 && blocks <= n * N);
    rig_close(rig);
    rig_open(rig, true);
    for (uint32_t i = 0; i < n; i++) { /* what was written in the end is what it says */
        rig_tokens(SEED + i, TOKENS, tokens);
        (void)rig_hit(rig, "", tokens, TOKENS);
    }
    assert_int_equal(rig_number(rig, "status", "", "corrupt"), 0);
    assert_int_equal(rig_number(rig, "hitrate", "", "rows.0.missed.failed.blocks"), 0);
    faults_assert_sound(rig);
}

/* ---- stopping ---- */

/* Stops while a device hangs: it doesn't take longer than the options say. When the device is back,
 * it can be ended well. */
static void stop_with(struct rig *rig, int held, uint64_t n)
{
    rig->config.stop_patience = 100; /* ms */
    (void)alarm(STOP_WAIT_S);        /* ends this test where stopping doesn't end */
    assert_true(fault_wait_held(held, n));
    rig_disconnect(rig);
    assert_int_equal(kvd_service_close(&rig->service), -KVD_E_DEADLINE);
    assert_non_null(rig->service);
    rig->config.stop_patience = 20000;
    fault_release(held);
    rig_close(rig);
    (void)alarm(0);
    rig_open(rig, true);
}

static void r_stop_during_a_write_that_hangs(void **state)
{
    struct rig *rig = *state;
    uint32_t tokens[TOKENS];
    rig_tokens(10, TOKENS, tokens);
    rig_open(rig, false);
    int held = fault_hold(FAULT_WRITE, ".seg");
    assert_int_equal(rig_put_unwritten(rig, "", "chat", tokens, N), N);
    stop_with(rig, held, 1);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    faults_assert_sound(rig);
}

static void r_stop_during_reads_that_hang(void **state)
{
    struct rig *rig = *state;
    uint32_t tokens[TOKENS];
    uint32_t good = 0;
    rig_tokens(11, TOKENS, tokens);
    put_below(rig, tokens);
    int held = fault_hold(FAULT_READ, ".seg");
    struct rig_answer *a = rig_load_begin(rig, kvd_mono_ns() + 50 * KVD_NS_PER_MS);
    assert_int_equal(rig_load_end(&a, &good), -KVD_E_DEADLINE);
    stop_with(rig, held, N);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    faults_assert_sound(rig);
}

static void r_stop_during_a_seal_that_hangs(void **state)
{
    struct rig *rig = *state;
    uint32_t tokens[TOKENS];
    rig_tokens(12, TOKENS, tokens);
    rig_open(rig, false);
    assert_int_equal(rig_put(rig, "", "chat", tokens, N), N);
    rig_settle(rig);
    int held = fault_hold(FAULT_TRUNCATE, ".seg");
    rig->config.stop_patience = 100;
    rig_disconnect(rig);
    assert_int_equal(kvd_service_close(&rig->service), -KVD_E_DEADLINE);
    assert_true(fault_wait_held(held, 1));
    rig->config.stop_patience = 20000;
    fault_release(held);
    rig_close(rig);
    rig_open(rig, true);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    faults_assert_sound(rig);
}

#define TEST(name)                                                                                 \
    {                                                                                              \
#name, name, faults_setup, faults_teardown, NULL                                           \
    }

static const struct CMUnitTest tests[] = {
    TEST(r_slow_reads),
    TEST(r_client_gone_during_slow_reads),
    TEST(r_slow_open),
    TEST(r_hung_writes),
    TEST(r_stop_during_a_write_that_hangs),
    TEST(r_stop_during_reads_that_hang),
    TEST(r_stop_during_a_seal_that_hangs),
};

KVD_TEST_MAIN(tests)
