/*
 * The clock of expiry: UTC seconds that never go back. It starts at the later of the system's time
 * and the time that was written down last, and moves by the kernel's boot clock (which counts
 * suspend), so that a step of the system's time while the daemon runs neither expires nor revives
 * anything.
 */
#ifndef CACHESVC_CORE_WALL_H
#define CACHESVC_CORE_WALL_H

#include <stdint.h>

struct kvd_wall {
    uint64_t base_utc_s;
    uint64_t base_boot_s;
};

/* persisted_s: what was written down last, 0 at first. */
void kvd_wall_init(struct kvd_wall *wall, uint64_t persisted_s);
uint64_t kvd_wall_now_s(const struct kvd_wall *wall);

/* Seconds by which the system's time and this clock differ now (positive: the system is ahead). */
int64_t kvd_wall_skew_s(const struct kvd_wall *wall);

#endif
