/* The clock of expiry: starts at the later of two times, never goes back, tells how far the
 * system's time is away. */
#include "kvd_test.h"

#include <time.h>

#include "cachesvc/core/wall.h"

static void starts_at_the_system_time(void **state)
{
    (void)state;
    struct kvd_wall wall;
    uint64_t before = (uint64_t)time(NULL);
    kvd_wall_init(&wall, 0);
    assert_in_range(kvd_wall_now_s(&wall), before - 1, before + 30);
    assert_in_range(kvd_wall_skew_s(&wall) + 5, 0, 10);
}

static void never_goes_back_behind_what_was_written_down(void **state)
{
    (void)state;
    struct kvd_wall wall;
    uint64_t ahead = (uint64_t)time(NULL) + 86400;
    kvd_wall_init(&wall, ahead);
    assert_in_range(kvd_wall_now_s(&wall), ahead, ahead + 30);
    assert_in_range(-kvd_wall_skew_s(&wall), 86400 - 30, 86400 + 30);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(starts_at_the_system_time),
    cmocka_unit_test(never_goes_back_behind_what_was_written_down),
};

KVD_TEST_MAIN(tests)
