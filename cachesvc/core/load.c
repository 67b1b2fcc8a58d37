/*
 * Load: brings a lease's blocks into dram and says where they lie. Blocks that are resident are
 * pinned; the others are read whole into fresh slots, all at once, and published when header,
 * identity and sum are right. What a client gets is the good prefix; a bad record moves its tokens,
 * and those behind it, from hit to failed.
 *
 * A load runs on a worker, waits for its reads without a thread, and ends on a worker. At its
 * deadline the watch answers instead, and its blocks are failed; the reads under way keep their
 * slots, and the lease, until the device is done with them: its kernel writes where it was told
 * to, however late. What they bring is good for the next. Starting a
 * load lets go of the blocks that the lease's load before it brought: a copy that is late shows by
 * its generation.
 */
#include <errno.h>
#include <stdlib.h>

#include "cachesvc/core/service_private.h"
#include "proto/base/assert.h"
#include "proto/base/bytes.h"
#include "proto/base/clock.h"
#include "proto/base/protect.h"

enum load_step { LOAD_RESIDENT = 1, LOAD_FETCH, LOAD_FAILED, LOAD_LATER };

struct load_block {
    enum load_step step;
    struct kvd_slot *fresh; /* FILLING, of a fetch */
    struct kvd_fetch_request fetch;
};

struct load_job {
    struct kvd_work work;
    struct kvd_service *service;
    struct lease *lease;
    uint32_t first;
    uint32_t n;
    bool place;
    struct kvd_watched watched;
    bool late; /* answered by the watch. Known from the end of the reads on */
    atomic_uint reads_left;
    struct load_block *blocks;
    struct kvd_wire_block *results;
    uint32_t *token_buf;
    kvd_load_done_fn *done;
    void *user;
};

static void load_free(struct load_job *job)
{
    free(job->blocks);
    free(job->results);
    free(job->token_buf);
    free(job);
}

/* The lease is free for the next load, or goes where it was released meanwhile. */
static void load_end(struct load_job *job, int result, uint32_t good)
{
    struct kvd_service *service = job->service;
    struct lease *lease = job->lease;
    struct kvd_session *session = lease->session;
    (void)pthread_mutex_lock(&service->mtx);
    lease->deadline_ns = kvd_mono_ns() + service->config->client_copy_lease * KVD_NS_PER_MS;
    lease->swept = lease->expired;
    (void)pthread_mutex_unlock(&service->mtx);
    lease_unclaim(lease);
    if (!job->late) {
        job->done(result, job->results, job->n, good, job->user);
    }
    load_free(job);
    session_unref(session);
}

/* The client is told, and its blocks are counted as failed, while the job goes on to its end. */
static void load_late(struct kvd_watched *watched)
{
    struct load_job *job = KVD_CONTAINER_OF(watched, struct load_job, watched);
    lease_count_failed(job->lease, job->first);
    job->done(-KVD_E_DEADLINE, NULL, 0, 0, job->user);
}

/* The copy below isn't what it should be: nobody looks there again. */
static void load_forget(struct load_job *job, uint32_t i, uint8_t gone, const char *text)
{
    struct bad_record bad = {.place = job->blocks[i].fetch.place, .gone = gone};
    prompt_index_id(&job->lease->prompt, job->first + i, &bad.id);
    if (KVD_PROTECT(LOAD_FORGETS)) {
        record_bad(job->service, &bad, text);
    }
}

/* What the device doesn't give now it won't give later: without this, each look-up would count a
 * hit, each load would fail, and each put would find the block stored already. What passes by
 * itself is left as it is. */
static void load_unreadable(struct load_job *job, uint32_t i, int err)
{
    if (err == -EIO || err == -KVD_E_IO || err == -KVD_E_CORRUPT) {
        load_forget(job, i, KVD_GONE_LOST, kvd_strerror(err));
    }
}

/* ---- finding ---- */

/* Where the copy below is. 0 or -KVD_E_NOT_FOUND. */
static int load_place(struct load_job *job, uint32_t index, struct kvd_place *ret)
{
    struct lease *lease = job->lease;
    if (lease->blocks[index].place.segment) {
        *ret = lease->blocks[index].place;
        return 0;
    }
    struct kvd_index_entry e;
    uint8_t found = KVD_INDEX_ABSENT;
    enum kvd_miss_reason why;
    int err = kvd_index_lookup(job->service->index, lease->prompt.keys, index, 1,
                               lease->prompt.rank, &e, &found);
    if (err || found != KVD_INDEX_FOUND ||
        !entry_usable(job->service, expiry_clock(job->service), &lease->prompt, index, &e, &why)) {
        return -KVD_E_NOT_FOUND;
    }
    *ret = (struct kvd_place){
        .segment = e.segment, .offset = e.offset, .extent_bytes = e.extent_bytes};
    return 0;
}

/* A resident block: whose it is, on every hit; its sum too, where the slot is from before this
 * start. */
static int load_check_resident(struct load_job *job, uint32_t index, struct kvd_slot *slot)
{
    struct kvd_service *service = job->service;
    struct kvd_record_expect expect = prompt_expect(&job->lease->prompt, index);
    struct kvd_record rec;
    uint32_t header_bytes = 0;
    struct kvd_diag diag = {{0}};
    bool sums =
        KVD_PROTECT(DRAM_FIRST_USE_SUM) && !__atomic_load_n(&slot->verified, __ATOMIC_RELAXED);
    int err = record_verify(slot->base, slot->slot_bytes, &expect, sums, job->token_buf, &rec,
                            &header_bytes, &diag);
    if (!err && (rec.raw_bytes != job->lease->prompt.space->desc.payload_bytes ||
                 header_bytes != slot->meta.header_bytes)) {
        err = kvd_fail(&diag, -KVD_E_CORRUPT, "sizes don't agree with the space");
    }
    if (err) {
        struct bad_record bad = {.slot = slot, .gone = KVD_GONE_CORRUPT};
        prompt_index_id(&job->lease->prompt, index, &bad.id);
        record_bad(service, &bad, diag.text);
    } else if (sums) {
        kvd_pool_set_verified(service->pool, slot);
    }
    return err;
}

/* The block's own slot, checked; let go of where it is bad, or was purged since the look-up, unless
 * the client uses it where it lies. */
static bool load_try_slot(struct load_job *job, uint32_t index)
{
    struct kvd_slot *slot = job->lease->blocks[index].slot;
    if (slot && !purge_hides(job->service, &job->lease->prompt, index, slot->meta.put_id) &&
        load_check_resident(job, index, slot) == 0) {
        return true;
    }
    if (!job->lease->blocks[index].placed || !KVD_PROTECT(PLACED_SLOT_STAYS)) {
        lease_drop_slot(job->lease, index);
    }
    return false;
}

static void load_fetched(struct kvd_fetch_request *req);

static enum load_step load_prepare_fetch(struct load_job *job, uint32_t i)
{
    struct load_block *b = &job->blocks[i];
    struct kvd_place place;
    uint64_t want = job->lease->prompt.space->extent_bytes;
    if (load_place(job, job->first + i, &place)) {
        return LOAD_FAILED;
    }
    if (place.extent_bytes != want) { /* no record of this space has another size */
        b->fetch.place = place;
        load_unreadable(job, i, -KVD_E_CORRUPT);
        return LOAD_FAILED;
    }
    int err = kvd_pool_alloc(job->service->pool, want, job->lease->prompt.scenario->id, &b->fresh);
    if (err) {
        return err == -KVD_E_FULL ? LOAD_LATER : LOAD_FAILED;
    }
    b->fetch = (struct kvd_fetch_request){.place = place,
                                          .extent = b->fresh->base,
                                          .buffer_index = page_buffer(job->service, b->fresh),
                                          .done = load_fetched,
                                          .user = job};
    return LOAD_FETCH;
}

/* Decides one block's way. What it pins, or will pin, counts against the limits. */
static enum load_step load_step_of(struct load_job *job, uint32_t i)
{
    struct lease *lease = job->lease;
    uint32_t index = job->first + i;
    if (lease->blocks[index].slot && load_try_slot(job, index)) {
        return LOAD_RESIDENT;
    }
    if (lease->blocks[index].slot) {
        return LOAD_FAILED; /* in use in place: a lease holds one slot a block, this one */
    }
    struct kvd_addr addr = prompt_addr(&lease->prompt, index);
    struct kvd_slot *slot = kvd_pool_pin(job->service->pool, &addr);
    if (slot) {
        if (lease_take_slots(lease, index, &slot, 1) == 0) {
            kvd_pool_unpin(job->service->pool, slot);
            return LOAD_LATER;
        }
        if (load_try_slot(job, index)) {
            return LOAD_RESIDENT;
        }
    }
    if (!lease_reserve(lease)) {
        return LOAD_LATER;
    }
    enum load_step step = load_prepare_fetch(job, i);
    if (step != LOAD_FETCH) {
        lease_unreserve(lease);
    }
    return step;
}

/* ---- ending ---- */

/* A record that was read: right, and for this block? Then it becomes resident. */
static int load_take_fetched(struct load_job *job, uint32_t i)
{
    struct load_block *b = &job->blocks[i];
    struct kvd_service *service = job->service;
    struct lease *lease = job->lease;
    struct lease_block *lb = &lease->blocks[job->first + i];
    struct kvd_record_expect expect = prompt_expect(&lease->prompt, job->first + i);
    struct kvd_record rec;
    struct kvd_diag diag = {{0}};
    uint32_t header_bytes = 0;
    if (b->fetch.result && KVD_PROTECT(FAILED_READ_IS_A_MISS)) {
        load_unreadable(job, i, b->fetch.result);
        return b->fetch.result;
    }
    int err = record_verify(b->fresh->base, b->fetch.place.extent_bytes, &expect, true,
                            job->token_buf, &rec, &header_bytes, &diag);
    if (!err && rec.raw_bytes != lease->prompt.space->desc.payload_bytes) {
        err = kvd_fail(&diag, -KVD_E_CORRUPT, "sizes don't agree with the space");
    }
    if (err == -KVD_E_NEWER) {
        struct bad_record newer = {.place = b->fetch.place, .gone = KVD_GONE_LOST};
        prompt_index_id(&lease->prompt, job->first + i, &newer.id);
        record_newer(service, &newer);
        return err;
    }
    if (err) {
        load_forget(job, i, KVD_GONE_CORRUPT, diag.text);
        return err;
    }
    struct kvd_slot_meta meta = {.addr = prompt_addr(&lease->prompt, job->first + i),
                                 .group = rec.group,
                                 .index = job->first + i,
                                 .scenario = lb->seen.scenario,
                                 .last_use_day = lb->seen.last_use_day,
                                 .created_day = kvd_day_of(rec.created_s),
                                 .put_id = rec.put_id,
                                 .header_bytes = header_bytes,
                                 .payload_bytes = (uint32_t)rec.raw_bytes,
                                 .nvme_segment = kvd_slot_segment(b->fetch.place.segment)};
    return kvd_pool_publish(service->pool, b->fresh, &meta);
}

/* Publishes, or finds who was quicker. */
static bool load_finish_fetch(struct load_job *job, uint32_t i)
{
    struct load_block *b = &job->blocks[i];
    struct lease *lease = job->lease;
    struct kvd_pool *pool = job->service->pool;
    int err = load_take_fetched(job, i);
    struct kvd_slot *slot = b->fresh;
    if (err) {
        kvd_pool_cancel(pool, b->fresh);
        struct kvd_addr addr = prompt_addr(&lease->prompt, job->first + i);
        slot = err == -KVD_E_EXISTS ? kvd_pool_pin(pool, &addr) : NULL;
    } else if (purge_took(job->service, &lease->prompt, job->first + i, slot)) {
        kvd_pool_unpin(pool, slot);
        slot = NULL;
    }
    b->fresh = NULL;
    if (!slot) {
        lease_unreserve(lease);
        return false;
    }
    if (!lease_take_reserved(lease, job->first + i, slot)) {
        kvd_pool_unpin(pool, slot);
        return false;
    }
    return err == 0 || load_try_slot(job, job->first + i);
}

static void load_result(struct load_job *job, uint32_t i)
{
    const struct lease_block *lb = &job->lease->blocks[job->first + i];
    const struct kvd_slot *slot = lb->slot;
    job->results[i] = (struct kvd_wire_block){.state = KVD_BLOCK_LOADED,
                                              .tier = lb->tier,
                                              .generation = slot->generation,
                                              .offset = slot->file_offset + slot->meta.header_bytes,
                                              .generation_offset = slot->generation_offset,
                                              .bytes = slot->meta.payload_bytes};
}

/* Last use of the blocks that were served, tail first, so that a parent is never older than its
 * child. */
static void load_touch(struct load_job *job, uint32_t good)
{
    struct lease *lease = job->lease;
    for (uint32_t i = good; i-- > 0;) {
        struct lease_block *b = &lease->blocks[job->first + i];
        touch_block(job->service, &lease->prompt, job->first + i, &b->seen, b->slot);
        writedown_if_missing(job->service, b->slot);
    }
}

static void load_finish(struct kvd_work *work)
{
    struct load_job *job = KVD_CONTAINER_OF(work, struct load_job, work);
    uint32_t good = job->n;
    job->late = !kvd_watch_end(job->service->watch, &job->watched);
    for (uint32_t i = 0; i < job->n; i++) {
        struct load_block *b = &job->blocks[i];
        bool ok = b->step == LOAD_RESIDENT || (b->step == LOAD_FETCH && load_finish_fetch(job, i));
        if (ok) {
            load_result(job, i);
        } else {
            job->results[i].state = b->step == LOAD_LATER ? KVD_BLOCK_STORED : KVD_BLOCK_FAILED;
            good = i < good && KVD_PROTECT(LOAD_GOOD_PREFIX) ? i : good;
        }
    }
    /* no room for even the first is a failure too: asking again would not help */
    if (good < job->n && (good == 0 || job->results[good].state == KVD_BLOCK_FAILED)) {
        job->results[good].state = KVD_BLOCK_FAILED;
        lease_count_failed(job->lease, job->first + good);
    }
    load_touch(job, job->late ? 0 : good); /* nobody was served */
    if (job->place && !job->late) {
        lease_place(job->lease, job->first, good);
    }
    load_end(job, 0, good);
}

static void load_read_ended(struct load_job *job)
{
    if (atomic_fetch_sub(&job->reads_left, 1) == 1) {
        job->work.run = load_finish;
        kvd_workers_submit(job->service->workers, &job->work);
    }
}

static void load_fetched(struct kvd_fetch_request *req)
{
    load_read_ended(req->user);
}

/* ---- beginning ---- */

static void load_submit_reads(struct load_job *job)
{
    struct kvd_tier *nvme = job->service->nvme;
    for (uint32_t i = 0; i < job->n; i++) {
        if (job->blocks[i].step != LOAD_FETCH) {
            continue;
        }
        struct kvd_fetch_request *req = &job->blocks[i].fetch;
        atomic_fetch_add(&job->reads_left, 1);
        int err = nvme->ops->fetch(nvme, &req, 1);
        if (err) {
            req->result = err;
            load_read_ended(job);
        }
    }
    load_read_ended(
        job); /* the one that kept the job from ending while reads were still being submitted */
}

static void load_start(struct kvd_work *work)
{
    struct load_job *job = KVD_CONTAINER_OF(work, struct load_job, work);
    struct lease *lease = job->lease;
    /* too late: nobody waits for it any more, so no read is wasted on it; or its pins are gone */
    int late = lease->expired                             ? -KVD_E_STALE
               : kvd_mono_ns() > job->watched.deadline_ns ? -KVD_E_DEADLINE
                                                          : 0;
    if (late) {
        job->late = !kvd_watch_end(job->service->watch, &job->watched);
        lease_count_failed(lease, job->first);
        load_end(job, late, 0);
        return;
    }
    lease_drop_slots(lease, job->first);
    if (KVD_PROTECT(PURGE_AT_LOAD)) {
        purge_look(job->service, &lease->prompt);
    }
    enum load_step stop = 0;
    for (uint32_t i = 0; i < job->n; i++) {
        job->blocks[i].step = stop ? stop : load_step_of(job, i);
        if (job->blocks[i].step == LOAD_LATER || job->blocks[i].step == LOAD_FAILED) {
            stop = job->blocks[i].step;
        }
    }
    load_submit_reads(job);
}

static struct load_job *load_create(struct kvd_service *service, const struct kvd_load_ask *ask)
{
    uint32_t n = ask->n;
    struct load_job *job = calloc(1, sizeof(*job));
    if (!job) {
        return NULL;
    }
    job->blocks = calloc(n, sizeof(*job->blocks));
    job->results = calloc(n, sizeof(*job->results));
    job->token_buf = malloc(RECORD_TOKENS_MAX * sizeof(uint32_t));
    if (!job->blocks || !job->results || !job->token_buf) {
        load_free(job);
        return NULL;
    }
    job->service = service;
    job->first = ask->first;
    job->n = n;
    job->place = ask->place;
    atomic_init(&job->reads_left, 1);
    job->work.run = load_start;
    return job;
}

/* Takes the lease for a load: 0, or why it can't be had. */
static int load_claim(struct kvd_session *session, const struct kvd_load_ask *ask,
                      struct lease **ret)
{
    (void)pthread_mutex_lock(&session->service->mtx);
    struct lease *lease = lease_find_locked(session, ask->lease);
    const uint32_t have = lease ? lease->prompt.n_blocks : 0;
    int err = !lease                                                            ? -KVD_E_STALE
              : ask->n == 0 || ask->first >= have || ask->n > have - ask->first ? -KVD_E_BAD_REQUEST
              : lease->busy                                                     ? -KVD_E_BUSY
                                                                                : 0;
    if (!err) {
        lease->busy = true;
        session_ref_locked(session);
        *ret = lease;
    }
    (void)pthread_mutex_unlock(&session->service->mtx);
    return err;
}

void kvd_service_load(struct kvd_session *session, const struct kvd_load_ask *ask,
                      kvd_load_done_fn *done, void *user)
{
    KVD_MAGIC_CHECK(session, SESSION_MAGIC);
    struct load_job *job = load_create(session->service, ask);
    struct lease *lease = NULL;
    int err = job ? load_claim(session, ask, &lease) : -ENOMEM;
    if (err) {
        if (job) {
            load_free(job);
        }
        done(err, NULL, 0, 0, user);
        return;
    }
    job->lease = lease;
    job->watched = (struct kvd_watched){.deadline_ns = ask->deadline_ns, .late = load_late};
    job->done = done;
    job->user = user;
    kvd_watch_add(session->service->watch, &job->watched);
    kvd_workers_submit(session->service->workers, &job->work);
}
