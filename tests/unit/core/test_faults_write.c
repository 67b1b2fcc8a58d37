/* Devices that fail while the service writes down. A block that could not be written stays in dram,
 * is counted, and is written again when it is used again. */
#include "kvd_test.h"

#include <errno.h>

#include "faults_rig.h"

enum { N = 12, TOKENS = N * RIG_BLOCK_TOKENS + 5 };

/* ---- writes ---- */

/* What stood in dram only because it could not be written is written when it is used, and is all
 * there after a restart without dram. */
static void assert_written_when_used(struct rig *rig, const uint32_t *tokens)
{
    fault_clear();
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    rig_settle(rig);
    rig_close(rig);
    rig_open(rig, true);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    assert_int_equal(rig_number(rig, "status", "", "corrupt"), 0);
    faults_assert_sound(rig);
}

/* Puts while a fault strikes: nothing of it is lost in dram, what failed is said. */
static void put_with(struct rig *rig, uint32_t seed, const struct fault *fault, uint64_t failed)
{
    uint32_t tokens[TOKENS];
    rig_tokens(seed, TOKENS, tokens);
    rig_open(rig, false);
    int id = fault_add(fault);
    assert_int_equal(rig_put(rig, "", "chat", tokens, N), N);
    rig_settle(rig);
    assert_true(fault_hits(id) > 0);
    assert_int_equal(rig_number(rig, "status", "", "tiers.1.failed_writes"), failed);
    rig_expect_problem(rig, "could not be written below dram");
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    faults_assert_sound(rig);
    assert_written_when_used(rig, tokens);
}

/* One write in the middle of a batch. The first write of a segment is its header. */
static void r_write_fails_in_a_batch(void **state)
{
    put_with(*state, 70,
             &(struct fault){
                 .op = FAULT_WRITE, .kind = FAULT_FAIL, .file = ".seg", .skip = 4, .times = 1},
             1);
}

static void r_write_ends_early(void **state)
{
    put_with(*state, 71,
             &(struct fault){.op = FAULT_WRITE,
                             .kind = FAULT_SHORT,
                             .file = ".seg",
                             .skip = 4,
                             .times = 1,
                             .bytes = 8192},
             1);
}

static void r_disk_full_in_a_batch(void **state)
{
    put_with(*state, 72,
             &(struct fault){.op = FAULT_WRITE,
                             .kind = FAULT_FAIL,
                             .file = ".seg",
                             .skip = 4,
                             .times = 3,
                             .err = -ENOSPC},
             3);
}

/* No segment can be made at all. */
static void r_disk_full_for_a_new_segment(void **state)
{
    put_with(
        *state, 73,
        &(struct fault){.op = FAULT_ALLOCATE, .kind = FAULT_FAIL, .file = ".seg", .err = -ENOSPC},
        N);
}

static void r_name_of_a_segment_not_durable(void **state)
{
    put_with(*state, 74,
             &(struct fault){.op = FAULT_SYNC_FOLDER, .kind = FAULT_FAIL, .file = "/nvme"}, N);
}

/* What a failed fdatasync leaves isn't trusted, whatever a later one says: none of the batch is
 * indexed, and its segment takes nothing more. The first of a segment is its header's. */
static void r_failed_fdatasync(void **state)
{
    struct rig *rig = *state;
    uint32_t before[TOKENS];
    uint32_t tokens[TOKENS];
    rig_tokens(75, TOKENS, before);
    rig_tokens(76, TOKENS, tokens);
    rig_open(rig, false);
    assert_int_equal(rig_put(rig, "", "chat", before, N), N);
    rig_settle(rig);
    int held = fault_hold(FAULT_WRITE, ".seg"); /* so that all is one batch, but for the first */
    assert_int_equal(rig_put_unwritten(rig, "", "chat", tokens, N), N);
    assert_true(fault_wait_held(held, 1));
    int id = fault_add(
        &(struct fault){.op = FAULT_FDATASYNC, .kind = FAULT_FAIL, .file = ".seg", .times = 1});
    fault_release(held);
    assert_true(fault_wait_hits(id, 1));
    rig_settle(rig);
    uint64_t failed = rig_number(rig, "status", "", "tiers.1.failed_writes");
    assert_true(failed > 0);
    assert_int_equal(rig_number(rig, "status", "", "tiers.1.blocks"), 2 * N - failed);
    rig_expect_problem(rig, "could not be written below dram");
    rig_close(rig);
    rig_open(rig, true); /* none of the failed is there */
    assert_int_equal(rig_hit(rig, "", before, TOKENS), N);
    assert_int_equal(rig_hit(rig, "", tokens, TOKENS), 0);
    assert_int_equal(rig_put(rig, "", "chat", tokens, N), N);
    faults_assert_sound(rig);
    assert_written_when_used(rig, tokens);
}

/* ---- sealing ---- */

/* The footer, or the cut behind it, fails at close: the next start reads the segment whole, once.
 */
static void seal_fails(struct rig *rig, uint32_t seed, const struct fault *fault)
{
    uint32_t tokens[TOKENS];
    rig_tokens(seed, TOKENS, tokens);
    rig_open(rig, false);
    assert_int_equal(rig_put(rig, "", "chat", tokens, N), N);
    rig_settle(rig);
    int id = fault_add(fault);
    rig_close(rig);
    assert_true(fault_hits(id) > 0);
    fault_clear();
    for (int i = 0; i < 2; i++) { /* starting twice is the same */
        rig_open(rig, true);
        assert_int_equal(rig_number(rig, "status", "", "tiers.1.blocks"), N);
        assert_int_equal(rig_number(rig, "status", "", "tiers.1.segments"), 1);
        assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
        faults_assert_sound(rig);
        rig_close(rig);
    }
    rig_open(rig, true);
}

static void r_footer_cannot_be_written(void **state)
{
    seal_fails(*state, 80, &(struct fault){.op = FAULT_WRITE, .kind = FAULT_FAIL, .file = ".seg"});
}

static void r_footer_written_in_part(void **state)
{
    seal_fails(
        *state, 81,
        &(struct fault){.op = FAULT_WRITE, .kind = FAULT_SHORT, .file = ".seg", .bytes = 512});
}

static void r_sealed_segment_cannot_be_cut(void **state)
{
    seal_fails(*state, 82,
               &(struct fault){.op = FAULT_TRUNCATE, .kind = FAULT_FAIL, .file = ".seg"});
}

/* Sealing fails while the service goes on: the records stay where they are. */
static void r_seal_fails_in_the_middle(void **state)
{
    struct rig *rig = *state;
    uint32_t tokens[TOKENS];
    rig_fini(rig);
    rig_init(rig, "64MiB", "32MiB"); /* segments of 2 MiB: four prompts */
    rig_open(rig, false);
    (void)fault_add(
        &(struct fault){.op = FAULT_TRUNCATE, .kind = FAULT_FAIL, .file = ".seg", .times = 1});
    for (uint32_t i = 0; i < 10; i++) {
        rig_tokens(90 + i, TOKENS, tokens);
        assert_int_equal(rig_put(rig, "", "chat", tokens, N), N);
    }
    rig_settle(rig);
    rig_expect_problem(rig, "could not be ended");
    uint64_t blocks = rig_number(rig, "status", "", "tiers.1.blocks");
    assert_int_equal(blocks, 10 * N);
    rig_close(rig);
    rig_open(rig, true);
    assert_int_equal(rig_number(rig, "status", "", "tiers.1.blocks"), blocks);
    for (uint32_t i = 0; i < 10; i++) {
        rig_tokens(90 + i, TOKENS, tokens);
        assert_int_equal(rig_hit(rig, "", tokens, TOKENS), N);
    }
    faults_assert_sound(rig);
}

/* ---- copies ---- */

/* The segment of a copy is evicted while the block stays in dram: a use writes it down again. */
static void r_copy_evicted_below_while_in_dram(void **state)
{
    enum { OTHERS = 60 };
    struct rig *rig = *state;
    uint32_t first[TOKENS];
    uint32_t other[TOKENS];
    rig_fini(rig);
    rig_init(rig, "64MiB", "16MiB");
    rig_open(rig, false);
    rig_tokens(1, TOKENS, first);
    assert_int_equal(rig_put(rig, "", "chat", first, N), N);
    for (uint32_t i = 0; i < OTHERS; i++) {
        rig_tokens(2 + i, TOKENS, other);
        assert_int_equal(rig_put(rig, "", "chat", other, N), N);
    }
    rig_settle(rig);
    assert_true(rig_number(rig, "status", "", "tiers.1.dropped_blocks") >= N);
    assert_int_equal(rig_hit(rig, "", first, TOKENS), N);
    faults_assert_sound(rig);
    rig_close(rig);
    rig_open(rig, true); /* without dram */
    assert_int_equal(rig_hit(rig, "", first, TOKENS), N);
    faults_assert_sound(rig);
}

#define TEST(name)                                                                                 \
    {                                                                                              \
#name, name, faults_setup, faults_teardown, NULL                                           \
    }

static const struct CMUnitTest tests[] = {
    TEST(r_write_fails_in_a_batch),
    TEST(r_write_ends_early),
    TEST(r_disk_full_in_a_batch),
    TEST(r_disk_full_for_a_new_segment),
    TEST(r_name_of_a_segment_not_durable),
    TEST(r_failed_fdatasync),
    TEST(r_footer_cannot_be_written),
    TEST(r_footer_written_in_part),
    TEST(r_sealed_segment_cannot_be_cut),
    TEST(r_seal_fails_in_the_middle),
    TEST(r_copy_evicted_below_while_in_dram),
};

KVD_TEST_MAIN(tests)
