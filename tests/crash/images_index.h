/* The index's part of a record: see images_index.c. */
#ifndef TESTS_CRASH_IMAGES_INDEX_H
#define TESTS_CRASH_IMAGES_INDEX_H

#include <stdint.h>

/* Before the store is opened: the folder of the history, and which opening of the index this is. */
void images_index_watch(const char *history, uint64_t nth);

#endif
