#include "cachesvc/core/wall.h"

#include <time.h>

static uint64_t clock_s(clockid_t id)
{
    struct timespec ts;
    (void)clock_gettime(id, &ts);
    return ts.tv_sec < 0 ? 0 : (uint64_t)ts.tv_sec;
}

void kvd_wall_init(struct kvd_wall *wall, uint64_t persisted_s)
{
    uint64_t system_s = clock_s(CLOCK_REALTIME);
    wall->base_boot_s = clock_s(CLOCK_BOOTTIME);
    wall->base_utc_s = system_s > persisted_s ? system_s : persisted_s;
}

uint64_t kvd_wall_now_s(const struct kvd_wall *wall)
{
    return wall->base_utc_s + (clock_s(CLOCK_BOOTTIME) - wall->base_boot_s);
}

int64_t kvd_wall_skew_s(const struct kvd_wall *wall)
{
    return (int64_t)clock_s(CLOCK_REALTIME) - (int64_t)kvd_wall_now_s(wall);
}
