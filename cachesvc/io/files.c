/* Names, sizes and folders by the plain system calls: the same for both engines. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cachesvc/io/io.h"
#include "proto/base/cleanup.h"
#include "proto/base/protect.h"

static int outcome(int result)
{
    return result < 0 ? -errno : result;
}

static int plain_open(struct kvd_io *io, int folder, const char *name, int flags)
{
    (void)io;
    return outcome(openat(folder, name, flags | O_CLOEXEC, 0600));
}

static int plain_mkdir(struct kvd_io *io, int folder, const char *name)
{
    (void)io;
    return outcome(mkdirat(folder, name, 0700));
}

static int plain_unlink(struct kvd_io *io, int folder, const char *name)
{
    (void)io;
    return outcome(unlinkat(folder, name, 0));
}

static int plain_rename(struct kvd_io *io, int folder, const char *from, const char *to)
{
    (void)io;
    return outcome(renameat(folder, from, folder, to));
}

static int plain_allocate(struct kvd_io *io, int fd, uint64_t bytes)
{
    (void)io;
    int err = outcome(fallocate(fd, 0, 0, (off_t)bytes));
    return err == -EOPNOTSUPP || err == -ENOSYS ? 0 : err;
}

static int plain_truncate(struct kvd_io *io, int fd, uint64_t bytes)
{
    (void)io;
    return outcome(ftruncate(fd, (off_t)bytes));
}

static int plain_sync_folder(struct kvd_io *io, int folder)
{
    (void)io;
    return outcome(fsync(folder));
}

const struct kvd_file_ops kvd_files_plain = {
    .open = plain_open,
    .mkdir = plain_mkdir,
    .unlink = plain_unlink,
    .rename = plain_rename,
    .allocate = plain_allocate,
    .truncate = plain_truncate,
    .sync_folder = plain_sync_folder,
};

int kvd_io_file_replace(struct kvd_io *io, int folder, const char *name, const void *bytes,
                        uint64_t n)
{
    char temporary[NAME_MAX + 1];
    int len = snprintf(temporary, sizeof(temporary), "%s.new", name);
    if (len < 0 || (size_t)len >= sizeof(temporary)) {
        return -ENAMETOOLONG;
    }
    KVD_AUTOCLOSE int fd =
        io->files->open(io, folder, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
    int err = fd < 0 ? fd : 0;
    /* the engine only reads from the buffer of a write */
    err = err ? err : kvd_io_transfer(io, KVD_IO_WRITE, fd, (void *)(uintptr_t)bytes, n, 0);
    if (!err && KVD_PROTECT(SYNC_REPLACEMENT)) {
        err = kvd_io_transfer(io, KVD_IO_FDATASYNC, fd, NULL, 0, 0);
    }
    err = err ? err : io->files->rename(io, folder, temporary, name);
    return err || !KVD_PROTECT(SYNC_REPLACEMENT_NAME) ? err : io->files->sync_folder(io, folder);
}
