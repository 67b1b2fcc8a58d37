/*
 * Look-up: the longest stored prefix of a prompt. Down: residency in dram, then the index for what
 * isn't there; back: a lease on what was found, and the count of it, hits by tier and misses by
 * reason.
 */
#include <errno.h>
#include <stdlib.h>

#include "cachesvc/core/service_private.h"
#include "proto/base/assert.h"
#include "proto/base/cleanup.h"
#include "proto/base/clock.h"
#include "proto/base/protect.h"

struct expiry_clock expiry_clock(struct kvd_service *service)
{
    int64_t skew = kvd_wall_skew_s(&service->wall);
    return (struct expiry_clock){.now_s = kvd_wall_now_s(&service->wall),
                                 .frozen = skew > SKEW_FREEZE_S || skew < -SKEW_FREEZE_S};
}

bool class_expired(struct kvd_service *service, struct expiry_clock clock, uint16_t scenario,
                   uint32_t last_use_day, uint32_t created_day)
{
    const struct kvd_scenario *sc = kvd_scenario_by_id(service->config->scenarios_table, scenario);
    /* a class that is no longer configured keeps nothing */
    return !sc ||
           (!clock.frozen && kvd_retention_expired(sc, last_use_day, created_day, clock.now_s));
}

uint16_t class_longer(struct kvd_service *service, uint16_t had, const struct kvd_scenario *user)
{
    const struct kvd_scenario *sc = kvd_scenario_by_id(service->config->scenarios_table, had);
    return sc ? kvd_retention_longer(sc, user)->id : user->id;
}

static enum kvd_miss_reason reason_of_gone(uint8_t gone)
{
    switch (gone) {
    case KVD_GONE_EXPIRED:
        return KVD_MISS_EXPIRED;
    case KVD_GONE_LOST:
    case KVD_GONE_CORRUPT:
        return KVD_MISS_FAILED;
    case KVD_GONE_PURGED:
        return KVD_MISS_PURGED;
    default:
        return KVD_MISS_EVICTED;
    }
}

bool entry_usable(struct kvd_service *service, struct expiry_clock clock,
                  const struct kept_prompt *prompt, uint32_t index,
                  const struct kvd_index_entry *entry, enum kvd_miss_reason *ret_reason)
{
    struct kvd_segment_info info = {0};
    if (entry->segment == 0) {
        *ret_reason = reason_of_gone(entry->gone);
        return false;
    }
    if (!service->nvme || !service->nvme->ops->live(service->nvme, entry->segment, &info)) {
        *ret_reason = reason_of_gone(info.gone);
        return false;
    }
    if (purge_hides(service, prompt, index, entry->put_id)) {
        *ret_reason = KVD_MISS_PURGED;
        return false;
    }
    if (class_expired(service, clock, entry->scenario, entry->last_use_day, entry->created_day)) {
        *ret_reason = KVD_MISS_EXPIRED;
        return false;
    }
    return true;
}

/* What a look-up works on. */
struct lookup {
    struct kvd_session *session;
    struct kvd_service *service;
    struct expiry_clock clock;
    struct lease *lease;              /* made first: pins are charged to it */
    const struct kept_prompt *prompt; /* the lease's */
    uint32_t asked;
    uint32_t hit;
    struct kvd_addr *addrs;  /* asked rows */
    struct kvd_slot **slots; /* asked rows of scratch, as: */
    struct kvd_slot_use *uses;
    struct kvd_index_entry *entries; /* of blocks from `indexed_from` on */
    uint8_t *found;
    uint32_t indexed_from;
    bool indexed;
    bool index_failed; /* what it would have said counts as a failed load */
    struct kvd_tally tally;
};

static void lookup_fini(struct lookup *lu)
{
    free(lu->addrs);
    free(lu->slots);
    free(lu->uses);
    free(lu->entries);
    free(lu->found);
}

static int lookup_ask_index(struct lookup *lu, uint32_t from)
{
    uint32_t n = lu->asked - from;
    lu->entries = calloc(n, sizeof(*lu->entries));
    lu->found = calloc(n, 1);
    if (!lu->entries || !lu->found) {
        return -ENOMEM;
    }
    lu->indexed = true;
    lu->indexed_from = from;
    int err = kvd_index_lookup(lu->service->index, lu->prompt->keys, from, n, lu->prompt->rank,
                               lu->entries, lu->found);
    if (err && KVD_PROTECT(DRAM_WITHOUT_INDEX)) {
        lu->index_failed = true; /* what is in dram is served all the same */
        memset(lu->found, KVD_INDEX_ABSENT, n);
        err = 0;
    }
    return err;
}

/* Goes on over blocks in dram. Pins them for the lease as far as the limits allow; beyond them they
 * are found again at load. */
static void lookup_dram(struct lookup *lu)
{
    struct kvd_pool *pool = lu->service->pool;
    uint32_t first = lu->hit;
    uint32_t n = kvd_pool_pin_chain(pool, lu->addrs + first, lu->asked - first, lu->slots);
    uint32_t wanted = 0;
    kvd_pool_uses(pool, lu->slots, n, lu->uses);
    while (wanted < n) {
        const struct kvd_slot_use *use = &lu->uses[wanted];
        if (purge_hides(lu->service, lu->prompt, first + wanted, use->put_id) ||
            class_expired(lu->service, lu->clock, use->scenario, use->last_use_day,
                          use->created_day)) {
            break;
        }
        lu->lease->blocks[first + wanted++] =
            (struct lease_block){.tier = KVD_TIER_DRAM, .seen = {use->last_use_day, use->scenario}};
    }
    lu->hit += wanted;
    for (uint32_t i = lease_take_slots(lu->lease, first, lu->slots, wanted); i < n; i++) {
        kvd_pool_unpin(pool, lu->slots[i]);
    }
}

static bool lookup_below(struct lookup *lu, uint32_t i, struct lease_block *ret, int *err)
{
    if (!lu->indexed) {
        *err = lookup_ask_index(lu, i);
        if (*err) {
            return false;
        }
    }
    const struct kvd_index_entry *e = &lu->entries[i - lu->indexed_from];
    enum kvd_miss_reason why;
    if (lu->found[i - lu->indexed_from] != KVD_INDEX_FOUND ||
        !entry_usable(lu->service, lu->clock, lu->prompt, i, e, &why)) {
        return false;
    }
    *ret = (struct lease_block){
        .tier = KVD_TIER_NVME,
        .place = {.segment = e->segment, .offset = e->offset, .extent_bytes = e->extent_bytes},
        .seen = {e->last_use_day, e->scenario}};
    return true;
}

static int lookup_walk(struct lookup *lu)
{
    int err = 0;
    for (;;) {
        lookup_dram(lu);
        if (lu->hit == lu->asked ||
            (!lookup_below(lu, lu->hit, &lu->lease->blocks[lu->hit], &err) &&
             (err || KVD_PROTECT(PREFIX_WITHOUT_HOLES)))) {
            break;
        }
        lu->hit++;
    }
    if (!err && lu->hit < lu->asked && !lu->indexed) {
        err = lookup_ask_index(lu, lu->hit);
    }
    return err;
}

/* ---- why not ---- */

static enum kvd_miss_reason reason_of_first(struct lookup *lu)
{
    uint32_t i = lu->hit;
    enum kvd_miss_reason why = KVD_MISS_NEVER_SEEN;
    struct kvd_addr addr = {.key = lu->prompt->keys[i], .rank = lu->prompt->rank};
    (void)pthread_mutex_lock(&lu->service->mtx);
    bool pending = put_pending_locked(lu->service, &addr, kvd_mono_ns());
    (void)pthread_mutex_unlock(&lu->service->mtx);
    uint8_t found = lu->found[i - lu->indexed_from];
    if (pending) {
        return KVD_MISS_PENDING;
    }
    if (lu->index_failed) {
        return KVD_MISS_FAILED;
    }
    if (found == KVD_INDEX_FOUND) {
        /* usable yet a miss: it expired in dram and a copy below is not worth more */
        return entry_usable(lu->service, lu->clock, lu->prompt, i,
                            &lu->entries[i - lu->indexed_from], &why)
                   ? KVD_MISS_EXPIRED
                   : why;
    }
    if (found == KVD_INDEX_SIBLING) {
        return KVD_MISS_DIVERGED;
    }
    if (i == 0 && kvd_owners_other(lu->service->owners, lu->prompt->tokens,
                                   lu->prompt->space->desc.block_tokens, &lu->prompt->space->digest,
                                   &lu->prompt->tenant)) {
        return KVD_MISS_OTHER_OWNER;
    }
    return KVD_MISS_NEVER_SEEN;
}

/* A block behind the first that is missing: its own ghost explains it; what is there but can't be
 * reached, and what was never there for the same cause, share the first one's reason. */
static enum kvd_miss_reason reason_of_later(struct lookup *lu, uint32_t i,
                                            enum kvd_miss_reason first)
{
    enum kvd_miss_reason why = first;
    uint8_t found = lu->found[i - lu->indexed_from];
    if (found == KVD_INDEX_FOUND) {
        (void)entry_usable(lu->service, lu->clock, lu->prompt, i,
                           &lu->entries[i - lu->indexed_from], &why);
        return why;
    }
    bool shared = lu->index_failed || first == KVD_MISS_PENDING || first == KVD_MISS_DIVERGED ||
                  first == KVD_MISS_OTHER_OWNER;
    return shared ? first : KVD_MISS_NEVER_SEEN;
}

static void amount_add(struct kvd_amount *a, const struct kvd_space_desc *d)
{
    a->tokens += d->block_tokens;
    a->blocks++;
    a->bytes += d->payload_bytes;
}

static void lookup_count(struct lookup *lu, uint32_t n_tokens, struct kvd_count_slot *ret_slot)
{
    const struct kvd_space_desc *d = &lu->prompt->space->desc;
    struct kvd_tally *t = &lu->tally;
    uint64_t whole = (uint64_t)lu->asked * d->block_tokens;
    uint64_t rest = KVD_PROTECT(COUNT_ALL_ASKED) ? n_tokens - whole : 0;
    t->lookups = 1;
    t->asked.tokens = whole + rest;
    t->asked.blocks = lu->asked;
    t->asked.bytes = lu->asked * d->payload_bytes;
    for (uint32_t i = 0; i < lu->hit; i++) {
        amount_add(&t->hit[lu->lease->blocks[i].tier], d);
    }
    if (lu->hit < lu->asked) {
        enum kvd_miss_reason first = reason_of_first(lu);
        amount_add(&t->missed[first], d);
        for (uint32_t i = lu->hit + 1; i < lu->asked; i++) {
            amount_add(&t->missed[reason_of_later(lu, i, first)], d);
        }
    }
    t->missed[KVD_MISS_SHORT].tokens = rest;
    struct kvd_count_who who;
    prompt_who(lu->prompt, &who);
    /* now, whatever will be loaded of it */
    if (KVD_PROTECT(COUNT_MISSES) || lu->hit > 0) {
        kvd_counting_lookup(lu->service->counting, kvd_mono_ns() / KVD_NS_PER_S, &who, t, ret_slot);
    }
}

static void lookup_results(const struct lookup *lu, struct kvd_wire_block *ret)
{
    memset(ret, 0, lu->asked * sizeof(*ret));
    for (uint32_t i = 0; i < lu->hit; i++) {
        ret[i].state = KVD_BLOCK_STORED;
        ret[i].tier = lu->lease->blocks[i].tier;
        ret[i].bytes = lu->prompt->space->desc.payload_bytes;
    }
}

/* Makes the lease, which takes the prompt over, and the scratch arrays. */
static int lookup_begin(struct lookup *lu, struct kept_prompt *prompt, struct kvd_diag *diag)
{
    lu->lease = lease_create(lu->session, prompt, lu->asked);
    prompt_fini(prompt);
    lu->addrs = malloc((lu->asked + 1) * sizeof(*lu->addrs));
    lu->slots = malloc((lu->asked + 1) * sizeof(struct kvd_slot *));
    lu->uses = malloc((lu->asked + 1) * sizeof(*lu->uses));
    if (!lu->lease || !lu->addrs || !lu->slots || !lu->uses) {
        return kvd_fail(diag, -ENOMEM, "out of memory");
    }
    lu->prompt = &lu->lease->prompt;
    for (uint32_t i = 0; i < lu->asked; i++) {
        lu->addrs[i] = prompt_addr(lu->prompt, i);
    }
    lu->clock = expiry_clock(lu->service);
    return 0;
}

static int lookup_check(struct kvd_session *session, uint32_t asked, uint32_t results_cap,
                        struct kvd_diag *diag)
{
    if (asked > results_cap) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "room for %u results, the prompt has %u blocks",
                        results_cap, asked);
    }
    (void)pthread_mutex_lock(&session->service->mtx);
    bool many = session->n_leases >= SESSION_LEASES_MAX;
    (void)pthread_mutex_unlock(&session->service->mtx);
    if (many) {
        return kvd_fail(diag, -KVD_E_OVER_QUOTA,
                        "%d leases are open, which is the limit for one client; release some",
                        SESSION_LEASES_MAX);
    }
    return 0;
}

/* A lease costs what was found, not what was asked for. */
static void lease_shrink(struct lease *lease, uint32_t hit)
{
    uint32_t bt = lease->prompt.space->desc.block_tokens;
    struct kvd_key *keys = realloc(lease->prompt.keys, (hit + 1) * sizeof(*keys));
    uint32_t *tokens = realloc(lease->prompt.tokens, ((size_t)hit * bt + 1) * sizeof(*tokens));
    struct lease_block *blocks = realloc(lease->blocks, (hit + 1) * sizeof(*blocks));
    lease->prompt.keys = keys ? keys : lease->prompt.keys;
    lease->prompt.tokens = tokens ? tokens : lease->prompt.tokens;
    lease->blocks = blocks ? blocks : lease->blocks;
    lease->prompt.n_blocks = hit;
    lease->counted_blocks = hit;
}

static int lookup_run(struct lookup *lu, struct kept_prompt *prompt, uint32_t n_tokens,
                      struct kvd_diag *diag, struct kvd_wire_block *ret_results,
                      struct kvd_match_out *ret)
{
    int err = lookup_begin(lu, prompt, diag);
    err = err ? err : lookup_walk(lu);
    if (err) {
        if (lu->lease) {
            lease_destroy(lu->lease);
        }
        return kvd_fail_prefix(diag, err, "look-up failed");
    }
    struct kvd_count_slot slot = {0};
    lookup_count(lu, n_tokens, &slot);
    lookup_results(lu, ret_results);
    *ret = (struct kvd_match_out){.asked_blocks = lu->asked, .hit_blocks = lu->hit};
    lu->lease->count_slot = slot;
    lease_shrink(lu->lease, lu->hit);
    if (lu->hit == 0) {
        lease_destroy(lu->lease);
        return 0;
    }
    kvd_owners_note(lu->service->owners, lu->prompt->tokens, lu->prompt->space->desc.block_tokens,
                    &lu->prompt->space->digest, &lu->prompt->tenant);
    ret->lease = lu->lease->id;
    lease_publish(lu->lease);
    return 0;
}

int kvd_service_match(struct kvd_session *session, const struct kvd_prompt_ref *prompt,
                      struct kvd_diag *diag, struct kvd_wire_block *ret_results,
                      uint32_t results_cap, struct kvd_match_out *ret)
{
    KVD_MAGIC_CHECK(session, SESSION_MAGIC);
    struct lookup lu = {.session = session, .service = session->service};
    struct session_space *sp = session_space_of(session, prompt->space_handle);
    uint32_t bt = sp ? sp->space->desc.block_tokens : 1;
    lu.asked = sp && prompt->n_tokens ? (prompt->n_tokens - 1) / bt : 0;
    struct kept_prompt kept = {0};
    int err = lookup_check(session, lu.asked, results_cap, diag);
    err = err ? err : prompt_keep(session, prompt, lu.asked, diag, &kept);
    err = err ? err : lookup_run(&lu, &kept, prompt->n_tokens, diag, ret_results, ret);
    lookup_fini(&lu);
    return err;
}
