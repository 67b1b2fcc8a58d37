/*
 * Another clock object for tests of the service: linked in the place of cachesvc/core/wall.c, it
 * does what that one does, but its system time can be moved. Nothing that is installed links it.
 */
#include "moved_wall.h"

#include <stdatomic.h>
#include <time.h>

#include "cachesvc/core/wall.h"

static atomic_llong moved_s;

void moved_wall_advance(int64_t seconds)
{
    atomic_fetch_add(&moved_s, seconds);
}

static uint64_t system_s(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_REALTIME, &ts);
    return (uint64_t)(ts.tv_sec + atomic_load(&moved_s));
}

void kvd_wall_init(struct kvd_wall *wall, uint64_t persisted_s)
{
    uint64_t now_s = system_s();
    wall->base_boot_s = 0;
    wall->base_utc_s = now_s > persisted_s ? now_s : persisted_s;
}

/* Moves with the moved system time, and never goes back. */
uint64_t kvd_wall_now_s(const struct kvd_wall *wall)
{
    uint64_t now_s = system_s();
    return now_s > wall->base_utc_s ? now_s : wall->base_utc_s;
}

int64_t kvd_wall_skew_s(const struct kvd_wall *wall)
{
    return (int64_t)system_s() - (int64_t)kvd_wall_now_s(wall);
}
