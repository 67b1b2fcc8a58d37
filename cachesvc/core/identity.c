#include "cachesvc/core/identity.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/bytes.h"
#include "proto/base/cleanup.h"
#include "proto/base/protect.h"

/* The name of a new folder must outlive a power cut, or all in it is gone. */
static int sync_parent(struct kvd_io *io, const char *path)
{
    KVD_AUTOCLOSE int fd = io->files->open(io, AT_FDCWD, path, O_RDONLY | O_DIRECTORY);
    KVD_AUTOCLOSE int parent = fd < 0 ? fd : io->files->open(io, fd, "..", O_RDONLY | O_DIRECTORY);
    return parent < 0 ? parent : io->files->sync_folder(io, parent);
}

/* One folder of a path. A start that was killed may have made it and not come to the sync: so the
 * first start that gets as far as IDENTITY syncs the names of all, those that it can. */
static int make_folder(struct kvd_io *io, const char *path, bool first, struct kvd_diag *diag)
{
    int err = io->files->mkdir(io, AT_FDCWD, path);
    if (err == 0 && KVD_PROTECT(SYNC_FOLDER_NAME)) {
        err = sync_parent(io, path);
    } else if (err == -EEXIST && first && KVD_PROTECT(SYNC_FOLDER_FOUND)) {
        (void)sync_parent(io, path); /* mostly another's, long durable, perhaps not ours to open */
    }
    return err && err != -EEXIST
               ? kvd_fail(diag, err, "folder %s can't be made: %s; make it, or name another", path,
                          kvd_strerror(err))
               : 0;
}

static int make_folders(struct kvd_io *io, const char *folder, struct kvd_diag *diag)
{
    char path[PATH_MAX];
    size_t n = strlen(folder);
    if (n == 0 || n + sizeof("/IDENTITY") > sizeof(path)) {
        return kvd_fail(diag, -KVD_E_TOO_LONG, "folder '%s': 1 to %zu bytes are allowed", folder,
                        sizeof(path) - sizeof("/IDENTITY"));
    }
    (void)snprintf(path, sizeof(path), "%s/IDENTITY", folder);
    bool first = access(path, F_OK) != 0;
    path[n] = 0;
    for (char *p = path + 1;; p++) {
        if (*p != '/' && *p != 0) {
            continue;
        }
        char was = *p;
        *p = 0;
        int err = make_folder(io, path, first, diag);
        *p = was;
        if (err || was == 0) {
            return err;
        }
    }
}

static int open_folder(struct kvd_io *io, const char *folder, struct kvd_diag *diag)
{
    int err = make_folders(io, folder, diag);
    if (err) {
        return err;
    }
    int fd = io->files->open(io, AT_FDCWD, folder, O_RDONLY | O_DIRECTORY);
    if (fd < 0) {
        return kvd_fail(diag, fd, "folder %s can't be opened: %s; check its rights", folder,
                        kvd_strerror(fd));
    }
    return fd;
}

static int lock_folder(int dir, const char *folder, struct kvd_diag *diag)
{
    int fd = openat(dir, "LOCK", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        int err = -errno;
        return kvd_fail(diag, err, "%s/LOCK can't be opened: %s; check the folder's rights", folder,
                        kvd_strerror(err));
    }
    if (KVD_PROTECT(STORE_LOCK) && flock(fd, LOCK_EX | LOCK_NB)) {
        int err = errno == EWOULDBLOCK ? -KVD_E_IN_USE : -errno;
        (void)close(fd);
        return kvd_fail(diag, err,
                        "folder %s: %s; another kvdepotd has it: stop that one, or give this one a "
                        "folder of its own",
                        folder, kvd_strerror(err));
    }
    return fd;
}

/* 0, -ENOENT, or why not. */
static int read_identity(int dir, const char *folder, struct kvd_diag *diag,
                         struct kvd_identity *ret)
{
    KVD_AUTOCLOSE int fd = openat(dir, "IDENTITY", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        int err = -errno;
        return err == -ENOENT ? err
                              : kvd_fail(diag, err, "%s/IDENTITY can't be opened: %s", folder,
                                         kvd_strerror(err));
    }
    char text[KVD_IDENTITY_TEXT_MAX + 1];
    ssize_t n = read(fd, text, KVD_IDENTITY_TEXT_MAX);
    if (n < 0) {
        int err = -errno;
        return kvd_fail(diag, err, "%s/IDENTITY can't be read: %s", folder, kvd_strerror(err));
    }
    text[n] = 0;
    return kvd_identity_parse(text, (size_t)n, folder, diag, ret);
}

static int write_identity(struct kvd_io *io, int dir, const char *folder,
                          const struct kvd_identity *id, struct kvd_diag *diag)
{
    char text[KVD_IDENTITY_TEXT_MAX];
    const size_t n = kvd_identity_print(id, text);
    int err = kvd_io_file_replace(io, dir, "IDENTITY", text, n);
    return err ? kvd_fail(diag, err, "%s/IDENTITY can't be written: %s", folder, kvd_strerror(err))
               : 0;
}

/* Opens and locks a folder, made where it is missing. */
static int hold_folder(struct kvd_io *io, const char *folder, struct kvd_diag *diag, int *ret_dir,
                       int *ret_lock)
{
    int dir = open_folder(io, folder, diag);
    if (dir < 0) {
        return dir;
    }
    int lock = lock_folder(dir, folder, diag);
    if (lock < 0) {
        (void)close(dir);
        return lock;
    }
    *ret_dir = dir;
    *ret_lock = lock;
    return 0;
}

/* Before IDENTITY is written, so that the sync for its name is the new folder's too. */
static int make_inner(struct kvd_io *io, int dir, const char *folder, const char *inner,
                      struct kvd_diag *diag)
{
    int err = io->files->mkdir(io, dir, inner);
    return err && err != -EEXIST ? kvd_fail(diag, err, "folder %s/%s can't be made: %s", folder,
                                            inner, kvd_strerror(err))
                                 : 0;
}

int kvd_identity_open(struct kvd_io *io, const char *folder, const char *inner,
                      struct kvd_diag *diag, struct kvd_identity *ret, int *ret_lock_fd)
{
    KVD_AUTOCLOSE int dir = -1;
    KVD_AUTOCLOSE int lock = -1;
    struct kvd_identity id = {0};
    int err = hold_folder(io, folder, diag, &dir, &lock);
    if (err) {
        return err;
    }
    err = read_identity(dir, folder, diag, &id);
    if (err == -ENOENT) {
        randombytes_buf(&id.store, sizeof(id.store));
        randombytes_buf(&id.seed, sizeof(id.seed));
    } else if (err) {
        return err;
    }
    id.boot++;
    err = make_inner(io, dir, folder, inner, diag);
    err = err ? err : write_identity(io, dir, folder, &id, diag);
    if (err) {
        return err;
    }
    *ret = id;
    *ret_lock_fd = kvd_take_fd(&lock);
    return 0;
}

int kvd_identity_raise(struct kvd_io *io, const char *folder, uint64_t boot, struct kvd_diag *diag,
                       struct kvd_identity *identity)
{
    struct kvd_identity raised = *identity;
    KVD_AUTOCLOSE int dir = io->files->open(io, AT_FDCWD, folder, O_RDONLY | O_DIRECTORY);
    raised.boot = boot;
    int err = dir < 0 ? kvd_fail(diag, dir, "folder %s: %s", folder, kvd_strerror(dir))
                      : write_identity(io, dir, folder, &raised, diag);
    if (!err) {
        *identity = raised;
    }
    return err;
}

int kvd_identity_claim(struct kvd_io *io, const char *folder, const struct kvd_identity *identity,
                       struct kvd_diag *diag, int *ret_lock_fd)
{
    KVD_AUTOCLOSE int dir = -1;
    KVD_AUTOCLOSE int lock = -1;
    struct kvd_identity id = {0};
    int err = hold_folder(io, folder, diag, &dir, &lock);
    if (err) {
        return err;
    }
    err = read_identity(dir, folder, diag, &id);
    if (err == -ENOENT) {
        id = *identity;
        id.boot = 0;
        err = write_identity(io, dir, folder, &id, diag);
    } else if (KVD_PROTECT(FOLDER_OF_THIS_STORE) && !err &&
               memcmp(&id.store, &identity->store, sizeof(id.store)) != 0) {
        return kvd_fail(
            diag, -KVD_E_WRONG_STORE,
            "folder %s belongs to another store; give this store a folder of its own, or "
            "remove what is in it",
            folder);
    }
    if (!err) {
        *ret_lock_fd = kvd_take_fd(&lock);
    }
    return err;
}
