/*
 * Purging: what a purge or a drop does, and what it hides.
 *
 * A purge's rows (purges.h) are durable, then seen by every question; then the pool gives back the
 * slots that they hide. A put that runs beside it has drawn its put id before the cut, and is
 * purged, or after it, and is not; a put or load that publishes what the walk over the pool has
 * passed already looks once more (purge_took). What lies below dram stays in its segments, hidden,
 * until these go.
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "cachesvc/core/service_private.h"
#include "proto/base/assert.h"
#include "proto/base/cleanup.h"
#include "proto/base/protect.h"

enum { SPACE_DIGITS_MIN = 8, SPACE_DIGITS_MAX = 2 * KVD_DIGEST_BYTES };

/* ---- what is hidden ---- */

void purge_look(struct kvd_service *service, struct kept_prompt *prompt)
{
    kvd_purges_view(service->purges, &prompt->space->digest, &prompt->tenant, &prompt->purged);
}

bool purge_hides(struct kvd_service *service, const struct kept_prompt *prompt, uint32_t index,
                 uint64_t put_id)
{
    const struct kvd_purge_view *view = &prompt->purged;
    if (!KVD_PROTECT(PURGE_AT_LOOKUP)) {
        return false;
    }
    return (view->cut && put_id <= view->cut) ||
           (put_id <= view->block_cut &&
            kvd_purges_hides_block(service->purges, &prompt->space->digest, &prompt->tenant,
                                   &prompt->keys[index], prompt->rank, put_id));
}

bool purge_hides_slot(struct kvd_service *service, const struct kvd_slot *slot)
{
    if (slot->meta.put_id > kvd_purges_newest(service->purges)) {
        return false;
    }
    struct kvd_record rec;
    uint32_t header_bytes = 0;
    KVD_AUTOFREE uint32_t *tokens =
        malloc(sizeof(*tokens) * KVD_RECORD_BLOCKS_MAX * KVD_BLOCK_TOKENS_MAX);
    /* a header that can't be read is found to be bad by whoever uses the slot */
    return tokens &&
           kvd_record_decode(slot->base, slot->slot_bytes, tokens,
                             KVD_RECORD_BLOCKS_MAX * KVD_BLOCK_TOKENS_MAX, &rec,
                             &header_bytes) == 0 &&
           kvd_purges_hides(service->purges, &rec.space, &rec.tenant, &slot->meta.addr.key,
                            slot->meta.addr.rank, slot->meta.put_id);
}

void purge_slot(struct kvd_service *service, struct kvd_slot *slot)
{
    struct kvd_slot_meta meta;
    kvd_pool_meta(service->pool, slot, &meta);
    kvd_pool_remove(service->pool, slot);
    if (!meta.nvme_segment) { /* else its entry stays, and is hidden by its put id */
        ghost_submit(service, &meta, KVD_GONE_PURGED);
    }
}

bool purge_took(struct kvd_service *service, const struct kept_prompt *prompt, uint32_t index,
                struct kvd_slot *slot)
{
    bool hidden = KVD_PROTECT(PURGE_AT_PUBLISH) &&
                  kvd_purges_hides(service->purges, &prompt->space->digest, &prompt->tenant,
                                   &prompt->keys[index], prompt->rank, slot->meta.put_id);
    if (hidden) {
        purge_slot(service, slot);
    }
    return hidden;
}

/* A record that a cut hides was put, at the latest, in the run whose boot number the cut carries,
 * and never written down in a later run: so it can only lie in segments of that run or older ones.
 */
void purge_forget(struct kvd_service *service, uint64_t oldest_epoch)
{
    uint64_t boot = service->identity.boot;
    uint64_t epoch = oldest_epoch < boot ? oldest_epoch : boot;
    int err = kvd_purges_forget(service->purges, epoch << PUT_ID_BOOT_SHIFT);
    if (err) {
        kvd_log_warn(service->log, "the log of purges can't be made shorter: %s",
                     kvd_strerror(err));
    }
}

static uint64_t next_put_id(void *user)
{
    struct kvd_service *service = user;
    return service->put_id_base + atomic_fetch_add(&service->next_id, 1);
}

/* ---- purge ---- */

struct purge_job {
    struct kvd_work work;
    struct kvd_session *session;
    struct kvd_purge_what what;
    struct kvd_purge_out out;
    kvd_purge_done_fn *done;
    void *user;
};

static void sweep_slot(struct kvd_slot *slot, void *user)
{
    struct purge_job *job = user;
    struct kvd_service *service = job->session->service;
    if (purge_hides_slot(service, slot)) {
        job->out.dram_blocks++;
        job->out.dram_bytes += slot->meta.payload_bytes;
        purge_slot(service, slot);
    }
}

/* Whose blocks, for the log: digests, because names are users'. */
static void what_text(const struct kvd_purge_what *what, char *ret, size_t bytes)
{
    char tenant[KVD_DIGEST_HEX];
    char space[KVD_DIGEST_HEX];
    kvd_hex(what->tenant.b, KVD_DIGEST_BYTES, tenant);
    kvd_hex(what->space.b, KVD_DIGEST_BYTES, space);
    switch ((enum kvd_purge_scope)what->scope) {
    case KVD_PURGE_ALL:
        (void)snprintf(ret, bytes, "everything");
        break;
    case KVD_PURGE_SPACE:
        (void)snprintf(ret, bytes, "space %.16s", space);
        break;
    case KVD_PURGE_TENANT:
        (void)snprintf(ret, bytes, "tenant %.16s", tenant);
        break;
    case KVD_PURGE_TENANT_IN_SPACE:
    case KVD_PURGE_BLOCK:
        (void)snprintf(ret, bytes, "tenant %.16s in space %.16s", tenant, space);
        break;
    }
}

/* Somebody may miss these blocks: who threw them away is in the log. */
static void purge_say(const struct purge_job *job)
{
    struct kvd_service *service = job->session->service;
    char who[SESSION_NAME_MAX];
    char what[128];
    (void)pthread_mutex_lock(&service->mtx);
    memcpy(who, job->session->name, sizeof(who));
    (void)pthread_mutex_unlock(&service->mtx);
    what_text(&job->what, what, sizeof(what));
    kvd_log_info(service->log,
                 "client %s: purged %s: %" PRIu64 " blocks in dram, and what is below", who, what,
                 job->out.dram_blocks);
}

static void purge_run(struct kvd_work *work)
{
    struct purge_job *job = KVD_CONTAINER_OF(work, struct purge_job, work);
    struct kvd_session *session = job->session;
    struct kvd_service *service = session->service;
    struct kvd_diag diag = {{0}};
    uint64_t cut = 0;
    int err = kvd_purges_add(service->purges, &job->what, 1, kvd_wall_now_s(&service->wall),
                             next_put_id, service, &diag, &cut);
    if (!err) {
        kvd_pool_walk(service->pool, sweep_slot, job);
        purge_say(job);
    }
    job->done(err, &diag, &job->out, job->user);
    free(job);
    session_unref(session);
}

/* ---- whose: names to digests ---- */

struct space_search {
    const char *digits;
    size_t n;
    struct kvd_digest found;
    uint32_t matches; /* different ones */
};

static void space_try(const struct kvd_digest *digest, void *user)
{
    struct space_search *s = user;
    char hex[KVD_DIGEST_HEX];
    kvd_hex(digest->b, KVD_DIGEST_BYTES, hex);
    if (strncmp(hex, s->digits, s->n) == 0 &&
        (s->matches == 0 || !kvd_digest_equal(&s->found, digest))) {
        s->found = *digest;
        s->matches++;
    }
}

/* Spaces that clients have registered since the start, and those that look-ups were counted for. */
static void spaces_search(struct kvd_service *service, struct space_search *s)
{
    (void)pthread_mutex_lock(&service->mtx);
    for (uint32_t i = 0; i < service->n_spaces; i++) {
        space_try(&service->spaces[i]->digest, s);
    }
    (void)pthread_mutex_unlock(&service->mtx);
    kvd_counting_spaces(service->counting, space_try, s);
}

static int space_resolve(struct kvd_service *service, const char *text, struct kvd_diag *diag,
                         struct kvd_digest *ret)
{
    const char *at = strrchr(text, '@');
    struct space_search s = {.digits = at ? at + 1 : text};
    s.n = strlen(s.digits);
    if (s.n < SPACE_DIGITS_MIN || s.n > SPACE_DIGITS_MAX ||
        strspn(s.digits, "0123456789abcdef") != s.n) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST,
                        "space '%.64s': give %d to %d hexadecimal digits, as `kvdepot hitrate --by "
                        "space` shows them behind the @",
                        text, SPACE_DIGITS_MIN, SPACE_DIGITS_MAX);
    }
    if (s.n == SPACE_DIGITS_MAX) { /* it need not be known */
        KVD_ASSERT(sodium_hex2bin(ret->b, sizeof(ret->b), s.digits, s.n, NULL, NULL, NULL) == 0);
        return 0;
    }
    spaces_search(service, &s);
    if (s.matches != 1) {
        return kvd_fail(diag, s.matches ? -KVD_E_BAD_REQUEST : -KVD_E_NOT_FOUND,
                        s.matches ? "space '%.64s': more than one begins so; give all 64 digits"
                                  : "space '%.64s' is not known here; give all 64 digits, or look "
                                    "at `kvdepot hitrate --by space`",
                        text);
    }
    *ret = s.found;
    return 0;
}

static int ask_resolve(struct kvd_service *service, const struct kvd_purge_ask *ask,
                       struct kvd_diag *diag, struct kvd_purge_what *ret)
{
    struct kvd_digest space = {{0}};
    struct kvd_digest tenant = {{0}};
    bool some = ask->tenant || ask->space;
    if (ask->all == some) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST,
                        "purge: either everything, or a tenant, a space, or both");
    }
    if (ask->tenant && ask->tenant_bytes > KVD_TENANT_NAME_MAX) {
        return kvd_fail(diag, -KVD_E_TOO_LONG, "tenant name of %u bytes: at most %d are allowed",
                        ask->tenant_bytes, KVD_TENANT_NAME_MAX);
    }
    int err = ask->space ? space_resolve(service, ask->space, diag, &space) : 0;
    if (err) {
        return err;
    }
    if (ask->tenant) {
        kvd_tenant_digest(ask->tenant, ask->tenant_bytes, &tenant);
    }
    enum kvd_purge_scope scope = ask->all                    ? KVD_PURGE_ALL
                                 : ask->tenant && ask->space ? KVD_PURGE_TENANT_IN_SPACE
                                 : ask->tenant               ? KVD_PURGE_TENANT
                                                             : KVD_PURGE_SPACE;
    *ret = kvd_purge_what_of(scope, &space, &tenant, NULL, 0);
    return 0;
}

static void session_hold(struct kvd_session *session)
{
    (void)pthread_mutex_lock(&session->service->mtx);
    session_ref_locked(session);
    (void)pthread_mutex_unlock(&session->service->mtx);
}

void kvd_service_purge(struct kvd_session *session, const struct kvd_purge_ask *ask,
                       kvd_purge_done_fn *done, void *user)
{
    KVD_MAGIC_CHECK(session, SESSION_MAGIC);
    struct kvd_diag diag = {{0}};
    struct kvd_purge_what what;
    int err = ask_resolve(session->service, ask, &diag, &what);
    struct purge_job *job = err ? NULL : calloc(1, sizeof(*job));
    if (!job) {
        err = err ? err : kvd_fail(&diag, -ENOMEM, "out of memory");
        done(err, &diag, NULL, user);
        return;
    }
    *job = (struct purge_job){
        .work = {.run = purge_run}, .session = session, .what = what, .done = done, .user = user};
    session_hold(session);
    kvd_workers_submit(session->service->workers, &job->work);
}

/* ---- drop ---- */

struct drop_job {
    struct kvd_work work;
    struct kvd_session *session;
    struct kept_prompt prompt;
    uint32_t first;
    uint32_t n;
    struct kvd_index_entry *entries; /* n rows, as all below; made by the worker, so that what waits
                                        for one is small */
    uint8_t *found;
    struct kvd_purge_what *what; /* of the blocks that left a trace here: */
    uint32_t *blocks;
    uint32_t n_what;
    uint32_t dropped;
    kvd_drop_done_fn *done;
    void *user;
};

static void drop_free(struct drop_job *job)
{
    prompt_fini(&job->prompt);
    free(job->entries);
    free(job->found);
    free(job->what);
    free(job->blocks);
    free(job);
}

/* Whether a block is stored; *ret_trace: whether anything of it may lie anywhere. */
static bool drop_look(struct drop_job *job, uint32_t i, struct expiry_clock clock, bool *ret_trace)
{
    struct kvd_service *service = job->session->service;
    uint32_t index = job->first + i;
    struct kvd_addr addr = prompt_addr(&job->prompt, index);
    struct kvd_slot *slot = kvd_pool_pin(service->pool, &addr);
    enum kvd_miss_reason why;
    bool stored = job->found[i] == KVD_INDEX_FOUND &&
                  entry_usable(service, clock, &job->prompt, index, &job->entries[i], &why);
    *ret_trace = slot || job->found[i] == KVD_INDEX_FOUND;
    if (slot) {
        struct kvd_slot_meta meta;
        kvd_pool_meta(service->pool, slot, &meta);
        stored = stored || (!purge_hides(service, &job->prompt, index, meta.put_id) &&
                            !class_expired(service, clock, meta.scenario, meta.last_use_day,
                                           meta.created_day));
        kvd_pool_unpin(service->pool, slot);
    }
    return stored;
}

/* What was in the pool goes now. What is below is hidden, and its entry says that it was purged. */
static void drop_block(struct drop_job *job, uint32_t i, uint64_t cut)
{
    struct kvd_service *service = job->session->service;
    const struct kvd_index_entry *e = &job->entries[i];
    struct kvd_addr addr = prompt_addr(&job->prompt, job->first + i);
    struct kvd_slot *slot = kvd_pool_pin(service->pool, &addr);
    if (slot) {
        if (slot->meta.put_id <= cut) {
            purge_slot(service, slot);
        }
        kvd_pool_unpin(service->pool, slot);
    }
    if (job->found[i] == KVD_INDEX_FOUND && e->segment) {
        struct kvd_index_change change = {
            .kind = KVD_INDEX_GONE, .expect_segment = e->segment, .expect_offset = e->offset};
        prompt_index_id(&job->prompt, job->first + i, &change.id);
        change.entry.gone = KVD_GONE_PURGED;
        change.entry.gone_s = kvd_wall_now_s(&service->wall);
        (void)kvd_index_submit(service->index, &change, 1, NULL, NULL);
    }
}

static int drop_rows(struct drop_job *job, struct kvd_diag *diag)
{
    job->entries = calloc(job->n, sizeof(*job->entries));
    job->found = calloc(job->n, sizeof(*job->found));
    job->what = calloc(job->n, sizeof(*job->what));
    job->blocks = calloc(job->n, sizeof(*job->blocks));
    return job->entries && job->found && job->what && job->blocks
               ? 0
               : kvd_fail(diag, -ENOMEM, "out of memory");
}

static int drop_blocks(struct drop_job *job, struct kvd_diag *diag)
{
    struct kvd_service *service = job->session->service;
    struct expiry_clock clock = expiry_clock(service);
    uint64_t cut = 0;
    int err = drop_rows(job, diag);
    err = err ? err
              : kvd_index_lookup(service->index, job->prompt.keys, job->first, job->n,
                                 job->prompt.rank, job->entries, job->found);
    for (uint32_t i = 0; i < job->n && !err; i++) {
        bool trace = false;
        job->dropped += drop_look(job, i, clock, &trace);
        if (trace) {
            uint32_t index = job->first + i;
            job->blocks[job->n_what] = i;
            job->what[job->n_what++] =
                kvd_purge_what_of(KVD_PURGE_BLOCK, &job->prompt.space->digest, &job->prompt.tenant,
                                  &job->prompt.keys[index], job->prompt.rank);
        }
    }
    if (!err && job->n_what) {
        err = kvd_purges_add(service->purges, job->what, job->n_what,
                             kvd_wall_now_s(&service->wall), next_put_id, service, diag, &cut);
    }
    for (uint32_t i = 0; i < job->n_what && !err; i++) {
        drop_block(job, job->blocks[i], cut);
    }
    return err;
}

static void drop_run(struct kvd_work *work)
{
    struct drop_job *job = KVD_CONTAINER_OF(work, struct drop_job, work);
    struct kvd_session *session = job->session;
    struct kvd_diag diag = {{0}};
    int err = drop_blocks(job, &diag);
    job->done(err, &diag, job->dropped, job->user);
    drop_free(job);
    session_unref(session);
}

static int drop_prepare(struct kvd_session *session, const struct kvd_prompt_ref *ref,
                        uint32_t first, uint32_t n, struct kvd_diag *diag, struct drop_job *job)
{
    if (n == 0 || first > KVD_WIRE_PROMPT_TOKENS_MAX || n > KVD_WIRE_PROMPT_TOKENS_MAX - first) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "drop of %u blocks from block %u on", n, first);
    }
    return prompt_keep(session, ref, first + n, diag, &job->prompt);
}

void kvd_service_drop(struct kvd_session *session, const struct kvd_prompt_ref *prompt,
                      uint32_t first, uint32_t n, kvd_drop_done_fn *done, void *user)
{
    KVD_MAGIC_CHECK(session, SESSION_MAGIC);
    struct kvd_diag diag = {{0}};
    struct drop_job *job = calloc(1, sizeof(*job));
    int err = job ? drop_prepare(session, prompt, first, n, &diag, job)
                  : kvd_fail(&diag, -ENOMEM, "out of memory");
    if (err) {
        if (job) {
            drop_free(job);
        }
        done(err, &diag, 0, user);
        return;
    }
    job->work.run = drop_run;
    job->session = session;
    job->first = first;
    job->n = n;
    job->done = done;
    job->user = user;
    session_hold(session);
    kvd_workers_submit(session->service->workers, &job->work);
}
