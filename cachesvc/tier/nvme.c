/*
 * The nvme tier: segments on a local file system, written by one thread (nvme_write.c), read by
 * whoever asks, through the shared I/O engine. README.md says what its promises are;
 * nvme_private.h its states and locks.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cachesvc/tier/nvme_private.h"
#include "proto/base/assert.h"
#include "proto/base/cleanup.h"
#include "proto/base/clock.h"

enum {
    SEGMENT_MIN_BYTES = 1 << 20,
    SEGMENT_MAX_BYTES = 1 << 30,
    SEGMENTS_A_CAP = 16,
    SEGMENTS_AT_LEAST = 2, /* one to write, one to lose */
    FETCH_CHUNK = 64,
    CHANGE_WAIT_S = 1,
};

static struct nvme *nvme_of(struct kvd_tier *tier)
{
    struct nvme *t = KVD_CONTAINER_OF(tier, struct nvme, base);
    KVD_MAGIC_CHECK(t, NVME_MAGIC);
    return t;
}

/* ---- store ---- */

static bool storable(const struct kvd_store_request *req)
{
    return req->extent_bytes > 0 && req->extent_bytes % KVD_ALIGN_BYTES == 0 &&
           req->extent_bytes <= UINT32_MAX && (uintptr_t)req->extent % KVD_ALIGN_BYTES == 0;
}

static int nvme_store(struct kvd_tier *tier, struct kvd_store_request *const *reqs, uint32_t n)
{
    struct nvme *t = nvme_of(tier);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!storable(reqs[i])) {
            return -KVD_E_BAD_REQUEST;
        }
        bytes += reqs[i]->extent_bytes;
    }
    int err = 0;
    (void)pthread_mutex_lock(&t->mtx);
    if (t->stopping) {
        err = -KVD_E_UNAVAILABLE;
    } else if (t->queue_bytes > 0 && t->queue_bytes + bytes > t->queue_max_bytes) {
        err = -KVD_E_BUSY; /* into an empty queue anything goes, or it would never go */
    } else {
        for (uint32_t i = 0; i < n; i++) {
            kvd_list_push_back(&t->queue, &reqs[i]->link);
        }
        t->queue_bytes += bytes;
        t->queued_seq += n;
        (void)pthread_cond_signal(&t->work);
    }
    (void)pthread_mutex_unlock(&t->mtx);
    return err;
}

/* ---- fetch ---- */

static void fetch_done(struct kvd_io_request *io)
{
    struct kvd_fetch_request *req = KVD_CONTAINER_OF(io, struct kvd_fetch_request, io);
    struct nvme *t = io->user;
    if (io->fd >= 0) { /* else the result was known before */
        req->result = io->result;
        kvd_nvme_reader_put(t, req->place.segment, io->done_bytes);
    }
    req->done(req); /* may free it */
    (void)pthread_mutex_lock(&t->mtx);
    t->fetches--;
    (void)pthread_cond_broadcast(&t->changed);
    (void)pthread_mutex_unlock(&t->mtx);
}

/* Finds the segment and its descriptor. A request that can't be read becomes an empty transfer, so
 * that its callback runs on the engine's thread like any other. */
static void prepare_fetch(struct nvme *t, struct kvd_fetch_request *req)
{
    int fd = -1;
    req->result = req->place.extent_bytes > 0 ? kvd_nvme_reader_get(t, req->place.segment, &fd)
                                              : -KVD_E_NOT_FOUND;
    req->io = (struct kvd_io_request){.kind = KVD_IO_READ,
                                      .fd = fd,
                                      .buffer_index = req->buffer_index,
                                      .buffer = req->extent,
                                      .bytes = req->place.extent_bytes,
                                      .offset = req->place.offset,
                                      .done = fetch_done,
                                      .user = t};
    if (fd < 0) {
        req->io.bytes = 0;
        req->io.buffer_index = -1;
    }
}

static int nvme_fetch(struct kvd_tier *tier, struct kvd_fetch_request *const *reqs, uint32_t n)
{
    struct nvme *t = nvme_of(tier);
    for (uint32_t first = 0; first < n; first += FETCH_CHUNK) {
        struct kvd_io_request *ios[FETCH_CHUNK];
        uint32_t m = n - first < FETCH_CHUNK ? n - first : FETCH_CHUNK;
        (void)pthread_mutex_lock(&t->mtx);
        t->fetches += m;
        (void)pthread_mutex_unlock(&t->mtx);
        for (uint32_t i = 0; i < m; i++) {
            prepare_fetch(t, reqs[first + i]);
            ios[i] = &reqs[first + i]->io;
        }
        int err = kvd_io_submit(t->io, ios, m);
        KVD_ASSERT(err == 0); /* both engines take everything */
    }
    return 0;
}

/* ---- the rest ---- */

static bool nvme_live(struct kvd_tier *tier, uint64_t segment, struct kvd_segment_info *ret_info)
{
    struct nvme *t = nvme_of(tier);
    (void)pthread_mutex_lock(&t->mtx);
    struct nvme_segment *seg = kvd_nvme_find_locked(t, segment);
    bool live = seg && kvd_nvme_is_live(seg) && !seg->lost;
    if (seg && ret_info) {
        *ret_info = seg->info;
    }
    (void)pthread_mutex_unlock(&t->mtx);
    return live;
}

static int reclaim_one(struct nvme *t, struct nvme_segment *seg,
                       bool (*expired)(const struct kvd_segment_info *info, void *user), void *user)
{
    int err = 0;
    if (seg->info.state == KVD_SEGMENT_OPEN && seg->appendable &&
        t->now_s >= seg->info.slice_s + seg->info.slice_len_s) {
        err = kvd_nvme_seal(t, seg);
    }
    if (err || !kvd_nvme_is_live(seg) || seg->appendable) {
        return err;
    }
    struct kvd_segment_info info = seg->info;
    return expired(&info, user) ? kvd_nvme_kill(t, seg, KVD_GONE_EXPIRED) : 0;
}

/* Whoever has it may be waiting for a device that hangs. */
static int lock_change(struct nvme *t)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += CHANGE_WAIT_S;
    return pthread_mutex_timedlock(&t->change, &until) ? -KVD_E_BUSY : 0;
}

static int nvme_reclaim(struct kvd_tier *tier, uint64_t now_s,
                        bool (*expired)(const struct kvd_segment_info *info, void *user),
                        void *user)
{
    struct nvme *t = nvme_of(tier);
    int first_err = lock_change(t);
    if (first_err) {
        return first_err;
    }
    if (now_s > t->now_s) {
        t->now_s = now_s;
    }
    first_err = kvd_nvme_unlink_dying(t);
    for (uint32_t i = 0; i < t->n_table; i++) {
        struct nvme_segment *seg = t->table[i];
        if (kvd_nvme_is_live(seg) && !seg->busy && !seg->newer) {
            int err = reclaim_one(t, seg, expired, user);
            first_err = first_err ? first_err : err;
        }
    }
    (void)pthread_mutex_unlock(&t->change);
    return first_err;
}

static int nvme_flush(struct kvd_tier *tier, uint64_t deadline_ns)
{
    struct nvme *t = nvme_of(tier);
    const struct timespec until = {.tv_sec = (time_t)(deadline_ns / KVD_NS_PER_S),
                                   .tv_nsec = (long)(deadline_ns % KVD_NS_PER_S)};
    int err = 0;
    (void)pthread_mutex_lock(&t->mtx);
    uint64_t target = t->queued_seq;
    while (t->finished_seq < target && err == 0) {
        err = pthread_cond_timedwait(&t->changed, &t->mtx, &until);
    }
    bool done = t->finished_seq >= target;
    (void)pthread_mutex_unlock(&t->mtx);
    return done ? 0 : -KVD_E_DEADLINE;
}

static void nvme_stat(struct kvd_tier *tier, struct kvd_tier_stat *ret)
{
    struct nvme *t = nvme_of(tier);
    memset(ret, 0, sizeof(*ret));
    (void)pthread_mutex_lock(&t->mtx);
    ret->cap_bytes = t->cap_bytes;
    ret->used_bytes = t->used_bytes;
    ret->queue_bytes = t->queue_bytes;
    ret->written_bytes = t->written_bytes;
    ret->read_bytes = t->read_bytes;
    ret->dropped_records = t->dropped_records;
    ret->failed_writes = t->failed_writes;
    ret->reads = t->fetches;
    ret->foreign_files = t->foreign_files;
    ret->foreign_bytes = t->foreign_bytes;
    ret->newer_files = t->newer_files;
    ret->newer_bytes = t->newer_bytes;
    ret->state = t->folder_gone ? "its folder was removed: nothing can be written there; restart "
                                  "kvdepotd"
                 : t->no_space  ? "no space left on the device"
                 : t->undead    ? "a file can't be removed, so no room can be made; check the "
                                  "folder's rights and the log"
                 : t->unsealed  ? "ok; a segment could not be ended, the next start reads it "
                                  "whole; check the device"
                 : t->foreign_files ? "ok; some files are not ours and left alone"
                 : t->newer_files   ? "ok; some files are of a newer version and left alone"
                 : t->buffered      ? "ok; buffered, no direct I/O here"
                                    : "ok";
    for (uint32_t i = 0; i < t->n_table; i++) {
        if (kvd_nvme_is_live(t->table[i])) {
            ret->segments++;
            ret->records += t->table[i]->info.records;
        }
    }
    (void)pthread_mutex_unlock(&t->mtx);
}

static void nvme_scenario_bytes(struct kvd_tier *tier, uint64_t *per, uint32_t n)
{
    struct nvme *t = nvme_of(tier);
    (void)pthread_mutex_lock(&t->mtx);
    for (uint32_t i = 0; i < t->n_table; i++) {
        const struct kvd_segment_info *info = &t->table[i]->info;
        if (kvd_nvme_is_live(t->table[i]) && info->scenario < n) {
            per[info->scenario] += info->bytes;
        }
    }
    (void)pthread_mutex_unlock(&t->mtx);
}

/* ---- open and close ---- */

static void seal_all(struct nvme *t)
{
    (void)pthread_mutex_lock(&t->change);
    for (uint32_t i = 0; i < t->n_table; i++) {
        if (t->table[i]->appendable) {
            (void)kvd_nvme_seal(t, t->table[i]);
        }
    }
    (void)pthread_mutex_unlock(&t->change);
}

static void stop(struct nvme *t)
{
    (void)pthread_mutex_lock(&t->mtx);
    t->stopping = true;
    (void)pthread_cond_signal(&t->work);
    (void)pthread_mutex_unlock(&t->mtx);
    if (t->writer_started) {
        (void)pthread_join(t->writer, NULL);
        seal_all(t);
    }
    (void)pthread_mutex_lock(&t->mtx);
    while (t->fetches > 0) {
        (void)pthread_cond_wait(&t->changed, &t->mtx);
    }
    (void)pthread_mutex_unlock(&t->mtx);
}

static void nvme_close(struct kvd_tier **tier)
{
    if (!tier || !*tier) {
        return;
    }
    struct nvme *t = nvme_of(*tier);
    stop(t);
    for (uint32_t i = 0; i < t->n_table; i++) {
        if (t->table[i]->fd >= 0) {
            (void)close(t->table[i]->fd);
        }
        free(t->table[i]->rows);
        free(t->table[i]);
    }
    free(t->table);
    kvd_nvme_batch_destroy(&t->batch);
    if (t->root_fd >= 0) {
        (void)close(t->root_fd);
    }
    (void)pthread_cond_destroy(&t->changed);
    (void)pthread_cond_destroy(&t->work);
    (void)pthread_mutex_destroy(&t->mtx);
    (void)pthread_mutex_destroy(&t->change);
    KVD_MAGIC_CLEAR(t);
    free(t);
    *tier = NULL;
}

/* Bytes of a segment: as asked, or so that the cap holds SEGMENTS_A_CAP of them, all included. */
static int choose_segment_bytes(struct nvme *t, uint64_t asked, struct kvd_diag *diag)
{
    uint64_t share = t->cap_bytes / SEGMENTS_A_CAP;
    uint64_t extra = kvd_nvme_open_charge(share) - share;
    uint64_t bytes = asked                               ? asked
                     : share < SEGMENT_MIN_BYTES + extra ? SEGMENT_MIN_BYTES
                     : share > SEGMENT_MAX_BYTES         ? SEGMENT_MAX_BYTES
                                                         : share - extra;
    t->segment_bytes = bytes / KVD_ALIGN_BYTES * KVD_ALIGN_BYTES;
    uint64_t least = kvd_nvme_open_charge(t->segment_bytes) * SEGMENTS_AT_LEAST;
    if (t->segment_bytes < 4 * KVD_ALIGN_BYTES || least > t->cap_bytes) {
        return kvd_fail(diag, -KVD_E_CONFIG,
                        "nvme: a cap of %" PRIu64 " bytes holds less than two segments of %" PRIu64
                        ": give a cap of at least %" PRIu64 ", or smaller segments",
                        t->cap_bytes, t->segment_bytes, least);
    }
    return 0;
}

static int open_folder(struct nvme *t, const char *path, struct kvd_diag *diag)
{
    t->root_fd = t->io->files->open(t->io, AT_FDCWD, path, O_RDONLY | O_DIRECTORY);
    if (t->root_fd < 0 || faccessat(t->root_fd, ".", R_OK | W_OK | X_OK, AT_EACCESS) != 0) {
        int err = t->root_fd < 0 ? t->root_fd : -errno;
        return kvd_fail(diag, err,
                        "nvme: folder %s can't be used: %s: it must be a folder that "
                        "this user may read and write",
                        path, kvd_strerror(err));
    }
    return 0;
}

static void init_locks(struct nvme *t)
{
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&t->change, NULL);
    (void)pthread_mutex_init(&t->mtx, NULL);
    (void)pthread_cond_init(&t->work, NULL);
    (void)pthread_cond_init(&t->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
}

static struct nvme *create(const struct kvd_tier_options *o)
{
    struct nvme *t = calloc(1, sizeof(*t));
    if (!t) {
        return NULL;
    }
    KVD_MAGIC_SET(t, NVME_MAGIC);
    t->base.ops = &kvd_tier_nvme;
    t->root_fd = -1;
    t->cap_bytes = o->cap_bytes;
    t->queue_max_bytes = o->queue_bytes;
    t->epoch = o->epoch;
    t->seed = o->seed;
    t->store = o->store;
    t->scenarios = o->scenarios;
    t->io = o->io;
    t->events = o->events;
    t->log = o->log;
    t->next_segment = o->next_segment ? o->next_segment : 1;
    kvd_list_init(&t->queue);
    init_locks(t);
    return t;
}

static int start(struct nvme *t, const struct kvd_tier_options *o, struct kvd_diag *diag)
{
    int err = choose_segment_bytes(t, o->segment_bytes, diag);
    err = err ? err : open_folder(t, o->path, diag);
    err = err ? err : kvd_nvme_recover(t, o->known, o->n_known, diag);
    if (err) {
        return err;
    }
    t->batch = kvd_nvme_batch_create();
    err = t->batch ? -pthread_create(&t->writer, NULL, kvd_nvme_writer_thread, t) : -ENOMEM;
    t->writer_started = err == 0;
    return err ? kvd_fail(diag, err, "nvme: can't start its thread: %s", kvd_strerror(err)) : 0;
}

static int nvme_open(const struct kvd_tier_options *options, struct kvd_diag *diag,
                     struct kvd_tier **ret)
{
    KVD_ASSERT(options->io && options->scenarios && options->events.segment_changed &&
               options->events.record_found);
    struct nvme *t = create(options);
    if (!t) {
        return kvd_fail(diag, -ENOMEM, "nvme: no memory");
    }
    int err = start(t, options, diag);
    if (err) {
        struct kvd_tier *tier = &t->base;
        nvme_close(&tier);
        return err;
    }
    *ret = &t->base;
    return 0;
}

const struct kvd_tier_ops kvd_tier_nvme = {
    .name = "nvme",
    .open = nvme_open,
    .store = nvme_store,
    .fetch = nvme_fetch,
    .live = nvme_live,
    .reclaim = nvme_reclaim,
    .flush = nvme_flush,
    .records = kvd_nvme_records,
    .stat = nvme_stat,
    .scenario_bytes = nvme_scenario_bytes,
    .close = nvme_close,
};
