/*
 * Writing down. The writer thread takes what waits, in order, up to a batch's size; gives every
 * record its place; writes them all at once; then makes each segment that it touched durable once;
 * then reports. A record's place is known to nobody before it is durable.
 *
 * What can't have a place because only segments of this very batch could make room for it ends the
 * batch; it is the first of the next, when nothing is in its way.
 *
 * A write that fails leaves a hole. A scan would stop there, so the segment gets its footer at
 * once, which lists what is good, and only then is reported what lies behind the hole. The SEALED
 * row comes last: it says that all in the segment has been reported.
 */
#include <errno.h>
#include <stdlib.h>

#include "cachesvc/tier/nvme_private.h"
#include "proto/base/assert.h"
#include "proto/base/protect.h"

struct item {
    struct kvd_io_request io;
    struct kvd_store_request *req;
    struct nvme_segment *seg;
    struct nvme_batch *batch;
};

struct touched {
    struct kvd_io_request io;
    struct nvme_segment *seg;
    struct nvme_batch *batch;
};

struct nvme_batch {
    struct item items[NVME_BATCH_RECORDS];
    uint32_t n_items;
    struct touched touched[KVD_SCENARIOS_MAX]; /* one open segment a scenario */
    uint32_t n_touched;
    pthread_mutex_t mtx;
    pthread_cond_t cond;
    uint32_t in_flight; /* lock: mtx */
};

struct nvme_batch *kvd_nvme_batch_create(void)
{
    struct nvme_batch *b = calloc(1, sizeof(*b));
    if (b) {
        (void)pthread_mutex_init(&b->mtx, NULL);
        (void)pthread_cond_init(&b->cond, NULL);
    }
    return b;
}

void kvd_nvme_batch_destroy(struct nvme_batch **batch)
{
    if (batch && *batch) {
        (void)pthread_cond_destroy(&(*batch)->cond);
        (void)pthread_mutex_destroy(&(*batch)->mtx);
        free(*batch);
        *batch = NULL;
    }
}

/* Moves the next requests from the queue into the batch. mtx is held. */
static void take_locked(struct nvme *t, struct nvme_batch *b)
{
    uint64_t bytes = 0;
    b->n_items = 0;
    b->n_touched = 0;
    while (b->n_items < NVME_BATCH_RECORDS && !kvd_list_empty(&t->queue)) {
        struct kvd_store_request *req =
            KVD_CONTAINER_OF(t->queue.next, struct kvd_store_request, link);
        if (b->n_items > 0 && bytes + req->extent_bytes > NVME_BATCH_BYTES) {
            break;
        }
        kvd_list_remove(&req->link);
        bytes += req->extent_bytes;
        b->items[b->n_items++] = (struct item){.req = req, .batch = b};
    }
}

/* Puts items from `first` on back to the head of the queue, in their order. */
static void put_back(struct nvme *t, struct nvme_batch *b, uint32_t first)
{
    (void)pthread_mutex_lock(&t->mtx);
    for (uint32_t i = b->n_items; i > first; i--) {
        kvd_list_push_front(&t->queue, &b->items[i - 1].req->link);
    }
    (void)pthread_mutex_unlock(&t->mtx);
    b->n_items = first;
}

static bool has_room(const struct nvme *t, const struct nvme_segment *seg, uint64_t extent_bytes)
{
    uint64_t footer = kvd_segment_footer_bytes(seg->n_placed + 1);
    return seg->end + extent_bytes + footer <= t->segment_bytes;
}

/* The segment for a record: the scenario's open one, or a new one in its stead. */
static int segment_for(struct nvme *t, const struct kvd_store_request *req,
                       struct nvme_segment **ret)
{
    const struct kvd_scenario *scenario = kvd_scenario_by_id(t->scenarios, req->scenario);
    if (!scenario || scenario->slice_s == 0 || scenario->slice_s > UINT32_MAX) {
        return -KVD_E_UNKNOWN_SCENARIO;
    }
    if (KVD_SEGMENT_HEADER_BYTES + req->extent_bytes + kvd_segment_footer_bytes(1) >
        t->segment_bytes) {
        return -KVD_E_TOO_LONG;
    }
    uint64_t slice_s = t->now_s - t->now_s % scenario->slice_s;
    struct nvme_segment *seg = kvd_nvme_appendable(t, req->scenario);
    if (seg && (seg->info.slice_s != slice_s || !has_room(t, seg, req->extent_bytes))) {
        if (seg->busy) {
            return -KVD_E_BUSY;
        }
        (void)kvd_nvme_seal(t, seg); /* logged; the segment isn't appended to any more either way */
        seg = NULL;
    }
    int err = seg ? 0 : kvd_nvme_create(t, scenario, slice_s, &seg);
    if (!err) {
        *ret = seg;
    }
    return err;
}

static void touch(struct nvme *t, struct nvme_batch *b, struct nvme_segment *seg)
{
    if (seg->busy) {
        return;
    }
    (void)pthread_mutex_lock(&t->mtx);
    seg->busy = true;
    (void)pthread_mutex_unlock(&t->mtx);
    KVD_ASSERT(b->n_touched < KVD_SCENARIOS_MAX);
    b->touched[b->n_touched++] = (struct touched){.seg = seg, .batch = b};
}

static int place(struct nvme *t, struct nvme_batch *b, struct item *item)
{
    struct kvd_store_request *req = item->req;
    if (req->now_s > t->now_s) {
        t->now_s = req->now_s;
    }
    struct nvme_segment *seg = NULL;
    int err = segment_for(t, req, &seg);
    err = err ? err : kvd_nvme_reserve_row(seg, seg->n_placed);
    if (err) {
        return err;
    }
    touch(t, b, seg);
    item->seg = seg;
    req->place = (struct kvd_place){.segment = seg->info.segment,
                                    .offset = seg->end,
                                    .extent_bytes = (uint32_t)req->extent_bytes};
    seg->end += req->extent_bytes;
    seg->n_placed++;
    return 0;
}

static void place_all(struct nvme *t, struct nvme_batch *b)
{
    (void)pthread_mutex_lock(&t->change);
    for (uint32_t i = 0; i < b->n_items; i++) {
        int err = place(t, b, &b->items[i]);
        if (err == -KVD_E_BUSY && b->n_touched > 0) {
            put_back(t, b, i);
            break;
        }
        b->items[i].req->result = err;
    }
    (void)pthread_mutex_unlock(&t->change);
}

static void one_less(struct nvme_batch *b)
{
    (void)pthread_mutex_lock(&b->mtx);
    b->in_flight--;
    (void)pthread_cond_signal(&b->cond);
    (void)pthread_mutex_unlock(&b->mtx);
}

static void item_done(struct kvd_io_request *io)
{
    one_less(KVD_CONTAINER_OF(io, struct item, io)->batch);
}

static void touched_done(struct kvd_io_request *io)
{
    one_less(KVD_CONTAINER_OF(io, struct touched, io)->batch);
}

static void submit(struct nvme *t, struct nvme_batch *b, struct kvd_io_request *io)
{
    (void)pthread_mutex_lock(&b->mtx);
    b->in_flight++;
    (void)pthread_mutex_unlock(&b->mtx);
    int err = kvd_io_submit(t->io, &io, 1);
    if (err) {
        io->result = err;
        one_less(b);
    }
}

static void wait_all(struct nvme_batch *b)
{
    (void)pthread_mutex_lock(&b->mtx);
    while (b->in_flight > 0) {
        (void)pthread_cond_wait(&b->cond, &b->mtx);
    }
    (void)pthread_mutex_unlock(&b->mtx);
}

static void write_items(struct nvme *t, struct nvme_batch *b)
{
    for (uint32_t i = 0; i < b->n_items; i++) {
        struct item *item = &b->items[i];
        if (!item->seg) {
            continue;
        }
        /* the engine only reads from the buffer of a write */
        item->io = (struct kvd_io_request){.kind = KVD_IO_WRITE,
                                           .fd = item->seg->fd,
                                           .buffer_index = item->req->buffer_index,
                                           .buffer = (void *)(uintptr_t)item->req->extent,
                                           .bytes = item->req->extent_bytes,
                                           .offset = item->req->place.offset,
                                           .done = item_done};
        submit(t, b, &item->io);
    }
    wait_all(b);
}

static void sync_touched(struct nvme *t, struct nvme_batch *b)
{
    for (uint32_t i = 0; i < b->n_touched; i++) {
        struct touched *touched = &b->touched[i];
        touched->io = (struct kvd_io_request){.kind = KVD_IO_FDATASYNC,
                                              .fd = touched->seg->fd,
                                              .buffer_index = -1,
                                              .done = touched_done};
        if (KVD_PROTECT(SYNC_RECORDS)) {
            submit(t, b, &touched->io);
        }
    }
    wait_all(b);
}

static int sync_result(const struct nvme_batch *b, const struct nvme_segment *seg)
{
    for (uint32_t i = 0; i < b->n_touched; i++) {
        if (b->touched[i].seg == seg) {
            return b->touched[i].io.result;
        }
    }
    return -KVD_E_INTERNAL;
}

/* Gives every record its result, and the good ones their row. */
static void settle_items(struct nvme *t, struct nvme_batch *b)
{
    for (uint32_t i = 0; i < b->n_items; i++) {
        struct item *item = &b->items[i];
        struct nvme_segment *seg = item->seg;
        if (!seg) {
            continue;
        }
        int err = KVD_PROTECT(FAILED_WRITE_IS_SAID) ? item->io.result : 0;
        err = err || !KVD_PROTECT(FAILED_SYNC_IS_SAID) ? err : sync_result(b, seg);
        item->req->result = err;
        if (err) {
            seg->appendable = false;
            continue;
        }
        struct kvd_segment_row row = item->req->row;
        row.offset = item->req->place.offset;
        row.extent_bytes = item->req->place.extent_bytes;
        seg->rows[seg->n_rows++] = row;
        (void)pthread_mutex_lock(&t->mtx);
        seg->info.records++;
        t->written_bytes += item->req->extent_bytes;
        (void)pthread_mutex_unlock(&t->mtx);
    }
}

/* There is no footer: what lies behind the first failed record of the batch would not be found
 * again, so it counts as failed too. */
static void fail_behind_hole(struct nvme *t, struct nvme_batch *b, struct nvme_segment *seg)
{
    bool hole = false;
    for (uint32_t i = 0; i < b->n_items; i++) {
        struct kvd_store_request *req = b->items[i].req;
        if (b->items[i].seg != seg) {
            continue;
        }
        if (hole && req->result == 0) {
            req->result = -KVD_E_IO;
            seg->n_rows--;
            (void)pthread_mutex_lock(&t->mtx);
            seg->info.records--;
            (void)pthread_mutex_unlock(&t->mtx);
        }
        hole = hole || req->result != 0;
    }
}

/* Footers of the segments in which something failed, before anybody hears of what they hold. */
static void settle_holes(struct nvme *t, struct nvme_batch *b)
{
    for (uint32_t i = 0; i < b->n_touched; i++) {
        struct nvme_segment *seg = b->touched[i].seg;
        if (seg->appendable || seg->n_rows == 0) {
            continue;
        }
        if (kvd_nvme_foot(t, seg) && KVD_PROTECT(FAILED_BEHIND_A_HOLE)) {
            fail_behind_hole(t, b, seg);
        }
    }
}

/* Ends the batch for its segments; those in which something failed are sealed. */
static void settle_segments(struct nvme *t, struct nvme_batch *b)
{
    for (uint32_t i = 0; i < b->n_touched; i++) {
        struct nvme_segment *seg = b->touched[i].seg;
        (void)pthread_mutex_lock(&t->mtx);
        seg->busy = false;
        (void)pthread_mutex_unlock(&t->mtx);
        seg->n_placed = seg->n_rows;
        if (!seg->appendable) {
            (void)kvd_nvme_seal(t, seg);
        }
    }
}

struct told {
    uint64_t bytes;
    uint32_t failed;
};

/* The callbacks. What is good is told before its segment may be sealed: a start reads no segment
 * that was, so a kill in between would leave records that nobody finds. */
static struct told tell(struct nvme_batch *b)
{
    struct told told = {0};
    for (uint32_t i = 0; i < b->n_items; i++) {
        struct kvd_store_request *req = b->items[i].req;
        told.bytes += req->extent_bytes;
        told.failed += req->result != 0;
        if (req->result) {
            req->place = (struct kvd_place){0};
        }
        req->done(req);
    }
    return told;
}

/* The accounts come last: whoever waits in flush sees the effects of everything. */
static void account(struct nvme *t, const struct nvme_batch *b, const struct told *told)
{
    (void)pthread_mutex_lock(&t->mtx);
    t->queue_bytes -= told->bytes;
    t->finished_seq += b->n_items;
    t->failed_writes += told->failed;
    (void)pthread_cond_broadcast(&t->changed);
    (void)pthread_mutex_unlock(&t->mtx);
}

/* A segment stays busy until its records are reported, so that nobody else seals it before. */
static void write_batch(struct nvme *t, struct nvme_batch *b)
{
    place_all(t, b);
    if (KVD_PROTECT(DATA_BEFORE_INDEX)) {
        write_items(t, b);
        sync_touched(t, b);
    }
    (void)pthread_mutex_lock(&t->change);
    settle_items(t, b);
    settle_holes(t, b);
    (void)pthread_mutex_unlock(&t->change);
    struct told told = tell(b);
    (void)pthread_mutex_lock(&t->change);
    settle_segments(t, b);
    (void)pthread_mutex_unlock(&t->change);
    account(t, b, &told);
}

/* Waits for something to do. False at the end, when the queue is empty. */
static bool next_work(struct nvme *t, struct nvme_batch *b, bool *ret_lost)
{
    (void)pthread_mutex_lock(&t->mtx);
    while (kvd_list_empty(&t->queue) && !t->any_lost && !t->stopping) {
        (void)pthread_cond_wait(&t->work, &t->mtx);
    }
    take_locked(t, b);
    *ret_lost = t->any_lost;
    t->any_lost = false;
    bool go_on = b->n_items > 0 || !t->stopping;
    (void)pthread_mutex_unlock(&t->mtx);
    return go_on;
}

void *kvd_nvme_writer_thread(void *tier)
{
    struct nvme *t = tier;
    struct nvme_batch *b = t->batch;
    bool lost;
    while (next_work(t, b, &lost)) {
        if (lost) {
            (void)pthread_mutex_lock(&t->change);
            kvd_nvme_bury_lost(t);
            (void)pthread_mutex_unlock(&t->change);
        }
        if (b->n_items > 0) {
            write_batch(t, b);
        }
    }
    return NULL;
}
