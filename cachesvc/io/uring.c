/*
 * File I/O by io_uring. Any thread submits, under the engine's lock; one completion thread reaps
 * and runs the callbacks. At most `depth` requests are in the ring; the others wait in a list, from
 * which the completion thread refills the ring, so that submit never waits and a callback may
 * submit.
 *
 * Registered regions lie in a sparse table of the ring, filled one by one.
 */
#include <errno.h>
#include <liburing.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cachesvc/io/io.h"
#include "cachesvc/io/step.h"
#include "proto/base/assert.h"
#include "proto/base/clock.h"

enum {
    URING_MAGIC = 0x6b757267,
    URING_REGIONS = 1024,
    URING_REAP_BATCH = 64,
    /* How long the completion thread sleeps at most; it looks after what the kernel refused to take
     * for the moment. */
    URING_WAIT_MS = 1000,
    URING_RETRY_MS = 5,
};

struct uring {
    struct kvd_io base;
    uint32_t magic;
    uint32_t depth;
    pthread_t thread;
    pthread_mutex_t mtx;     /* the submission queue of the ring, and: */
    struct io_uring ring;    /* its completion queue is the completion thread's */
    struct kvd_list waiting; /* lock: mtx */
    uint32_t in_flight;      /* lock: mtx; in the ring */
    bool stopping;           /* lock: mtx */
    pthread_mutex_t regions_mtx;
    bool regions_usable; /* constant */
    int n_regions;       /* lock: regions_mtx */
};

static struct uring *uring_of(struct kvd_io *io)
{
    struct uring *u = KVD_CONTAINER_OF(io, struct uring, base);
    KVD_MAGIC_CHECK(u, URING_MAGIC);
    return u;
}

static void prepare(struct io_uring_sqe *sqe, struct kvd_io_request *req)
{
    if (req->kind == KVD_IO_FDATASYNC) {
        io_uring_prep_fsync(sqe, req->fd, IORING_FSYNC_DATASYNC);
        io_uring_sqe_set_data(sqe, req);
        return;
    }
    uint64_t at = req->offset + req->done_bytes;
    void *buffer = kvd_io_step_buffer(req);
    uint32_t bytes = kvd_io_step_bytes(req);
    bool fixed = req->buffer_index >= 0;
    if (req->kind == KVD_IO_READ) {
        if (fixed) {
            io_uring_prep_read_fixed(sqe, req->fd, buffer, bytes, at, req->buffer_index);
        } else {
            io_uring_prep_read(sqe, req->fd, buffer, bytes, at);
        }
    } else if (fixed) {
        io_uring_prep_write_fixed(sqe, req->fd, buffer, bytes, at, req->buffer_index);
    } else {
        io_uring_prep_write(sqe, req->fd, buffer, bytes, at);
    }
    io_uring_sqe_set_data(sqe, req);
}

/* Moves what waits into the ring, as far as there is room, and hands it to the kernel. What the
 * kernel doesn't take now (-EAGAIN, -EBUSY) stays in the ring; the completion thread tries again.
 */
static void pump_locked(struct uring *u)
{
    while (u->in_flight < u->depth && !kvd_list_empty(&u->waiting)) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
        if (!sqe) {
            break;
        }
        struct kvd_list *link = kvd_list_pop_front(&u->waiting);
        prepare(sqe, KVD_CONTAINER_OF(link, struct kvd_io_request, link));
        u->in_flight++;
    }
    if (io_uring_sq_ready(&u->ring) > 0) {
        (void)io_uring_submit(&u->ring);
    }
}

static int uring_submit(struct kvd_io *io, struct kvd_io_request *const *reqs, uint32_t n)
{
    struct uring *u = uring_of(io);
    (void)pthread_mutex_lock(&u->mtx);
    for (uint32_t i = 0; i < n; i++) {
        kvd_io_step_begin(reqs[i]);
        kvd_list_push_back(&u->waiting, &reqs[i]->link);
    }
    pump_locked(u);
    (void)pthread_mutex_unlock(&u->mtx);
    return 0;
}

/* Waits until something has completed, or for the time that is due. */
static void wait_for_completion(struct uring *u)
{
    (void)pthread_mutex_lock(&u->mtx);
    bool refused = io_uring_sq_ready(&u->ring) > 0;
    (void)pthread_mutex_unlock(&u->mtx);
    uint32_t ms = refused ? URING_RETRY_MS : URING_WAIT_MS;
    struct __kernel_timespec ts = {.tv_sec = ms / 1000,
                                   .tv_nsec = (long long)(ms % 1000) * KVD_NS_PER_MS};
    struct io_uring_cqe *cqe;
    (void)io_uring_wait_cqe_timeout(&u->ring, &cqe, &ts);
}

/* Takes a batch of completions, adds finished requests to `finished` and queues again what needs
 * another step. Returns whether the thread is to go on. */
static bool reap(struct uring *u, struct kvd_list *finished)
{
    struct io_uring_cqe *cqes[URING_REAP_BATCH];
    unsigned n = io_uring_peek_batch_cqe(&u->ring, cqes, URING_REAP_BATCH);
    (void)pthread_mutex_lock(&u->mtx);
    for (unsigned i = 0; i < n; i++) {
        struct kvd_io_request *req = io_uring_cqe_get_data(cqes[i]);
        if (!req) {
            continue; /* a call to wake up */
        }
        u->in_flight--;
        if (kvd_io_step_end(req, cqes[i]->res)) {
            kvd_list_push_back(finished, &req->link);
        } else {
            kvd_list_push_front(&u->waiting, &req->link);
        }
    }
    io_uring_cq_advance(&u->ring, n);
    pump_locked(u);
    bool idle = u->in_flight == 0 && kvd_list_empty(&u->waiting) && kvd_list_empty(finished);
    bool go_on = !(u->stopping && idle);
    (void)pthread_mutex_unlock(&u->mtx);
    return go_on;
}

static void *completion_thread(void *user)
{
    struct uring *u = user;
    struct kvd_list finished;
    kvd_list_init(&finished);
    while (reap(u, &finished)) {
        if (kvd_list_empty(&finished)) {
            wait_for_completion(u);
            continue;
        }
        struct kvd_list *link;
        while ((link = kvd_list_pop_front(&finished)) != NULL) {
            struct kvd_io_request *req = KVD_CONTAINER_OF(link, struct kvd_io_request, link);
            req->done(req);
        }
    }
    return NULL;
}

/* Ends the thread: it goes when nothing is in flight; the empty request wakes it. */
static void stop_thread(struct uring *u)
{
    (void)pthread_mutex_lock(&u->mtx);
    u->stopping = true;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    if (sqe) {
        io_uring_prep_nop(sqe);
        io_uring_sqe_set_data(sqe, NULL);
        (void)io_uring_submit(&u->ring);
    } /* else the ring is full of work, whose completion wakes it as well */
    (void)pthread_mutex_unlock(&u->mtx);
    (void)pthread_join(u->thread, NULL);
}

static void uring_destroy(struct kvd_io **io)
{
    if (!io || !*io) {
        return;
    }
    struct uring *u = uring_of(*io);
    stop_thread(u);
    io_uring_queue_exit(&u->ring);
    (void)pthread_mutex_destroy(&u->mtx);
    (void)pthread_mutex_destroy(&u->regions_mtx);
    KVD_MAGIC_CLEAR(u);
    free(u);
    *io = NULL;
}

static int open_ring(struct uring *u, struct kvd_diag *diag)
{
    int err = io_uring_queue_init(u->depth + 1, &u->ring, 0); /* one more for the wake-up */
    if (err) {
        return kvd_fail(diag, err,
                        "io_uring: the kernel refuses a ring (%s): allow it in the container and "
                        "in /proc/sys/kernel/io_uring_disabled, or use the threads engine",
                        kvd_strerror(err));
    }
    if (!(u->ring.features & IORING_FEAT_EXT_ARG)) {
        io_uring_queue_exit(&u->ring);
        return kvd_fail(diag, -ENOTSUP,
                        "io_uring: the kernel is older than 5.11: use the threads "
                        "engine");
    }
    u->regions_usable = io_uring_register_buffers_sparse(&u->ring, URING_REGIONS) == 0;
    return 0;
}

static int uring_create(uint32_t depth, struct kvd_diag *diag, struct kvd_io **ret)
{
    struct uring *u = calloc(1, sizeof(*u));
    if (!u) {
        return kvd_fail(diag, -ENOMEM, "io_uring: no memory");
    }
    u->base.ops = &kvd_io_uring;
    u->base.files = &kvd_files_plain;
    u->depth = depth;
    kvd_list_init(&u->waiting);
    int err = open_ring(u, diag);
    if (err) {
        free(u);
        return err;
    }
    (void)pthread_mutex_init(&u->mtx, NULL);
    (void)pthread_mutex_init(&u->regions_mtx, NULL);
    KVD_MAGIC_SET(u, URING_MAGIC);
    err = -pthread_create(&u->thread, NULL, completion_thread, u);
    if (err) {
        io_uring_queue_exit(&u->ring);
        free(u);
        return kvd_fail(diag, err, "io_uring: can't start a thread (%s)", kvd_strerror(err));
    }
    *ret = &u->base;
    return 0;
}

static int uring_register_region(struct kvd_io *io, void *base, uint64_t bytes)
{
    struct uring *u = uring_of(io);
    if (!u->regions_usable) {
        return -ENOTSUP;
    }
    if (bytes == 0 || bytes > KVD_IO_STEP_MAX) {
        return -EINVAL;
    }
    (void)pthread_mutex_lock(&u->regions_mtx);
    int ret = -ENOSPC;
    if (u->n_regions < URING_REGIONS) {
        struct iovec iov = {.iov_base = base, .iov_len = bytes};
        __u64 tag = 0;
        ret = io_uring_register_buffers_update_tag(&u->ring, (unsigned)u->n_regions, &iov, &tag, 1);
        ret = ret == 1 ? u->n_regions++ : ret < 0 ? ret : -EIO;
    }
    (void)pthread_mutex_unlock(&u->regions_mtx);
    return ret;
}

const struct kvd_io_ops kvd_io_uring = {
    .name = "io_uring",
    .create = uring_create,
    .destroy = uring_destroy,
    .submit = uring_submit,
    .register_region = uring_register_region,
};
