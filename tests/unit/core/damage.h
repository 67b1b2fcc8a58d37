/* For tests that damage what a service stored, and for those that let it read everything over. */
#ifndef TESTS_UNIT_CORE_DAMAGE_H
#define TESTS_UNIT_CORE_DAMAGE_H

#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvd_test.h"
#include "proto/base/clock.h"
#include "service_rig.h"

enum { DAMAGE_PAGE = 4096, DAMAGE_WAIT_S = 30 };

static char damage_found[512];

static inline int damage_find(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)flag;
    (void)ftw;
    if (S_ISREG(st->st_mode) && strstr(path, ".seg")) {
        (void)snprintf(damage_found, sizeof(damage_found), "%s", path);
    }
    return 0;
}

/* Path of a segment of the rig's store: the one that is met last. */
static inline const char *damage_segment(const struct rig *rig)
{
    damage_found[0] = 0;
    assert_int_equal(nftw(rig->folder, damage_find, 16, FTW_PHYS), 0);
    assert_true(damage_found[0]);
    return damage_found;
}

static inline void damage_flip(const char *path, off_t at)
{
    uint8_t b;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &b, 1, at), 1);
    b ^= 1;
    assert_int_equal(pwrite(fd, &b, 1, at), 1);
    assert_int_equal(fsync(fd), 0);
    (void)close(fd);
}

static inline off_t damage_record_at(uint32_t record)
{
    return (off_t)(DAMAGE_PAGE + record * (DAMAGE_PAGE + rig_block_bytes()));
}

/* Flips a byte of the nth record of the segment: its header is one page. */
static inline void damage_record(const struct rig *rig, uint32_t record, uint64_t offset_in_record)
{
    damage_flip(damage_segment(rig), damage_record_at(record) + (off_t)offset_in_record);
}

/* Begins a round of a tier ("" is all) and waits for its end. */
static inline void damage_verify(struct rig *rig, const char *tier)
{
    struct kvd_diag diag = {{0}};
    uint64_t round = 0;
    uint64_t deadline = kvd_mono_ns() + DAMAGE_WAIT_S * KVD_NS_PER_S;
    if (kvd_service_verify(rig->service, tier, 0, &diag, &round)) {
        fail_msg("%s", diag.text);
    }
    while (rig_number(rig, "verify", "", "now.round") < round ||
           rig_number(rig, "verify", "", "now.ended_s") == 0) {
        assert_true(kvd_mono_ns() < deadline);
        (void)sched_yield();
    }
}

#endif
