/* What doesn't depend on the engine: opening by name, waiting for one request, and the rules for
 * short and interrupted transfers. */
#include "cachesvc/io/io.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "cachesvc/io/step.h"
#include "proto/base/assert.h"
#include "proto/base/protect.h"

/* Interrupted steps in a row that are tried again; a request that never moves must end. */
enum { STEP_RETRIES_MAX = 1000, DIRECT_ALIGN = 4096 };

static const struct kvd_io_ops *const engines[] = {&kvd_io_uring, &kvd_io_threads};
enum { ENGINES = sizeof(engines) / sizeof(engines[0]) };

static int open_auto(uint32_t depth, struct kvd_diag *diag, struct kvd_io **ret)
{
    int err = 0;
    for (unsigned i = 0; i < ENGINES; i++) {
        err = engines[i]->create(depth, diag, ret);
        if (err == 0) {
            return 0;
        }
    }
    return err;
}

int kvd_io_open(const char *name, uint32_t depth, struct kvd_diag *diag, struct kvd_io **ret)
{
    if (depth < 1 || depth > KVD_IO_DEPTH_MAX) {
        return kvd_fail(diag, -EINVAL, "io: depth is %u, must be 1 to %d", depth, KVD_IO_DEPTH_MAX);
    }
    if (strcmp(name, "auto") == 0) {
        return open_auto(depth, diag, ret);
    }
    for (unsigned i = 0; i < ENGINES; i++) {
        if (strcmp(name, engines[i]->name) == 0) {
            return engines[i]->create(depth, diag, ret);
        }
    }
    return kvd_fail(diag, -EINVAL, "io: no engine \"%s\": give auto, io_uring or threads", name);
}

void kvd_io_close(struct kvd_io **io)
{
    if (io && *io) {
        (*io)->ops->destroy(io);
    }
}

struct waiter {
    pthread_mutex_t mtx;
    pthread_cond_t cond;
    bool done; /* lock: mtx */
};

static void waiter_done(struct kvd_io_request *req)
{
    struct waiter *w = req->user;
    (void)pthread_mutex_lock(&w->mtx);
    w->done = true;
    /* under the lock: the waiter's memory is gone as soon as it sees `done` */
    (void)pthread_cond_signal(&w->cond);
    (void)pthread_mutex_unlock(&w->mtx);
}

int kvd_io_run(struct kvd_io *io, struct kvd_io_request *req)
{
    struct waiter w = {.mtx = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    req->done = waiter_done;
    req->user = &w;
    int err = kvd_io_submit(io, &req, 1);
    if (err) {
        return err;
    }
    (void)pthread_mutex_lock(&w.mtx);
    while (!w.done) {
        (void)pthread_cond_wait(&w.cond, &w.mtx);
    }
    (void)pthread_mutex_unlock(&w.mtx);
    (void)pthread_cond_destroy(&w.cond);
    (void)pthread_mutex_destroy(&w.mtx);
    return req->result;
}

int kvd_io_transfer(struct kvd_io *io, enum kvd_io_kind kind, int fd, void *buffer, uint64_t bytes,
                    uint64_t offset)
{
    struct kvd_io_request req = {.kind = kind,
                                 .fd = fd,
                                 .buffer_index = -1,
                                 .buffer = buffer,
                                 .bytes = bytes,
                                 .offset = offset};
    return kvd_io_run(io, &req);
}

void kvd_io_step_begin(struct kvd_io_request *req)
{
    req->result = 0;
    req->done_bytes = 0;
    kvd_list_init(&req->link);
}

static bool finish(struct kvd_io_request *req, int result)
{
    req->result = result;
    return true;
}

bool kvd_io_step_end(struct kvd_io_request *req, int64_t outcome)
{
    /* io_uring may cancel what a thread has submitted when that thread ends; nobody here cancels.
     */
    if (outcome == -EINTR || outcome == -EAGAIN || outcome == -ECANCELED) {
        return ++req->result > STEP_RETRIES_MAX ? finish(req, (int)outcome) : false;
    }
    if (req->kind == KVD_IO_FDATASYNC || req->bytes == 0) {
        return finish(req, outcome < 0 ? (int)outcome : 0);
    }
    if (outcome < 0) {
        /* After a read that ended in the middle of a page, going on is refused by a file that is
         * open for direct I/O: that was the end of the file. */
        bool past_end =
            outcome == -EINVAL && req->kind == KVD_IO_READ && req->done_bytes % DIRECT_ALIGN != 0;
        return finish(req, past_end ? -KVD_E_IO : (int)outcome);
    }
    if (outcome == 0) {
        return finish(req, KVD_PROTECT(FILE_ENDS_TOO_EARLY) ? -KVD_E_IO : 0);
    }
    req->done_bytes += (uint64_t)outcome;
    KVD_ASSERT(req->done_bytes <= req->bytes);
    req->result = 0;
    return req->done_bytes == req->bytes;
}
