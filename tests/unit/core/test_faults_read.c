/* Reads that fail, end too early, or bring other bits. What is served is right and the good prefix;
 * the rest moves from hit to failed in its look-up's window, is forgotten, and is stored anew. */
#include "kvd_test.h"

#include <errno.h>

#include "cachesvc/core/service_private.h"
#include "faults_rig.h"
#include "proto/base/clock.h"

enum { N = 12, BAD = 5, TOKENS = N * RIG_BLOCK_TOKENS + 5, PAGE = 4096 };

static void put_below(struct rig *rig, uint32_t seed, uint32_t *tokens)
{
    rig_tokens(seed, TOKENS, tokens);
    rig_open(rig, false);
    assert_int_equal(rig_put(rig, "", "chat", tokens, N), N);
    rig_close(rig);
    rig_open(rig, true);
}

/* The read of block BAD is spoilt; reads are asked for in the chain's order. */
static void spoil(struct rig *rig, uint32_t seed, struct fault fault, const char *problem)
{
    uint32_t tokens[TOKENS];
    put_below(rig, seed, tokens);
    fault.op = FAULT_READ;
    fault.file = ".seg";
    fault.skip = BAD;
    fault.times = 1;
    int id = fault_add(&fault);
    assert_int_equal(rig_match(rig, "", "chat", tokens, TOKENS), N);
    assert_int_equal(rig_load(rig, tokens), BAD); /* every byte of them compared */
    assert_int_equal(fault_hits(id), 1);
    assert_int_equal(rig_number(rig, "hitrate", "", "rows.0.hit.nvme.blocks"), BAD);
    assert_int_equal(rig_number(rig, "hitrate", "", "rows.0.missed.failed.blocks"), N - BAD);
    rig_expect_problem(rig, problem);
    faults_assert_sound(rig);
    /* what was read behind it is in dram; nobody is led to the bad one again */
    assert_int_equal(rig_match(rig, "", "chat", tokens, TOKENS), BAD);
    assert_int_equal(rig_load(rig, tokens), BAD);
    assert_int_equal(rig_put(rig, "", "chat", tokens, N), N);
    rig_settle(rig);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    rig_close(rig);
    rig_open(rig, true);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    faults_assert_sound(rig);
}

static void r_read_fails(void **state)
{
    struct rig *rig = *state;
    spoil(rig, 1, (struct fault){.kind = FAULT_FAIL, .err = -EIO}, "could not be read");
    assert_int_equal(rig_number(rig, "status", "", "corrupt"), 0);
}

static void r_read_ends_early(void **state)
{
    struct rig *rig = *state;
    spoil(rig, 2, (struct fault){.kind = FAULT_SHORT, .bytes = 2 * PAGE, .err = -EIO},
          "could not be read");
    assert_int_equal(rig_number(rig, "status", "", "corrupt"), 0);
}

static void r_bit_flipped_in_a_payload_read(void **state)
{
    spoil(*state, 3, (struct fault){.kind = FAULT_FLIP, .bit = 8 * (PAGE + 777) + 3},
          "did not match their sum or identity");
}

/* Every field of the header, a bit of each 8 bytes of what is in use of it. */
static void r_bit_flipped_in_a_header_read(void **state)
{
    struct rig *rig = *state;
    uint32_t tokens[TOKENS];
    put_below(rig, 4, tokens);
    rig_close(rig);
    for (uint64_t at = 0; at < 400; at += 8) {
        (void)fault_add(&(struct fault){.op = FAULT_READ,
                                        .kind = FAULT_FLIP,
                                        .file = ".seg",
                                        .skip = BAD,
                                        .times = 1,
                                        .bit = 8 * at + at % 61});
        rig_open(rig, true);
        assert_int_equal(rig_match(rig, "", "chat", tokens, TOKENS), N);
        assert_int_equal(rig_load(rig, tokens), BAD);
        rig_assert_adds_up(rig);
        /* the bit was another on the way only: put again, it stands below a second time */
        assert_int_equal(rig_put(rig, "", "chat", tokens, N), N);
        rig_settle(rig);
        fault_clear();
        rig_close(rig);
    }
    rig_open(rig, true);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    faults_assert_sound(rig);
}

/* All reads fail: all of it is a miss, once; then it is computed. */
static void r_device_that_reads_nothing(void **state)
{
    struct rig *rig = *state;
    uint32_t tokens[TOKENS];
    put_below(rig, 5, tokens);
    int id = fault_fail(FAULT_READ, ".seg", -EIO);
    assert_int_equal(rig_match(rig, "", "chat", tokens, TOKENS), N);
    assert_int_equal(rig_load(rig, tokens), 0);
    rig_settle(rig);
    assert_int_equal(fault_hits(id), N);
    assert_int_equal(rig_match(rig, "", "chat", tokens, TOKENS), 0);
    assert_int_equal(rig_put(rig, "", "chat", tokens, N), N);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    assert_int_equal(rig_number(rig, "hitrate", "", "rows.0.hit.dram.blocks"), N);
    assert_int_equal(rig_number(rig, "hitrate", "", "rows.0.missed.failed.blocks"), 2 * N);
    faults_assert_sound(rig);
}

/* A bit was another on its way to the device: found when it is read. */
static void r_bit_flipped_in_a_write(void **state)
{
    struct rig *rig = *state;
    uint32_t tokens[TOKENS];
    rig_tokens(6, TOKENS, tokens);
    rig_open(rig, false);
    /* the segment's header is the first write */
    (void)fault_add(&(struct fault){.op = FAULT_WRITE,
                                    .kind = FAULT_FLIP,
                                    .file = ".seg",
                                    .skip = 1 + BAD,
                                    .times = 1,
                                    .bit = 8 * (PAGE + 4242) + 1});
    assert_int_equal(rig_put(rig, "", "chat", tokens, N), N);
    rig_settle(rig);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    rig_close(rig);
    rig_open(rig, true);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), BAD);
    assert_int_equal(rig_number(rig, "status", "", "corrupt"), 1);
    assert_int_equal(rig_put(rig, "", "chat", tokens, N), N);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    faults_assert_sound(rig);
}

static bool any(const struct kvd_segment_info *info, void *user)
{
    (void)info;
    (void)user;
    return true;
}

/* The segment dies after a record of it was read, and before that is found to be bad. */
static void r_segment_dies_under_a_bad_read(void **state)
{
    struct rig *rig = *state;
    uint32_t tokens[TOKENS];
    uint32_t good = 0;
    put_below(rig, 7, tokens);
    (void)fault_add(&(struct fault){.op = FAULT_READ,
                                    .kind = FAULT_FLIP,
                                    .file = ".seg",
                                    .times = 1,
                                    .bit = 8 * (PAGE + 4242) + 1});
    assert_int_equal(rig_match(rig, "", "chat", tokens, TOKENS), N);
    int hold = fault_hold(FAULT_READ, ".seg");
    struct rig_answer *answer = rig_load_begin(rig, kvd_mono_ns() + 30 * KVD_NS_PER_S);
    assert_true(fault_wait_held(hold, 1));
    struct kvd_tier *nvme = rig->service->nvme;
    assert_int_equal(nvme->ops->reclaim(nvme, 0, any, NULL), 0);
    fault_release(hold);
    assert_int_equal(rig_load_end(&answer, &good), 0);
    assert_int_equal(good, 0);
    kvd_service_release(rig->session, rig->match.lease, UINT32_MAX);
    assert_int_equal(rig_number(rig, "status", "", "corrupt"), 1);
    assert_int_equal(rig_number(rig, "verify", "", "quarantined"), 0);
    faults_assert_sound(rig);
}

#define TEST(name)                                                                                 \
    {                                                                                              \
#name, name, faults_setup, faults_teardown, NULL                                           \
    }

static const struct CMUnitTest tests[] = {
    TEST(r_read_fails),
    TEST(r_read_ends_early),
    TEST(r_bit_flipped_in_a_payload_read),
    TEST(r_bit_flipped_in_a_header_read),
    TEST(r_device_that_reads_nothing),
    TEST(r_bit_flipped_in_a_write),
    TEST(r_segment_dies_under_a_bad_read),
};

KVD_TEST_MAIN(tests)
