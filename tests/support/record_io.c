/*
 * Recording: see record_io.h. An event is appended before the operation is passed on, its end after
 * the operation has ended and before anybody is told. So whatever somebody did because of an end
 * comes behind it in the file.
 *
 * Lock: recorder.mtx, held while an event is appended.
 */
#include "record_io.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cachesvc/io/io.h"
#include "proto/base/assert.h"
#include "proto/base/bytes.h"
#include "proto/base/list.h"

/* One a process: the linker's wrapping gives an engine no other way to find its test. */
static struct {
    pthread_mutex_t mtx;
    int fd; /* of the log; -1 while nothing is recorded */
    char root[RECORD_PATH_BYTES];
    uint64_t next_id; /* lock: mtx, and all below */
    uint64_t left;    /* events until the end; 0: no end is set */
} recorder = {.mtx = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

struct recording {
    struct kvd_io base;
    struct kvd_io *inner;
    struct kvd_io_ops ops; /* with the real engine's name */
};

/* ---- events ---- */

static void append_locked(const struct record_event *e, const void *extra)
{
    static uint8_t zeros[8];
    uint64_t pad = kvd_round_up(e->extra_bytes, 8) - e->extra_bytes;
    struct iovec parts[3] = {
        {.iov_base = (void *)(uintptr_t)e, .iov_len = sizeof(*e)},
        {.iov_base = (void *)(uintptr_t)extra, .iov_len = e->extra_bytes},
        {.iov_base = zeros, .iov_len = pad},
    };
    ssize_t n = writev(recorder.fd, parts, 3);
    KVD_ASSERT(n == (ssize_t)(sizeof(*e) + e->extra_bytes + pad));
    if (recorder.left > 0 && --recorder.left == 0) {
        (void)kill(getpid(), SIGKILL);
        for (;;) {
            (void)pause();
        }
    }
}

/* Appends what begins; returns its id, 0 where nothing is recorded. */
static uint64_t begin(struct record_event *e, const void *extra)
{
    if (recorder.fd < 0) {
        return 0;
    }
    (void)pthread_mutex_lock(&recorder.mtx);
    e->id = recorder.next_id++;
    append_locked(e, extra);
    (void)pthread_mutex_unlock(&recorder.mtx);
    return e->id;
}

void record_end(uint64_t id, int64_t result)
{
    if (id == 0) {
        return;
    }
    const struct record_event e = {.op = RECORD_END, .id = id, .result = result};
    (void)pthread_mutex_lock(&recorder.mtx);
    append_locked(&e, NULL);
    (void)pthread_mutex_unlock(&recorder.mtx);
}

uint64_t record_mark(uint32_t mark, uint64_t value, const void *extra, uint64_t extra_bytes)
{
    struct record_event e = {
        .op = RECORD_MARK, .mark = mark, .bytes = value, .extra_bytes = extra_bytes};
    return begin(&e, extra);
}

/* Ids go on from those that the file has. */
void record_start(const char *log, const char *root)
{
    struct record_log had = {0};
    record_load(log, &had);
    uint64_t highest = 0;
    for (uint32_t i = 0; i < had.n; i++) {
        highest = had.events[i]->id > highest ? had.events[i]->id : highest;
    }
    record_unload(&had);
    recorder.next_id = highest + 1;
    (void)snprintf(recorder.root, sizeof(recorder.root), "%s", root);
    recorder.fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    KVD_ASSERT(recorder.fd >= 0);
}

void record_kill_at(uint64_t nth)
{
    (void)pthread_mutex_lock(&recorder.mtx);
    recorder.left = nth;
    (void)pthread_mutex_unlock(&recorder.mtx);
}

/* ---- paths ---- */

/* Cuts the root off. False: outside. */
static bool relative(const char *path, char ret[RECORD_PATH_BYTES])
{
    size_t n = strlen(recorder.root);
    if (recorder.fd < 0 || strncmp(path, recorder.root, n) != 0 || (path[n] && path[n] != '/')) {
        return false;
    }
    (void)snprintf(ret, RECORD_PATH_BYTES, "%s", path[n] ? path + n + 1 : "");
    return true;
}

static void path_of_fd(int fd, char ret[RECORD_PATH_BYTES])
{
    char link[64];
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, ret, RECORD_PATH_BYTES - 1);
    ret[n > 0 ? n : 0] = 0;
}

static bool relative_fd(int fd, char ret[RECORD_PATH_BYTES])
{
    char path[RECORD_PATH_BYTES];
    path_of_fd(fd, path);
    return relative(path, ret);
}

static bool relative_name(int folder, const char *name, char ret[RECORD_PATH_BYTES])
{
    char path[RECORD_PATH_BYTES] = "";
    size_t n = 0;
    if (folder != AT_FDCWD && name[0] != '/') {
        path_of_fd(folder, path);
        n = strlen(path);
    }
    int more = snprintf(path + n, sizeof(path) - n, "%s%s", n ? "/" : "", name);
    KVD_ASSERT(more > 0 && (size_t)more < sizeof(path) - n);
    return relative(path, ret);
}

static uint64_t inode_of(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 ? st.st_ino : 0;
}

/* ---- data ---- */

struct request {
    struct kvd_io_request run; /* what the engine below does */
    struct kvd_io_request *orig;
    uint64_t id;
};

static void request_done(struct kvd_io_request *run)
{
    struct request *r = run->user;
    struct kvd_io_request *orig = r->orig;
    orig->result = run->result;
    orig->done_bytes = run->done_bytes;
    record_end(r->id, run->result);
    free(r);
    orig->done(orig);
}

static struct kvd_io *inner_of(struct kvd_io *io)
{
    return KVD_CONTAINER_OF(io, struct recording, base)->inner;
}

static uint64_t begin_request(const struct kvd_io_request *req)
{
    bool write = req->kind == KVD_IO_WRITE;
    struct record_event e = {.op = write ? RECORD_WRITE : RECORD_FDATASYNC,
                             .inode = inode_of(req->fd),
                             .offset = write ? req->offset : 0,
                             .bytes = write ? req->bytes : 0,
                             .extra_bytes = write ? req->bytes : 0};
    return relative_fd(req->fd, e.path) ? begin(&e, req->buffer) : 0;
}

static void submit_one(struct kvd_io *inner, struct kvd_io_request *req)
{
    uint64_t id = req->kind == KVD_IO_READ || req->fd < 0 ? 0 : begin_request(req);
    struct request *r = id ? malloc(sizeof(*r)) : NULL;
    if (r) {
        *r = (struct request){.run = *req, .orig = req, .id = id};
        r->run.done = request_done;
        r->run.user = r;
        req = &r->run;
    }
    int err = inner->ops->submit(inner, &req, 1);
    KVD_ASSERT(err == 0); /* the engines take everything */
}

static int recording_submit(struct kvd_io *io, struct kvd_io_request *const *reqs, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        submit_one(inner_of(io), reqs[i]);
    }
    return 0;
}

static int recording_register(struct kvd_io *io, void *base, uint64_t bytes)
{
    struct kvd_io *inner = inner_of(io);
    return inner->ops->register_region(inner, base, bytes);
}

static void recording_destroy(struct kvd_io **io)
{
    struct recording *r = KVD_CONTAINER_OF(*io, struct recording, base);
    kvd_io_close(&r->inner);
    free(r);
    *io = NULL;
}

/* ---- names, sizes, folders ---- */

/* What an open changes: it makes the file, or empties one that is there. */
static uint64_t begin_open(int folder, const char *name, int flags)
{
    struct record_event e = {.op = RECORD_CREATE};
    struct stat st;
    if (!(flags & O_CREAT) || !relative_name(folder, name, e.path)) {
        return 0;
    }
    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        e.op = RECORD_TRUNCATE;
        e.inode = st.st_ino;
        if (!(flags & O_TRUNC)) {
            return 0;
        }
    }
    return begin(&e, NULL);
}

static int recording_open(struct kvd_io *io, int folder, const char *name, int flags)
{
    struct kvd_io *inner = inner_of(io);
    uint64_t id = begin_open(folder, name, flags);
    int fd = inner->files->open(inner, folder, name, flags);
    if (id) { /* an END of CREATE says which file it was */
        struct record_event e = {.op = RECORD_END, .id = id, .result = fd < 0 ? fd : 0};
        e.inode = fd < 0 ? 0 : inode_of(fd);
        (void)pthread_mutex_lock(&recorder.mtx);
        append_locked(&e, NULL);
        (void)pthread_mutex_unlock(&recorder.mtx);
    }
    return fd;
}

static int recording_mkdir(struct kvd_io *io, int folder, const char *name)
{
    struct kvd_io *inner = inner_of(io);
    struct record_event e = {.op = RECORD_MKDIR};
    uint64_t id = relative_name(folder, name, e.path) ? begin(&e, NULL) : 0;
    int err = inner->files->mkdir(inner, folder, name);
    record_end(id, err);
    return err;
}

static int recording_unlink(struct kvd_io *io, int folder, const char *name)
{
    struct kvd_io *inner = inner_of(io);
    struct record_event e = {.op = RECORD_UNLINK};
    uint64_t id = relative_name(folder, name, e.path) ? begin(&e, NULL) : 0;
    int err = inner->files->unlink(inner, folder, name);
    record_end(id, err);
    return err;
}

static int recording_rename(struct kvd_io *io, int folder, const char *from, const char *to)
{
    struct kvd_io *inner = inner_of(io);
    struct record_event e = {.op = RECORD_RENAME};
    bool inside = relative_name(folder, from, e.path) && relative_name(folder, to, e.path2);
    uint64_t id = inside ? begin(&e, NULL) : 0;
    int err = inner->files->rename(inner, folder, from, to);
    record_end(id, err);
    return err;
}

static uint64_t begin_size(enum record_op op, int fd, uint64_t bytes)
{
    struct record_event e = {.op = op, .inode = inode_of(fd), .bytes = bytes};
    return relative_fd(fd, e.path) ? begin(&e, NULL) : 0;
}

static int recording_allocate(struct kvd_io *io, int fd, uint64_t bytes)
{
    struct kvd_io *inner = inner_of(io);
    uint64_t id = begin_size(RECORD_ALLOCATE, fd, bytes);
    int err = inner->files->allocate(inner, fd, bytes);
    record_end(id, err);
    return err;
}

static int recording_truncate(struct kvd_io *io, int fd, uint64_t bytes)
{
    struct kvd_io *inner = inner_of(io);
    uint64_t id = begin_size(RECORD_TRUNCATE, fd, bytes);
    int err = inner->files->truncate(inner, fd, bytes);
    record_end(id, err);
    return err;
}

static int recording_sync_folder(struct kvd_io *io, int folder)
{
    struct kvd_io *inner = inner_of(io);
    struct record_event e = {.op = RECORD_SYNC_FOLDER};
    uint64_t id = relative_fd(folder, e.path) ? begin(&e, NULL) : 0;
    int err = inner->files->sync_folder(inner, folder);
    record_end(id, err);
    return err;
}

static const struct kvd_file_ops recording_files = {
    .open = recording_open,
    .mkdir = recording_mkdir,
    .unlink = recording_unlink,
    .rename = recording_rename,
    .allocate = recording_allocate,
    .truncate = recording_truncate,
    .sync_folder = recording_sync_folder,
};

/* ---- over the faults ---- */

void record_io_over(struct kvd_io **io);

void record_io_over(struct kvd_io **io)
{
    struct recording *r = calloc(1, sizeof(*r));
    KVD_ASSERT(r);
    r->ops = (struct kvd_io_ops){.name = (*io)->ops->name,
                                 .destroy = recording_destroy,
                                 .submit = recording_submit,
                                 .register_region = recording_register};
    r->base = (struct kvd_io){.ops = &r->ops, .files = &recording_files};
    r->inner = *io;
    *io = &r->base;
}
