/* Devices that fail while the service writes down. A block that could not be written stays in dram,
 * is counted, and is written again when it is used again. */
#include "kvd_test.h"

#include "fault_io.h"
#include "service_rig.h"

enum { N = 12, TOKENS = N * RIG_BLOCK_TOKENS + 5 };

static int setup(void **state)
{
    struct rig *rig = calloc(1, sizeof(*rig));
    assert_non_null(rig);
    rig_init(rig, "64MiB", "64MiB");
    *state = rig;
    return 0;
}

static int teardown(void **state)
{
    struct rig *rig = *state;
    fault_clear();
    rig_fini(rig);
    free(rig);
    return 0;
}

/* After the fault: what must hold, and goes on working. */
static void assert_sound(struct rig *rig)
{
    rig_settle(rig);
    rig_assert_adds_up(rig);
    assert_int_equal(rig_number(rig, "status", "", "tiers.0.pinned_bytes"), 0);
    assert_int_equal(rig_number(rig, "status", "", "leases"), 0);
}

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
    assert_sound(rig);
    rig_close(rig);
    rig_open(rig, true); /* without dram */
    assert_int_equal(rig_hit(rig, "", first, TOKENS), N);
    assert_sound(rig);
}

#define TEST(name)                                                                                 \
    {                                                                                              \
#name, name, setup, teardown, NULL                                                         \
    }

static const struct CMUnitTest tests[] = {
    TEST(r_copy_evicted_below_while_in_dram),
};

KVD_TEST_MAIN(tests)
