/*
 * File I/O by threads with pread and pwrite, for places where io_uring is forbidden. Workers take
 * requests from one queue; one completion thread runs the callbacks, so that they never overlap,
 * as with io_uring.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "cachesvc/io/io.h"
#include "cachesvc/io/step.h"
#include "proto/base/assert.h"

enum { THREADS_MAGIC = 0x6b746872, THREADS_WORKERS_MAX = 32 };

struct threads {
    struct kvd_io base;
    uint32_t magic;
    uint32_t n_workers; /* started */
    bool completer_started;
    pthread_t workers[THREADS_WORKERS_MAX];
    pthread_t completer;
    pthread_mutex_t mtx;
    pthread_cond_t work;      /* something waits, or the end */
    pthread_cond_t completed; /* something is finished, or the end */
    struct kvd_list waiting;  /* lock: mtx */
    struct kvd_list finished; /* lock: mtx */
    uint32_t unfinished;      /* lock: mtx; submitted, callback hasn't returned */
    bool stopping;            /* lock: mtx */
};

static struct threads *threads_of(struct kvd_io *io)
{
    struct threads *t = KVD_CONTAINER_OF(io, struct threads, base);
    KVD_MAGIC_CHECK(t, THREADS_MAGIC);
    return t;
}

static int64_t one_step(const struct kvd_io_request *req)
{
    off_t at = (off_t)(req->offset + req->done_bytes);
    ssize_t n = req->kind == KVD_IO_FDATASYNC ? fdatasync(req->fd)
                : req->kind == KVD_IO_READ
                    ? pread(req->fd, kvd_io_step_buffer(req), kvd_io_step_bytes(req), at)
                    : pwrite(req->fd, kvd_io_step_buffer(req), kvd_io_step_bytes(req), at);
    return n < 0 ? -errno : n;
}

static void *worker_thread(void *user)
{
    struct threads *t = user;
    (void)pthread_mutex_lock(&t->mtx);
    for (;;) {
        struct kvd_list *link = kvd_list_pop_front(&t->waiting);
        if (!link) {
            if (t->stopping && t->unfinished == 0) {
                break;
            }
            (void)pthread_cond_wait(&t->work, &t->mtx);
            continue;
        }
        (void)pthread_mutex_unlock(&t->mtx);
        struct kvd_io_request *req = KVD_CONTAINER_OF(link, struct kvd_io_request, link);
        while (!kvd_io_step_end(req, one_step(req))) {
        }
        (void)pthread_mutex_lock(&t->mtx);
        kvd_list_push_back(&t->finished, &req->link);
        (void)pthread_cond_signal(&t->completed);
    }
    (void)pthread_mutex_unlock(&t->mtx);
    return NULL;
}

static void *completion_thread(void *user)
{
    struct threads *t = user;
    (void)pthread_mutex_lock(&t->mtx);
    for (;;) {
        struct kvd_list *link = kvd_list_pop_front(&t->finished);
        if (!link) {
            if (t->stopping && t->unfinished == 0) {
                break;
            }
            (void)pthread_cond_wait(&t->completed, &t->mtx);
            continue;
        }
        (void)pthread_mutex_unlock(&t->mtx);
        struct kvd_io_request *req = KVD_CONTAINER_OF(link, struct kvd_io_request, link);
        req->done(req);
        (void)pthread_mutex_lock(&t->mtx);
        t->unfinished--;
    }
    (void)pthread_cond_broadcast(&t->work); /* the workers end with the last callback */
    (void)pthread_mutex_unlock(&t->mtx);
    return NULL;
}

static int threads_submit(struct kvd_io *io, struct kvd_io_request *const *reqs, uint32_t n)
{
    struct threads *t = threads_of(io);
    (void)pthread_mutex_lock(&t->mtx);
    for (uint32_t i = 0; i < n; i++) {
        kvd_io_step_begin(reqs[i]);
        kvd_list_push_back(&t->waiting, &reqs[i]->link);
        (void)pthread_cond_signal(&t->work);
    }
    t->unfinished += n;
    (void)pthread_mutex_unlock(&t->mtx);
    return 0;
}

static void threads_destroy(struct kvd_io **io)
{
    if (!io || !*io) {
        return;
    }
    struct threads *t = threads_of(*io);
    (void)pthread_mutex_lock(&t->mtx);
    t->stopping = true;
    (void)pthread_cond_broadcast(&t->work);
    (void)pthread_cond_broadcast(&t->completed);
    (void)pthread_mutex_unlock(&t->mtx);
    if (t->completer_started) {
        (void)pthread_join(t->completer, NULL);
    }
    for (uint32_t i = 0; i < t->n_workers; i++) {
        (void)pthread_join(t->workers[i], NULL);
    }
    (void)pthread_cond_destroy(&t->completed);
    (void)pthread_cond_destroy(&t->work);
    (void)pthread_mutex_destroy(&t->mtx);
    KVD_MAGIC_CLEAR(t);
    free(t);
    *io = NULL;
}

static int start_threads(struct threads *t, uint32_t workers)
{
    int err = -pthread_create(&t->completer, NULL, completion_thread, t);
    t->completer_started = err == 0;
    while (err == 0 && t->n_workers < workers) {
        err = -pthread_create(&t->workers[t->n_workers], NULL, worker_thread, t);
        t->n_workers += err == 0;
    }
    return t->n_workers > 0 && t->completer_started ? 0 : err;
}

static int threads_create(uint32_t depth, struct kvd_diag *diag, struct kvd_io **ret)
{
    struct threads *t = calloc(1, sizeof(*t));
    if (!t) {
        return kvd_fail(diag, -ENOMEM, "io threads: no memory");
    }
    t->base.ops = &kvd_io_threads;
    t->base.files = &kvd_files_plain;
    KVD_MAGIC_SET(t, THREADS_MAGIC);
    (void)pthread_mutex_init(&t->mtx, NULL);
    (void)pthread_cond_init(&t->work, NULL);
    (void)pthread_cond_init(&t->completed, NULL);
    kvd_list_init(&t->waiting);
    kvd_list_init(&t->finished);
    int err = start_threads(t, depth < THREADS_WORKERS_MAX ? depth : THREADS_WORKERS_MAX);
    if (err) {
        struct kvd_io *io = &t->base;
        threads_destroy(&io);
        return kvd_fail(diag, err, "io threads: can't start a thread (%s)", kvd_strerror(err));
    }
    *ret = &t->base;
    return 0;
}

static int threads_register_region(struct kvd_io *io, void *base, uint64_t bytes)
{
    (void)io;
    (void)base;
    (void)bytes;
    return -ENOTSUP;
}

const struct kvd_io_ops kvd_io_threads = {
    .name = "threads",
    .create = threads_create,
    .destroy = threads_destroy,
    .submit = threads_submit,
    .register_region = threads_register_region,
};
