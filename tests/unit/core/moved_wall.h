/* See moved_wall.c. */
#ifndef TESTS_UNIT_CORE_MOVED_WALL_H
#define TESTS_UNIT_CORE_MOVED_WALL_H

#include <stdint.h>

/* Moves the system's time, as this program's services see it. */
void moved_wall_advance(int64_t seconds);

#endif
