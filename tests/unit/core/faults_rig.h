/*
 * For tests of a service over devices that fail: cmocka's setup and teardown around a rig in
 * *state, and what must hold again when the fault is over.
 */
#ifndef TESTS_UNIT_CORE_FAULTS_RIG_H
#define TESTS_UNIT_CORE_FAULTS_RIG_H

#include "fault_io.h"
#include "service_rig.h"

int faults_setup(void **state);    /* a rig that isn't open yet */
int faults_teardown(void **state); /* no fault strikes any more; the rig is gone */

/* Everything is written down, nothing is pinned or leased, look-ups and dram's bytes add up. */
void faults_assert_sound(struct rig *rig);

#endif
