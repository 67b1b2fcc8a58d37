#include "faults_rig.h"

#include "kvd_test.h"
#include "proto/format/record.h"

int faults_setup(void **state)
{
    struct rig *rig = calloc(1, sizeof(*rig));
    assert_non_null(rig);
    rig_init(rig, "64MiB", "64MiB");
    *state = rig;
    return 0;
}

int faults_teardown(void **state)
{
    struct rig *rig = *state;
    fault_clear();
    rig_fini(rig);
    free(rig);
    return 0;
}

void faults_assert_sound(struct rig *rig)
{
    rig_settle(rig);
    rig_assert_adds_up(rig);
    assert_int_equal(rig_number(rig, "status", "", "tiers.0.pinned_bytes"), 0);
    assert_int_equal(rig_number(rig, "status", "", "leases"), 0);
    assert_int_equal(rig_number(rig, "status", "", "tiers.0.used_bytes"),
                     rig_number(rig, "status", "", "tiers.0.blocks") *
                         (KVD_ALIGN_BYTES + rig_block_bytes()));
}
