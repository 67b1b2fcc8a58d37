/*
 * The socket file. Two guards against a second daemon: a lock file beside the socket, held for
 * life, and a probe by connecting, because something else may listen there. A socket file that
 * nobody listens on is left over from a daemon that was killed: it is replaced.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "cachesvc/local/door.h"
#include "proto/base/cleanup.h"

enum { LISTEN_BACKLOG = 128, LOCK_TRIES = 16 };

static int address_of(const char *path, struct sockaddr_un *ret, struct kvd_diag *diag)
{
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof(ret->sun_path)) {
        return kvd_fail(diag, -KVD_E_TOO_LONG,
                        "socket path %s has %zu bytes, must have 1 to %zu: choose a shorter one",
                        path, n, sizeof(ret->sun_path) - 1);
    }
    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(ret->sun_path, path, n + 1);
    return 0;
}

/* Opens and locks the lock file. A daemon that stops removes its lock file, so a lock counts only
 * where the file that was locked is still the one at the path. */
static int lock_take(const char *path, int *ret_fd, struct kvd_diag *diag)
{
    for (int i = 0; i < LOCK_TRIES; i++) {
        KVD_AUTOCLOSE int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0) {
            return kvd_fail(diag, -errno, "lock file %s: %s; check the folder and its rights", path,
                            kvd_strerror(-errno));
        }
        if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
            return kvd_fail(diag, -KVD_E_IN_USE,
                            "another daemon listens beside %s: stop it or choose another socket",
                            path);
        }
        struct stat ours;
        struct stat there;
        if (fstat(fd, &ours) == 0 && stat(path, &there) == 0 && ours.st_ino == there.st_ino &&
            ours.st_dev == there.st_dev) {
            *ret_fd = kvd_take_fd(&fd);
            return 0;
        }
    }
    return kvd_fail(diag, -KVD_E_IN_USE, "lock file %s keeps being replaced by others", path);
}

/* 0 when nothing listens at the address and the file, if there was one, is gone. */
static int clear_stale(const struct sockaddr_un *addr, struct kvd_diag *diag)
{
    struct stat st;
    if (lstat(addr->sun_path, &st) < 0) {
        return errno == ENOENT
                   ? 0
                   : kvd_fail(diag, -errno, "socket %s: %s", addr->sun_path, kvd_strerror(-errno));
    }
    if (!S_ISSOCK(st.st_mode)) {
        return kvd_fail(diag, -EEXIST,
                        "%s is there and is not a socket: remove it or choose another",
                        addr->sun_path);
    }
    KVD_AUTOCLOSE int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return kvd_fail(diag, -errno, "socket: %s", kvd_strerror(-errno));
    }
    /* EPROTOTYPE: somebody listens with another kind of socket; EAGAIN: its backlog is full */
    if (connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) == 0 || errno != ECONNREFUSED) {
        return kvd_fail(diag, -KVD_E_IN_USE,
                        "another program listens on %s: stop it or choose another socket",
                        addr->sun_path);
    }
    if (unlink(addr->sun_path) < 0 && errno != ENOENT) {
        return kvd_fail(diag, -errno, "stale socket %s cannot be removed: %s", addr->sun_path,
                        kvd_strerror(-errno));
    }
    return 0;
}

static int bind_and_listen(struct local_listener *l, const struct sockaddr_un *addr, mode_t mode,
                           struct kvd_diag *diag)
{
    struct stat st;
    l->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* nobody can connect before listen(), so the mode is right from the first client on */
    if (l->fd < 0 || bind(l->fd, (const struct sockaddr *)addr, sizeof(*addr)) < 0 ||
        chmod(addr->sun_path, mode) < 0 || stat(addr->sun_path, &st) < 0 ||
        listen(l->fd, LISTEN_BACKLOG) < 0) {
        return kvd_fail(diag, -errno, "socket %s: %s; check the folder and its rights",
                        addr->sun_path, kvd_strerror(-errno));
    }
    l->dev = st.st_dev;
    l->ino = st.st_ino;
    return 0;
}

int local_listener_open(struct local_listener *l, const char *path, mode_t mode,
                        struct kvd_diag *diag)
{
    struct sockaddr_un addr;
    *l = (struct local_listener){.fd = -1, .lock_fd = -1};
    int err = address_of(path, &addr, diag);
    if (err) {
        return err;
    }
    (void)snprintf(l->path, sizeof(l->path), "%s", path);
    (void)snprintf(l->lock_path, sizeof(l->lock_path), "%s.lock", path);
    err = lock_take(l->lock_path, &l->lock_fd, diag);
    err = err ? err : clear_stale(&addr, diag);
    err = err ? err : bind_and_listen(l, &addr, mode, diag);
    if (err) {
        local_listener_close(l);
    }
    return err;
}

void local_listener_close(struct local_listener *l)
{
    struct stat st;
    if (l->fd >= 0 && l->ino && lstat(l->path, &st) == 0 && st.st_ino == l->ino &&
        st.st_dev == l->dev) {
        (void)unlink(l->path);
    }
    kvd_close_fd(&l->fd);
    if (l->lock_fd >= 0) {
        (void)unlink(l->lock_path);
    }
    kvd_close_fd(&l->lock_fd);
    l->ino = 0;
}
