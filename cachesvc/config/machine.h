/* How much room this process has: file systems and cgroups; for the files of this folder only. */
#ifndef CACHESVC_CONFIG_MACHINE_H
#define CACHESVC_CONFIG_MACHINE_H

#include <limits.h>
#include <stdint.h>

#include "proto/base/error.h"

/* Size of the whole file system that a path is on, or would be on: of the nearest folder above it
 * that exists, whose path goes to ret_at. *ret_bytes 0: the file system doesn't say. A negated
 * errno. */
int kvd_machine_file_system(const char *path, char ret_at[PATH_MAX], uint64_t *ret_bytes);

enum { KVD_MACHINE_FILE_MAX = 512 };

/* The smallest memory limit of this process's cgroup and those above it, version 2 and version 1,
 * and the file that says it. UINT64_MAX: none. proc: "/proc", or a folder that is like it. */
uint64_t kvd_machine_cgroup_memory(const char *proc, char ret_file[KVD_MACHINE_FILE_MAX]);

#endif
