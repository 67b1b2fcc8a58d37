/*
 * Put. Begin: which blocks are stored already, and a place in staging for each that isn't. Commit:
 * each granted block is copied out of staging and summed in one pass, so that the sum is of what
 * was copied, whatever the client does to its staging meanwhile; then published in dram; then
 * queued to be written down. A block that finds no room ends the put there: tails without heads are
 * of no use.
 */
#include <errno.h>
#include <stdlib.h>
#include <xxhash.h>

#include "cachesvc/core/service_private.h"
#include "proto/base/assert.h"
#include "proto/base/bytes.h"
#include "proto/base/clock.h"
#include "proto/base/protect.h"

enum { NOT_GRANTED = 0xff, COPY_CHUNK = 64 << 10 };

struct put {
    struct kvd_list link; /* in session.puts */
    uint64_t id;
    struct kvd_session *session;
    struct session_space *space;
    struct kept_prompt prompt;
    uint32_t first;
    uint32_t n;
    uint8_t staging[KVD_WIRE_STAGING_SLOTS]; /* slot of each block, or NOT_GRANTED */
    uint64_t begun_ns;
    bool busy; /* lock: service.mtx. A commit is under way */
};

bool put_pending_locked(struct kvd_service *service, const struct kvd_addr *addr, uint64_t now_ns)
{
    const uint64_t pending_ns = service->config->client_put_pending * KVD_NS_PER_MS;
    kvd_list_foreach (is, &service->sessions) {
        struct kvd_session *s = KVD_CONTAINER_OF(is, struct kvd_session, link);
        kvd_list_foreach (ip, &s->puts) {
            const struct put *p = KVD_CONTAINER_OF(ip, struct put, link);
            if (KVD_PROTECT(PUT_PENDING_ENDS) && !p->busy && p->begun_ns + pending_ns < now_ns) {
                continue; /* its client hangs: others need not wait. A late commit finds the block
                             stored */
            }
            for (uint32_t i = 0; i < p->n; i++) {
                if (p->staging[i] != NOT_GRANTED && p->prompt.rank == addr->rank &&
                    kvd_key_equal(&p->prompt.keys[p->first + i], &addr->key)) {
                    return true;
                }
            }
        }
    }
    return false;
}

static void put_unlink_locked(struct put *put)
{
    for (uint32_t i = 0; i < put->n; i++) {
        if (put->staging[i] != NOT_GRANTED) {
            put->space->used &= ~(1u << put->staging[i]);
        }
    }
    kvd_list_remove(&put->link);
    put->session->n_puts--;
    put->session->service->n_puts--;
}

static void put_destroy(struct put *put)
{
    prompt_fini(&put->prompt);
    free(put);
}

/* Ends a put for good: its staging places are free again. */
static void put_end(struct put *put)
{
    struct kvd_service *service = put->session->service;
    (void)pthread_mutex_lock(&service->mtx);
    put_unlink_locked(put);
    (void)pthread_mutex_unlock(&service->mtx);
    put_destroy(put);
}

void put_end_session(struct kvd_session *session)
{
    struct kvd_list gone;
    kvd_list_init(&gone);
    (void)pthread_mutex_lock(&session->service->mtx);
    kvd_list_foreach_safe (ip, &session->puts) {
        struct put *p = KVD_CONTAINER_OF(ip, struct put, link);
        if (!p->busy) { /* a commit under way ends its put itself */
            put_unlink_locked(p);
            kvd_list_push_back(&gone, &p->link);
        }
    }
    (void)pthread_mutex_unlock(&session->service->mtx);
    for (struct kvd_list *it; (it = kvd_list_pop_front(&gone));) {
        put_destroy(KVD_CONTAINER_OF(it, struct put, link));
    }
}

/* ---- begin ---- */

/* Tier that a block is stored in and wanted, or NONE. An expired or purged resident is removed, so
 * that it can be put again. */
static enum kvd_tier_id stored_tier(struct kvd_service *service, struct put *put, uint32_t i,
                                    const struct kvd_index_entry *entry, uint8_t found)
{
    struct kvd_addr addr = prompt_addr(&put->prompt, put->first + i);
    struct kvd_slot *slot = kvd_pool_pin(service->pool, &addr);
    struct use_seen seen;
    enum kvd_tier_id tier = KVD_TIER_NONE;
    enum kvd_miss_reason why;
    if (slot) {
        struct kvd_slot_meta meta;
        kvd_pool_meta(service->pool, slot, &meta);
        seen = (struct use_seen){meta.last_use_day, meta.scenario};
        if (!purge_hides(service, &put->prompt, put->first + i, meta.put_id) &&
            !class_expired(service, expiry_clock(service), meta.scenario, meta.last_use_day,
                           meta.created_day)) {
            tier = KVD_TIER_DRAM;
        } else {
            kvd_pool_remove(service->pool, slot);
        }
    }
    if (tier == KVD_TIER_NONE && found == KVD_INDEX_FOUND &&
        entry_usable(service, expiry_clock(service), &put->prompt, put->first + i, entry, &why)) {
        seen = (struct use_seen){entry->last_use_day, entry->scenario};
        tier = KVD_TIER_NVME;
    }
    if (tier != KVD_TIER_NONE) {
        touch_block(service, &put->prompt, put->first + i, &seen,
                    tier == KVD_TIER_DRAM ? slot : NULL);
    }
    if (tier == KVD_TIER_DRAM) {
        writedown_if_missing(service, slot);
    }
    if (slot) {
        kvd_pool_unpin(service->pool, slot);
    }
    return tier;
}

/* lock: service.mtx. A free staging slot, or NOT_GRANTED. */
static uint8_t staging_take_locked(struct session_space *sp)
{
    for (uint32_t i = 0; i < sp->slots; i++) {
        if (!(sp->used & (1u << i))) {
            sp->used |= 1u << i;
            return (uint8_t)i;
        }
    }
    return NOT_GRANTED;
}

static void put_grant_locked(struct put *put, struct kvd_wire_block *results,
                             struct kvd_put_out *out)
{
    struct kvd_service *service = put->session->service;
    uint64_t now_ns = kvd_mono_ns();
    bool ended = false;
    for (uint32_t i = 0; i < put->n; i++) {
        struct kvd_addr addr = prompt_addr(&put->prompt, put->first + i);
        put->staging[i] = NOT_GRANTED;
        if (results[i].state == KVD_BLOCK_STORED) {
            continue;
        }
        if (put_pending_locked(service, &addr, now_ns)) {
            results[i].state = KVD_BLOCK_PENDING;
            continue;
        }
        put->staging[i] = ended ? NOT_GRANTED : staging_take_locked(put->space);
        ended = put->staging[i] == NOT_GRANTED;
        if (!ended) {
            results[i].state = KVD_BLOCK_GRANTED;
            results[i].offset = put->staging[i] * put->space->slot_bytes;
            results[i].bytes = put->prompt.space->desc.payload_bytes;
            out->granted_blocks++;
        }
    }
}

static int put_grant(struct put *put, struct kvd_wire_block *results, struct kvd_put_out *out)
{
    struct kvd_service *service = put->session->service;
    struct kvd_index_entry entries[KVD_WIRE_STAGING_SLOTS];
    uint8_t found[KVD_WIRE_STAGING_SLOTS];
    int err = kvd_index_lookup(service->index, put->prompt.keys, put->first, put->n,
                               put->prompt.rank, entries, found);
    if (err) { /* then it goes to dram, and below when the index is back */
        memset(found, KVD_INDEX_ABSENT, sizeof(found));
    }
    memset(results, 0, put->n * sizeof(*results));
    for (uint32_t i = put->n; i-- > 0;) { /* tail first: what is stored is touched */
        results[i].tier = (uint8_t)stored_tier(service, put, i, &entries[i], found[i]);
        results[i].state = results[i].tier ? KVD_BLOCK_STORED : KVD_BLOCK_ABSENT;
        out->stored_blocks += results[i].tier != KVD_TIER_NONE;
    }
    (void)pthread_mutex_lock(&service->mtx);
    put_grant_locked(put, results, out);
    if (out->granted_blocks) {
        put->id = out->put = atomic_fetch_add(&service->next_id, 1);
        kvd_list_push_back(&put->session->puts, &put->link);
        put->session->n_puts++;
        service->n_puts++;
    }
    (void)pthread_mutex_unlock(&service->mtx);
    return 0;
}

static int put_check(struct kvd_session *session, uint32_t first, uint32_t n, struct kvd_diag *diag)
{
    if (n == 0 || n > KVD_WIRE_STAGING_SLOTS || first > KVD_WIRE_PROMPT_TOKENS_MAX) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST,
                        "put of %u blocks from block %u on: 1 to %d at once are allowed", n, first,
                        KVD_WIRE_STAGING_SLOTS);
    }
    (void)pthread_mutex_lock(&session->service->mtx);
    bool many = session->n_puts >= SESSION_PUTS_MAX;
    (void)pthread_mutex_unlock(&session->service->mtx);
    if (many) {
        return kvd_fail(diag, -KVD_E_OVER_QUOTA,
                        "%d puts are begun, which is the limit for one client; commit some",
                        SESSION_PUTS_MAX);
    }
    return 0;
}

int kvd_service_put_begin(struct kvd_session *session, const struct kvd_prompt_ref *ref,
                          uint32_t first, uint32_t n, struct kvd_diag *diag,
                          struct kvd_wire_block *ret_results, struct kvd_put_out *ret)
{
    KVD_MAGIC_CHECK(session, SESSION_MAGIC);
    int err = put_check(session, first, n, diag);
    if (err) {
        return err;
    }
    struct put *put = calloc(1, sizeof(*put));
    if (!put) {
        return kvd_fail(diag, -ENOMEM, "out of memory");
    }
    kvd_list_init(&put->link);
    put->session = session;
    put->begun_ns = kvd_mono_ns();
    put->first = first;
    put->n = n;
    struct kvd_put_out out = {0};
    err = prompt_keep(session, ref, first + n, diag, &put->prompt);
    if (!err) {
        put->space = session_space_of(session, ref->space_handle);
        err = put_grant(put, ret_results, &out);
    }
    if (err || !out.put) {
        put_destroy(put);
    }
    if (!err) {
        *ret = out;
    }
    return err;
}

/* ---- commit ---- */

struct commit_job {
    struct kvd_work work;
    struct put *put;
    kvd_put_done_fn *done;
    void *user;
};

/* Copies and sums in one pass: a chunk is summed where it was copied to, while it is in the cache.
 */
static uint64_t copy_and_sum(uint8_t *to, const uint8_t *from, uint64_t bytes, XXH3_state_t *st)
{
    (void)XXH3_64bits_reset(st);
    for (uint64_t at = 0; at < bytes; at += COPY_CHUNK) {
        uint64_t n = bytes - at < COPY_CHUNK ? bytes - at : COPY_CHUNK;
        memcpy(to + at, from + at, n);
        (void)XXH3_64bits_update(st, KVD_PROTECT(SUM_OF_THE_COPY) ? to + at : from + at, n);
    }
    return XXH3_64bits_digest(st);
}

static void record_describe(struct kvd_service *service, const struct put *put, uint32_t i,
                            struct kvd_record *ret)
{
    const struct kept_prompt *p = &put->prompt;
    const struct kvd_space_desc *d = &p->space->desc;
    uint32_t index = put->first + i;
    *ret = (struct kvd_record){.space = p->space->digest,
                               .tenant = p->tenant,
                               .parent = index ? p->keys[index - 1] : p->root,
                               .index = index,
                               .scenario = p->scenario->id,
                               .rank = p->rank,
                               .codec = KVD_CODEC_NONE,
                               .n_blocks = 1,
                               .n_parts = 1,
                               .raw_bytes = d->payload_bytes,
                               .stored_bytes = d->payload_bytes,
                               .created_s = kvd_wall_now_s(&service->wall),
                               .put_id =
                                   service->put_id_base + atomic_fetch_add(&service->next_id, 1)};
    kvd_group_of(p->keys, index, &ret->group);
    ret->parts[0] = (struct kvd_record_part){.kind = KVD_PART_KV, .raw_bytes = d->payload_bytes};
    ret->blocks[0] =
        (struct kvd_record_block){.key = p->keys[index],
                                  .tokens = p->tokens + (size_t)index * d->block_tokens,
                                  .n_tokens = d->block_tokens};
}

/* Builds the record of block i in a fresh slot. */
static int commit_fill(struct kvd_service *service, const struct put *put, uint32_t i,
                       struct kvd_slot *slot, struct kvd_record *rec, XXH3_state_t *st)
{
    const struct service_space *sp = put->prompt.space;
    uint8_t *payload = slot->base + sp->header_bytes;
    uint64_t bytes = sp->desc.payload_bytes;
    record_describe(service, put, i, rec);
    rec->raw_sum = copy_and_sum(
        payload, put->space->staging + put->staging[i] * put->space->slot_bytes, bytes, st);
    rec->stored_sum = rec->raw_sum;
    memset(payload + bytes, 0, kvd_round_up(bytes, KVD_ALIGN_BYTES) - bytes);
    int n = kvd_record_encode(rec, slot->base, sp->header_bytes);
    return n < 0 ? n : 0;
}

/* One block: 0 and *ret_slot pinned; -KVD_E_EXISTS when somebody else stored it meanwhile; or why
 * not. */
static int commit_block(struct kvd_service *service, const struct put *put, uint32_t i,
                        XXH3_state_t *st, struct kvd_slot **ret_slot)
{
    const struct service_space *sp = put->prompt.space;
    struct kvd_slot *slot = NULL;
    struct kvd_record rec;
    int err = kvd_pool_alloc(service->pool, sp->extent_bytes, put->prompt.scenario->id, &slot);
    if (err) {
        return err;
    }
    err = commit_fill(service, put, i, slot, &rec, st);
    uint32_t today = kvd_day_of(rec.created_s);
    struct kvd_slot_meta meta = {.addr = prompt_addr(&put->prompt, put->first + i),
                                 .group = rec.group,
                                 .index = rec.index,
                                 .scenario = rec.scenario,
                                 .last_use_day = today,
                                 .created_day = today,
                                 .put_id = rec.put_id,
                                 .header_bytes = sp->header_bytes,
                                 .payload_bytes = (uint32_t)rec.raw_bytes};
    err = err ? err : kvd_pool_publish(service->pool, slot, &meta);
    if (err) {
        kvd_pool_cancel(service->pool, slot);
        return err;
    }
    *ret_slot = slot;
    return 0;
}

static int commit_blocks(struct kvd_service *service, struct put *put, uint32_t *committed,
                         uint32_t *not_written)
{
    XXH3_state_t *st = XXH3_createState();
    int err = st ? 0 : -ENOMEM;
    for (uint32_t i = 0; i < put->n && !err; i++) {
        struct kvd_slot *slot = NULL;
        if (put->staging[i] == NOT_GRANTED) {
            continue;
        }
        err = commit_block(service, put, i, st, &slot);
        if (err == -KVD_E_EXISTS) {
            err = 0;
        } else if (!err) {
            bool below = !purge_took(service, &put->prompt, put->first + i, slot) &&
                         put->prompt.scenario->nvme && service->nvme;
            *not_written += below && !writedown_submit(service, slot);
            kvd_pool_unpin(service->pool, slot);
        }
        *committed += !err;
    }
    (void)XXH3_freeState(st);
    return err == -KVD_E_FULL ? 0 : err; /* what found no room is refused, and said by the count */
}

static void commit_run(struct kvd_work *work)
{
    struct commit_job *job = KVD_CONTAINER_OF(work, struct commit_job, work);
    struct put *put = job->put;
    struct kvd_session *session = put->session;
    struct kvd_service *service = session->service;
    uint32_t committed = 0;
    uint32_t not_written = 0;
    uint32_t granted = 0;
    for (uint32_t i = 0; i < put->n; i++) {
        granted += put->staging[i] != NOT_GRANTED;
    }
    int err = commit_blocks(service, put, &committed, &not_written);
    atomic_fetch_add(&service->counts.committed_blocks, committed);
    atomic_fetch_add(&service->counts.refused_blocks, granted - committed);
    if (not_written && KVD_PROTECT(FULL_QUEUE_IS_COUNTED)) {
        atomic_fetch_add(&service->counts.not_written_down, not_written);
        atomic_store(&service->counts.not_written_ns, kvd_mono_ns());
    }
    if (committed && put->first == 0) {
        kvd_owners_note(service->owners, put->prompt.tokens, put->prompt.space->desc.block_tokens,
                        &put->prompt.space->digest, &put->prompt.tenant);
    }
    put_end(put);
    job->done(err, committed, not_written, job->user);
    free(job);
    session_unref(session);
}

static struct put *put_claim(struct kvd_session *session, uint64_t id)
{
    struct put *found = NULL;
    (void)pthread_mutex_lock(&session->service->mtx);
    kvd_list_foreach (ip, &session->puts) {
        struct put *p = KVD_CONTAINER_OF(ip, struct put, link);
        if ((p->id == id || !KVD_PROTECT(PUT_ID)) && !p->busy) {
            found = p;
        }
    }
    if (found) {
        found->busy = true;
        session_ref_locked(session);
    }
    (void)pthread_mutex_unlock(&session->service->mtx);
    return found;
}

void kvd_service_put_commit(struct kvd_session *session, uint64_t id, bool abort,
                            kvd_put_done_fn *done, void *user)
{
    KVD_MAGIC_CHECK(session, SESSION_MAGIC);
    struct put *put = put_claim(session, id);
    const bool publish = !abort || !KVD_PROTECT(PUT_GIVEN_UP);
    struct commit_job *job = put && publish ? calloc(1, sizeof(*job)) : NULL;
    if (job) {
        *job = (struct commit_job){
            .work = {.run = commit_run}, .put = put, .done = done, .user = user};
        kvd_workers_submit(session->service->workers, &job->work);
        return;
    }
    if (put) {
        put_end(put);
    }
    done(!put ? -KVD_E_STALE : abort ? 0 : -ENOMEM, 0, 0, user);
    if (put) {
        session_unref(session);
    }
}
