/*
 * Faults in RocksDB's own files, which don't pass through the I/O interface. RocksDB is a shared
 * library and calls these functions by name, so the ones of an executable that depends on
 * dep_fault_rocksdb stand in their stead. Only files below a folder `index` are looked at; they
 * strike before the call (fail, hold, kill, call).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "fault_io.h"

/* 0, or -1 with errno. */
static int before(enum fault_op op, int fd)
{
    char link[64];
    char path[FAULT_PATH_BYTES];
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    path[n > 0 ? n : 0] = 0;
    int err = strstr(path, "/index/") ? fault_before(op, path) : 0;
    if (err) {
        errno = -err;
    }
    return err ? -1 : 0;
}

__attribute__((visibility("default"))) ssize_t write(int fd, const void *bytes, size_t n)
{
    return before(FAULT_WRITE, fd) ? -1 : (ssize_t)syscall(SYS_write, fd, bytes, n);
}

__attribute__((visibility("default"))) ssize_t pwrite(int fd, const void *bytes, size_t n,
                                                      off_t offset)
{
    return before(FAULT_WRITE, fd) ? -1 : (ssize_t)syscall(SYS_pwrite64, fd, bytes, n, offset);
}

__attribute__((visibility("default"))) int fdatasync(int fd)
{
    return before(FAULT_FDATASYNC, fd) ? -1 : (int)syscall(SYS_fdatasync, fd);
}

__attribute__((visibility("default"))) int fsync(int fd)
{
    return before(FAULT_FDATASYNC, fd) ? -1 : (int)syscall(SYS_fsync, fd);
}
