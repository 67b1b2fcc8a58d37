/*
 * What the disk itself does: reads of a file past the page cache, by fio where it is installed,
 * else by this program.
 */
#ifndef TOOLS_KVDEPOT_BENCH_DISK_H
#define TOOLS_KVDEPOT_BENCH_DISK_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/error.h"

/* Path of the largest file below a folder; the caller frees it. -ENOENT, -ENOMEM. */
int kvd_bench_disk_largest(const char *folder, char **ret_path);

/* Whether fio can be run. */
bool kvd_bench_disk_has_fio(void);

/* Reads `n` records of record_bytes (a multiple of 4096), `depth` at a time, from the file, again
 * from its beginning when it ends. *ret_seconds: what the reading took. */
int kvd_bench_disk_fio(const char *path, uint64_t record_bytes, uint32_t n, uint32_t depth,
                       double *ret_seconds, struct kvd_diag *diag);
int kvd_bench_disk_read(const char *path, uint64_t record_bytes, uint32_t n, uint32_t depth,
                        double *ret_seconds, struct kvd_diag *diag);

#endif
