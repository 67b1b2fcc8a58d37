/* Time for deadlines: nanoseconds of the monotonic clock. A deadline is an absolute time of this
 * clock. */
#ifndef PROTO_BASE_CLOCK_H
#define PROTO_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

enum { KVD_NS_PER_MS = 1000000 };
#define KVD_NS_PER_S UINT64_C(1000000000)

static inline uint64_t kvd_mono_ns(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * KVD_NS_PER_S + (uint64_t)ts.tv_nsec;
}

/* Milliseconds from now to a deadline for poll(): rounded up, 0 when it has passed, at most 1 hour.
 */
static inline int kvd_deadline_poll_ms(uint64_t deadline_ns)
{
    uint64_t now = kvd_mono_ns();
    if (deadline_ns <= now) {
        return 0;
    }
    uint64_t ms = (deadline_ns - now + KVD_NS_PER_MS - 1) / KVD_NS_PER_MS;
    return ms > 3600000 ? 3600000 : (int)ms;
}

#endif
