/*
 * The wrapper around an engine, and the program of faults: see fault_io.h.
 *
 * A data operation that no fault strikes goes to the real engine as it is. One that is struck gets
 * a request of its own (struct spoilt) that the real engine runs, so that its end comes on the
 * engine's completion thread like any other; a failure is an empty transfer whose result is
 * replaced.
 *
 * Locks: program.mtx only, held over nothing that waits but for fault_release.
 */
#include "fault_io.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cachesvc/io/io.h"
#include "fault_text.h"
#include "proto/base/assert.h"
#include "proto/base/list.h"

enum { FAULT_WAIT_S = 30, FAULT_ALIGN = 4096, FAULT_FILE_BYTES = 128 };

struct armed {
    struct fault fault; /* constant */
    char file[FAULT_FILE_BYTES];
    bool on;
    uint64_t serial; /* fault_clear gives ids anew, not serials */
    uint32_t seen;   /* operations that it chose, passed ones too */
    uint64_t hits;
    uint64_t held;
};

/* One a process: --wrap gives a wrapped engine no other way to find its test. */
static struct {
    pthread_mutex_t mtx;
    pthread_cond_t changed;
    struct armed armed[FAULTS_MAX]; /* lock: mtx, and all below */
    int n;
    uint64_t serials;
    uint64_t asked[FAULT_ANY + 1];
    struct kvd_list held; /* struct spoilt.link */
    bool ready;
} program = {.mtx = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

struct wrapped {
    struct kvd_io base;
    struct kvd_io *inner;
    struct kvd_io_ops ops; /* with the real engine's name */
    uint32_t held;         /* lock: program.mtx */
};

/* A data operation that a fault has struck. */
struct spoilt {
    struct kvd_io_request run; /* what the real engine does */
    struct kvd_io_request *orig;
    struct wrapped *io;
    struct fault fault;
    int id;
    uint8_t *copy; /* of what is written, with a bit flipped; or NULL */
    char path[FAULT_PATH_BYTES];
    struct kvd_list link;
};

/* ---- the program ---- */

static void ready_locked(void)
{
    if (!program.ready) {
        kvd_list_init(&program.held);
        program.ready = true;
    }
}

int fault_add(const struct fault *fault)
{
    (void)pthread_mutex_lock(&program.mtx);
    ready_locked();
    KVD_ASSERT(program.n < FAULTS_MAX);
    struct armed *a = &program.armed[program.n];
    *a = (struct armed){.fault = *fault, .on = true, .serial = ++program.serials};
    (void)snprintf(a->file, sizeof(a->file), "%s", fault->file ? fault->file : "");
    a->fault.file = a->file;
    if (!fault->err && (fault->kind == FAULT_FAIL || fault->kind == FAULT_SHORT)) {
        a->fault.err = -EIO;
    }
    int id = program.n++;
    (void)pthread_mutex_unlock(&program.mtx);
    return id;
}

int fault_fail(enum fault_op op, const char *file, int err)
{
    return fault_add(&(struct fault){.op = op, .kind = FAULT_FAIL, .file = file, .err = err});
}

int fault_hold(enum fault_op op, const char *file)
{
    return fault_add(&(struct fault){.op = op, .kind = FAULT_HOLD, .file = file});
}

uint64_t fault_hits(int id)
{
    (void)pthread_mutex_lock(&program.mtx);
    uint64_t hits = program.armed[id].hits;
    (void)pthread_mutex_unlock(&program.mtx);
    return hits;
}

uint64_t fault_asked(enum fault_op op)
{
    (void)pthread_mutex_lock(&program.mtx);
    uint64_t asked = program.asked[op];
    (void)pthread_mutex_unlock(&program.mtx);
    return asked;
}

static bool wait_until(const uint64_t *count, uint64_t n)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += FAULT_WAIT_S;
    int err = 0;
    (void)pthread_mutex_lock(&program.mtx);
    while (*count < n && err == 0) {
        err = pthread_cond_timedwait(&program.changed, &program.mtx, &until);
    }
    bool there = *count >= n;
    (void)pthread_mutex_unlock(&program.mtx);
    return there;
}

bool fault_wait_hits(int id, uint64_t n)
{
    return wait_until(&program.armed[id].hits, n);
}

bool fault_wait_held(int id, uint64_t n)
{
    return wait_until(&program.armed[id].held, n);
}

/* The fault that strikes this operation, by value; -1 where none does. */
static int strike(enum fault_op op, const char *path, struct fault *ret)
{
    int id = -1;
    (void)pthread_mutex_lock(&program.mtx);
    program.asked[op]++;
    program.asked[FAULT_ANY]++;
    for (int i = 0; i < program.n; i++) {
        struct armed *a = &program.armed[i];
        if (!a->on || (a->fault.op != op && a->fault.op != FAULT_ANY) || !strstr(path, a->file)) {
            continue;
        }
        uint32_t nth = a->seen++;
        bool strikes =
            nth >= a->fault.skip && (a->fault.times == 0 || nth - a->fault.skip < a->fault.times);
        if (strikes && id < 0) {
            a->hits++;
            *ret = a->fault;
            id = i;
            (void)pthread_cond_broadcast(&program.changed);
        }
    }
    (void)pthread_mutex_unlock(&program.mtx);
    return id;
}

static void path_of_fd(int fd, char ret[FAULT_PATH_BYTES])
{
    char link[64];
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, ret, FAULT_PATH_BYTES - 1);
    ret[n > 0 ? n : 0] = 0;
}

static void path_of_name(int folder, const char *name, char ret[FAULT_PATH_BYTES])
{
    char base[FAULT_PATH_BYTES] = "";
    if (folder >= 0 && name[0] != '/') {
        path_of_fd(folder, base);
    }
    (void)snprintf(ret, FAULT_PATH_BYTES, "%.255s%s%.255s", base, base[0] ? "/" : "", name);
}

static void die(void)
{
    (void)kill(getpid(), SIGKILL);
    for (;;) {
        (void)pause();
    }
}

static void act(const struct fault *fault, const struct fault_hit *hit)
{
    if (fault->kind == FAULT_KILL) {
        die();
    }
    if (fault->kind == FAULT_CALL && fault->call) {
        fault->call(hit, fault->user);
    }
}

/* ---- data ---- */

static void flip(uint8_t *bytes, uint64_t n, uint64_t bit)
{
    if (n > 0) {
        bit %= n * 8;
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

static struct fault_hit hit_of(const struct spoilt *s)
{
    static const enum fault_op ops[] = {[KVD_IO_READ] = FAULT_READ,
                                        [KVD_IO_WRITE] = FAULT_WRITE,
                                        [KVD_IO_FDATASYNC] = FAULT_FDATASYNC};
    return (struct fault_hit){.op = ops[s->orig->kind],
                              .path = s->path,
                              .bytes = s->orig->bytes,
                              .offset = s->orig->offset};
}

static void spoilt_end(struct spoilt *s, int result, uint64_t done_bytes)
{
    struct kvd_io_request *orig = s->orig;
    orig->result = result;
    orig->done_bytes = done_bytes;
    free(s->copy);
    free(s);
    orig->done(orig);
}

static void spoilt_run(struct spoilt *s, kvd_io_done_fn *done)
{
    struct kvd_io_request *run = &s->run;
    run->done = done;
    run->user = s;
    int err = s->io->inner->ops->submit(s->io->inner, &run, 1);
    KVD_ASSERT(err == 0); /* both engines take everything */
}

static void whole_done(struct kvd_io_request *run)
{
    struct spoilt *s = run->user;
    struct fault_hit hit = hit_of(s);
    if (s->fault.kind == FAULT_FLIP && s->orig->kind == KVD_IO_READ && run->result == 0) {
        flip(run->buffer, run->done_bytes, s->fault.bit);
    }
    if (s->fault.when == FAULT_AFTER) {
        act(&s->fault, &hit);
    }
    spoilt_end(s, run->result, run->done_bytes);
}

static void refused_done(struct kvd_io_request *run)
{
    struct spoilt *s = run->user;
    spoilt_end(s, s->fault.err, 0);
}

static void short_done(struct kvd_io_request *run)
{
    struct spoilt *s = run->user;
    spoilt_end(s, run->result ? run->result : s->fault.err, run->done_bytes);
}

/* Half is on the device: the test's moment, then the other half. */
static void half_done(struct kvd_io_request *run)
{
    struct spoilt *s = run->user;
    struct fault_hit hit = hit_of(s);
    act(&s->fault, &hit);
    s->run = *s->orig;
    spoilt_run(s, whole_done);
}

static void spoilt_refuse(struct spoilt *s)
{
    s->run = (struct kvd_io_request){.kind = KVD_IO_READ, .fd = -1, .buffer_index = -1};
    s->run.buffer = s->path;
    spoilt_run(s, refused_done);
}

static void spoilt_part(struct spoilt *s, uint64_t bytes, kvd_io_done_fn *done)
{
    uint64_t half = s->run.bytes / 2 / FAULT_ALIGN * FAULT_ALIGN;
    uint64_t part = bytes ? bytes : half;
    s->run.bytes = part < s->run.bytes ? part : s->run.bytes;
    spoilt_run(s, done);
}

static void spoilt_flip(struct spoilt *s)
{
    if (s->orig->kind == KVD_IO_WRITE) {
        s->copy =
            aligned_alloc(FAULT_ALIGN, (s->run.bytes + FAULT_ALIGN) / FAULT_ALIGN * FAULT_ALIGN);
        KVD_ASSERT(s->copy);
        memcpy(s->copy, s->run.buffer, s->run.bytes);
        flip(s->copy, s->run.bytes, s->fault.bit);
        s->run.buffer = s->copy;
        s->run.buffer_index = -1;
    }
    spoilt_run(s, whole_done);
}

static void spoilt_hold(struct spoilt *s)
{
    (void)pthread_mutex_lock(&program.mtx);
    struct armed *a = &program.armed[s->id];
    bool on = a->on;
    if (on) {
        kvd_list_push_back(&program.held, &s->link);
        a->held++;
        s->io->held++;
        (void)pthread_cond_broadcast(&program.changed);
    }
    (void)pthread_mutex_unlock(&program.mtx);
    if (!on) { /* released between the strike and here */
        spoilt_run(s, whole_done);
    }
}

static void spoilt_begin(struct spoilt *s)
{
    struct fault_hit hit = hit_of(s);
    bool acts = s->fault.kind == FAULT_KILL || s->fault.kind == FAULT_CALL;
    bool data = s->orig->kind != KVD_IO_FDATASYNC;
    if (s->fault.kind == FAULT_FAIL) {
        spoilt_refuse(s);
    } else if (s->fault.kind == FAULT_SHORT && data) {
        spoilt_part(s, s->fault.bytes, short_done);
    } else if (s->fault.kind == FAULT_FLIP) {
        spoilt_flip(s);
    } else if (s->fault.kind == FAULT_HOLD) {
        spoilt_hold(s);
    } else if (acts && s->fault.when == FAULT_MIDDLE && data) {
        spoilt_part(s, 0, half_done);
    } else {
        if (acts && s->fault.when != FAULT_AFTER) {
            act(&s->fault, &hit);
        }
        spoilt_run(s, whole_done);
    }
}

static struct wrapped *wrapped_of(struct kvd_io *io)
{
    return KVD_CONTAINER_OF(io, struct wrapped, base);
}

static void submit_one(struct wrapped *w, struct kvd_io_request *req)
{
    static const enum fault_op ops[] = {[KVD_IO_READ] = FAULT_READ,
                                        [KVD_IO_WRITE] = FAULT_WRITE,
                                        [KVD_IO_FDATASYNC] = FAULT_FDATASYNC};
    char path[FAULT_PATH_BYTES];
    struct fault fault;
    path_of_fd(req->fd, path);
    int id = req->fd < 0 ? -1 : strike(ops[req->kind], path, &fault);
    if (id < 0) {
        int err = w->inner->ops->submit(w->inner, &req, 1);
        KVD_ASSERT(err == 0);
        return;
    }
    struct spoilt *s = calloc(1, sizeof(*s));
    KVD_ASSERT(s);
    *s = (struct spoilt){.run = *req, .orig = req, .io = w, .fault = fault, .id = id};
    memcpy(s->path, path, sizeof(path));
    kvd_list_init(&s->link);
    spoilt_begin(s);
}

static int wrapped_submit(struct kvd_io *io, struct kvd_io_request *const *reqs, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        submit_one(wrapped_of(io), reqs[i]);
    }
    return 0;
}

static int wrapped_register_region(struct kvd_io *io, void *base, uint64_t bytes)
{
    struct wrapped *w = wrapped_of(io);
    return w->inner->ops->register_region(w->inner, base, bytes);
}

static void wrapped_destroy(struct kvd_io **io)
{
    struct wrapped *w = wrapped_of(*io);
    (void)pthread_mutex_lock(&program.mtx);
    while (w->held > 0) { /* as the real ones wait for the kernel */
        (void)pthread_cond_wait(&program.changed, &program.mtx);
    }
    (void)pthread_mutex_unlock(&program.mtx);
    kvd_io_close(&w->inner);
    free(w);
    *io = NULL;
}

/* ---- releasing ---- */

static void go_on(struct kvd_list *released)
{
    for (struct kvd_list *it; (it = kvd_list_pop_front(released));) {
        struct spoilt *s = KVD_CONTAINER_OF(it, struct spoilt, link);
        struct wrapped *w = s->io;
        if (s->fault.err) {
            spoilt_refuse(s);
        } else {
            spoilt_run(s, whole_done);
        }
        (void)pthread_mutex_lock(&program.mtx);
        w->held--; /* only now may the engine be closed: it has the request */
        (void)pthread_cond_broadcast(&program.changed);
        (void)pthread_mutex_unlock(&program.mtx);
    }
}

static void disarm_locked(int id, struct kvd_list *released)
{
    program.armed[id].on = false;
    program.armed[id].held = 0;
    kvd_list_foreach_safe (it, &program.held) {
        if (KVD_CONTAINER_OF(it, struct spoilt, link)->id == id) {
            kvd_list_remove(it);
            kvd_list_push_back(released, it);
        }
    }
    (void)pthread_cond_broadcast(&program.changed);
}

void fault_release(int id)
{
    struct kvd_list released;
    kvd_list_init(&released);
    (void)pthread_mutex_lock(&program.mtx);
    disarm_locked(id, &released);
    (void)pthread_mutex_unlock(&program.mtx);
    go_on(&released);
}

void fault_clear(void)
{
    struct kvd_list released;
    kvd_list_init(&released);
    (void)pthread_mutex_lock(&program.mtx);
    ready_locked();
    for (int i = 0; i < program.n; i++) {
        disarm_locked(i, &released);
    }
    program.n = 0;
    memset(program.asked, 0, sizeof(program.asked));
    (void)pthread_mutex_unlock(&program.mtx);
    go_on(&released);
}

/* ---- names, sizes, folders ---- */

static void hold_here(int id)
{
    (void)pthread_mutex_lock(&program.mtx);
    struct armed *a = &program.armed[id];
    uint64_t serial = a->serial;
    a->held += a->on;
    (void)pthread_cond_broadcast(&program.changed);
    while (a->on && a->serial == serial) {
        (void)pthread_cond_wait(&program.changed, &program.mtx);
    }
    (void)pthread_mutex_unlock(&program.mtx);
}

/* What comes before a file operation. 0, or what it fails with. ret_after: runs when it is done. */
static int file_begin(enum fault_op op, const char *path, struct fault *ret_after)
{
    struct fault fault;
    struct fault_hit hit = {.op = op, .path = path};
    *ret_after = (struct fault){0};
    int id = strike(op, path, &fault);
    if (id < 0 || fault.kind == FAULT_FLIP) {
        return 0;
    }
    if (fault.kind == FAULT_HOLD) {
        hold_here(id);
        return fault.err;
    }
    if (fault.kind == FAULT_FAIL || fault.kind == FAULT_SHORT) {
        return fault.err;
    }
    if (fault.when == FAULT_AFTER) {
        *ret_after = fault;
    } else {
        act(&fault, &hit);
    }
    return 0;
}

int fault_before(enum fault_op op, const char *path)
{
    struct fault after;
    return file_begin(op, path, &after);
}

static int file_end(enum fault_op op, const char *path, const struct fault *after, int result)
{
    struct fault_hit hit = {.op = op, .path = path};
    act(after, &hit);
    return result;
}

static int wrapped_open(struct kvd_io *io, int folder, const char *name, int flags)
{
    struct kvd_io *inner = wrapped_of(io)->inner;
    char path[FAULT_PATH_BYTES];
    struct fault after;
    path_of_name(folder, name, path);
    int err = file_begin(FAULT_OPEN, path, &after);
    return err ? err
               : file_end(FAULT_OPEN, path, &after, inner->files->open(inner, folder, name, flags));
}

static int wrapped_mkdir(struct kvd_io *io, int folder, const char *name)
{
    struct kvd_io *inner = wrapped_of(io)->inner;
    char path[FAULT_PATH_BYTES];
    struct fault after;
    path_of_name(folder, name, path);
    int err = file_begin(FAULT_MKDIR, path, &after);
    return err ? err
               : file_end(FAULT_MKDIR, path, &after, inner->files->mkdir(inner, folder, name));
}

static int wrapped_unlink(struct kvd_io *io, int folder, const char *name)
{
    struct kvd_io *inner = wrapped_of(io)->inner;
    char path[FAULT_PATH_BYTES];
    struct fault after;
    path_of_name(folder, name, path);
    int err = file_begin(FAULT_UNLINK, path, &after);
    return err ? err
               : file_end(FAULT_UNLINK, path, &after, inner->files->unlink(inner, folder, name));
}

static int wrapped_rename(struct kvd_io *io, int folder, const char *from, const char *to)
{
    struct kvd_io *inner = wrapped_of(io)->inner;
    char path[FAULT_PATH_BYTES];
    struct fault after;
    path_of_name(folder, to, path);
    int err = file_begin(FAULT_RENAME, path, &after);
    return err ? err
               : file_end(FAULT_RENAME, path, &after,
                          inner->files->rename(inner, folder, from, to));
}

static int wrapped_allocate(struct kvd_io *io, int fd, uint64_t bytes)
{
    struct kvd_io *inner = wrapped_of(io)->inner;
    char path[FAULT_PATH_BYTES];
    struct fault after;
    path_of_fd(fd, path);
    int err = file_begin(FAULT_ALLOCATE, path, &after);
    return err ? err
               : file_end(FAULT_ALLOCATE, path, &after, inner->files->allocate(inner, fd, bytes));
}

static int wrapped_truncate(struct kvd_io *io, int fd, uint64_t bytes)
{
    struct kvd_io *inner = wrapped_of(io)->inner;
    char path[FAULT_PATH_BYTES];
    struct fault after;
    path_of_fd(fd, path);
    int err = file_begin(FAULT_TRUNCATE, path, &after);
    return err ? err
               : file_end(FAULT_TRUNCATE, path, &after, inner->files->truncate(inner, fd, bytes));
}

static int wrapped_sync_folder(struct kvd_io *io, int folder)
{
    struct kvd_io *inner = wrapped_of(io)->inner;
    char path[FAULT_PATH_BYTES];
    struct fault after;
    path_of_fd(folder, path);
    int err = file_begin(FAULT_SYNC_FOLDER, path, &after);
    return err ? err
               : file_end(FAULT_SYNC_FOLDER, path, &after,
                          inner->files->sync_folder(inner, folder));
}

static const struct kvd_file_ops wrapped_files = {
    .open = wrapped_open,
    .mkdir = wrapped_mkdir,
    .unlink = wrapped_unlink,
    .rename = wrapped_rename,
    .allocate = wrapped_allocate,
    .truncate = wrapped_truncate,
    .sync_folder = wrapped_sync_folder,
};

/* ---- through the linker ---- */

int __real_kvd_io_open(const char *name, uint32_t depth, struct kvd_diag *diag,
                       struct kvd_io **ret);
int __wrap_kvd_io_open(const char *name, uint32_t depth, struct kvd_diag *diag,
                       struct kvd_io **ret);

/* record_io.c, where it is linked in: a recorder above the faults. */
__attribute__((weak)) void record_io_over(struct kvd_io **io);

static void begin(void)
{
    (void)pthread_mutex_lock(&program.mtx);
    ready_locked();
    (void)pthread_mutex_unlock(&program.mtx);
    fault_add_environment();
}

int __wrap_kvd_io_open(const char *name, uint32_t depth, struct kvd_diag *diag, struct kvd_io **ret)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct kvd_io *inner = NULL;
    (void)pthread_once(&once, begin);
    int err = __real_kvd_io_open(name, depth, diag, &inner);
    if (err) {
        return err;
    }
    struct wrapped *w = calloc(1, sizeof(*w));
    KVD_ASSERT(w);
    w->ops = (struct kvd_io_ops){.name = inner->ops->name,
                                 .destroy = wrapped_destroy,
                                 .submit = wrapped_submit,
                                 .register_region = wrapped_register_region};
    w->base = (struct kvd_io){.ops = &w->ops, .files = &wrapped_files};
    w->inner = inner;
    *ret = &w->base;
    if (record_io_over) {
        record_io_over(ret);
    }
    return 0;
}
