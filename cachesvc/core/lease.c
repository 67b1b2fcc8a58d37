/*
 * Leases: what a match gives and a load uses. It holds its blocks in dram until it is released, its
 * client ends, or its deadline passes; a client that copies later than that is told so by the
 * slots' generations. Blocks that were placed, because the client uses them where they lie, are
 * held whatever the time: there is no copy that could be found late. Held for long they are an
 * alarm.
 */
#include <errno.h>
#include <stdlib.h>

#include "cachesvc/core/service_private.h"
#include "proto/base/assert.h"
#include "proto/base/clock.h"
#include "proto/base/protect.h"

struct lease *lease_create(struct kvd_session *session, struct kept_prompt *prompt_taken,
                           uint32_t n_blocks)
{
    struct lease *l = calloc(1, sizeof(*l));
    struct lease_block *blocks = calloc(n_blocks + 1, sizeof(*blocks));
    if (!l || !blocks) {
        free(l);
        free(blocks);
        return NULL;
    }
    kvd_list_init(&l->link);
    kvd_list_init(&l->overdue);
    l->stale_from = UINT32_MAX;
    l->session = session;
    l->prompt = *prompt_taken;
    l->prompt.n_blocks = n_blocks;
    prompt_taken->keys = NULL;
    prompt_taken->tokens = NULL;
    l->blocks = blocks;
    l->counted_blocks = n_blocks;
    l->id = atomic_fetch_add(&session->service->next_id, 1);
    return l;
}

void lease_publish(struct lease *lease)
{
    struct kvd_session *s = lease->session;
    (void)pthread_mutex_lock(&s->service->mtx);
    lease->deadline_ns = kvd_mono_ns() + s->service->config->client_copy_lease * KVD_NS_PER_MS;
    kvd_list_push_back(&s->leases, &lease->link);
    s->n_leases++;
    s->service->n_leases++;
    (void)pthread_mutex_unlock(&s->service->mtx);
}

struct lease *lease_find_locked(struct kvd_session *session, uint64_t id)
{
    kvd_list_foreach (it, &session->leases) {
        struct lease *l = KVD_CONTAINER_OF(it, struct lease, link);
        if (l->id == id) {
            return l;
        }
    }
    return NULL;
}

/* ---- what is pinned ----
 *
 * A slot counts once for each client that pins it, and once for all: then what a client gives up is
 * still counted as long as somebody else holds it, and nobody pays for what others do. */

/* lock: service.mtx. Whether the limits allow so many bytes more of this client, and of all. */
static bool within_limits_locked(const struct lease *lease, uint64_t own, uint64_t all)
{
    const struct kvd_session *session = lease->session;
    const struct kvd_service *service = session->service;
    if (KVD_PROTECT(PIN_LIMIT_CLIENT) && session->pinned_bytes + own > service->pin_cap_client) {
        return false;
    }
    return !KVD_PROTECT(PIN_LIMIT_ALL) || service->pinned_bytes + all <= service->pin_cap;
}

/* lock: service.mtx. Takes a pinned slot into the accounts, or says no. */
static bool charge_locked(struct lease *lease, struct kvd_slot *slot)
{
    struct kvd_session *session = lease->session;
    struct kvd_service *service = session->service;
    const uint64_t bytes = lease->prompt.space->extent_bytes;
    const uint64_t own = pin_table_has(&session->pins, slot) ? 0 : bytes;
    const uint64_t all = slot->leased ? 0 : bytes;
    if (!within_limits_locked(lease, own, all) || !pin_table_reserve(&session->pins)) {
        return false;
    }
    session->pinned_bytes += own;
    service->pinned_bytes += all;
    slot->leased = (uint16_t)(slot->leased + pin_table_add(&session->pins, slot));
    return true;
}

/* lock: service.mtx. A lease gives a slot up. The pin goes under the lock, so that nobody can take
 * its bytes of the limits while it still holds the slot; and after the account, which is the
 * slot's only while it is pinned. */
static void slot_drop_locked(struct lease *lease, uint32_t index)
{
    struct kvd_session *session = lease->session;
    struct kvd_service *service = session->service;
    struct kvd_slot *slot = lease->blocks[index].slot;
    const uint64_t bytes = lease->prompt.space->extent_bytes;
    if (!slot) {
        return;
    }
    lease->blocks[index].slot = NULL;
    lease->blocks[index].placed = false;
    if (pin_table_remove(&session->pins, slot)) {
        session->pinned_bytes -= bytes;
        service->pinned_bytes -= --slot->leased == 0 ? bytes : 0;
    }
    kvd_pool_unpin(service->pool, slot);
}

uint32_t lease_take_slots(struct lease *lease, uint32_t first, struct kvd_slot *const *slots,
                          uint32_t n)
{
    struct kvd_service *service = lease->session->service;
    uint32_t taken = 0;
    (void)pthread_mutex_lock(&service->mtx);
    while (taken < n && charge_locked(lease, slots[taken])) {
        KVD_ASSERT(!lease->blocks[first + taken].slot);
        lease->blocks[first + taken].slot = slots[taken];
        taken++;
    }
    (void)pthread_mutex_unlock(&service->mtx);
    return taken;
}

bool lease_reserve(struct lease *lease)
{
    struct kvd_session *session = lease->session;
    struct kvd_service *service = session->service;
    const uint64_t bytes = lease->prompt.space->extent_bytes;
    (void)pthread_mutex_lock(&service->mtx);
    const bool room = within_limits_locked(lease, bytes, bytes);
    if (room) {
        session->pinned_bytes += bytes;
        service->pinned_bytes += bytes;
    }
    (void)pthread_mutex_unlock(&service->mtx);
    return room;
}

static void unreserve_locked(struct lease *lease)
{
    const uint64_t bytes = lease->prompt.space->extent_bytes;
    KVD_ASSERT(lease->session->pinned_bytes >= bytes &&
               lease->session->service->pinned_bytes >= bytes);
    lease->session->pinned_bytes -= bytes;
    lease->session->service->pinned_bytes -= bytes;
}

void lease_unreserve(struct lease *lease)
{
    struct kvd_service *service = lease->session->service;
    (void)pthread_mutex_lock(&service->mtx);
    unreserve_locked(lease);
    (void)pthread_mutex_unlock(&service->mtx);
}

bool lease_take_reserved(struct lease *lease, uint32_t index, struct kvd_slot *slot)
{
    struct kvd_service *service = lease->session->service;
    (void)pthread_mutex_lock(&service->mtx);
    unreserve_locked(lease);
    const bool taken = charge_locked(lease, slot);
    if (taken) {
        KVD_ASSERT(!lease->blocks[index].slot);
        lease->blocks[index].slot = slot;
    }
    (void)pthread_mutex_unlock(&service->mtx);
    return taken;
}

void lease_drop_slot(struct lease *lease, uint32_t index)
{
    struct kvd_service *service = lease->session->service;
    (void)pthread_mutex_lock(&service->mtx);
    slot_drop_locked(lease, index);
    (void)pthread_mutex_unlock(&service->mtx);
}

void lease_drop_slots(struct lease *lease, uint32_t end)
{
    struct kvd_service *service = lease->session->service;
    (void)pthread_mutex_lock(&service->mtx);
    for (uint32_t i = 0; i < end; i++) {
        if (!lease->blocks[i].placed || !KVD_PROTECT(PLACE_WITHOUT_DEADLINE)) {
            slot_drop_locked(lease, i);
        }
    }
    (void)pthread_mutex_unlock(&service->mtx);
}

void lease_place(struct lease *lease, uint32_t first, uint32_t n)
{
    struct kvd_service *service = lease->session->service;
    (void)pthread_mutex_lock(&service->mtx);
    for (uint32_t i = first; i < first + n; i++) {
        lease->blocks[i].placed = true;
    }
    if (n > 0 && !lease->placed_ns) {
        lease->placed_ns = kvd_mono_ns();
    }
    (void)pthread_mutex_unlock(&service->mtx);
}

void lease_destroy(struct lease *lease)
{
    struct kvd_service *service = lease->session->service;
    (void)pthread_mutex_lock(&service->mtx);
    for (uint32_t i = 0; i < lease->prompt.n_blocks; i++) {
        slot_drop_locked(lease, i);
    }
    (void)pthread_mutex_unlock(&service->mtx);
    prompt_fini(&lease->prompt);
    free(lease->blocks);
    free(lease);
}

/* Takes a lease out of the tables. Returns it where the caller is to free it, NULL where the one
 * who claimed it will. */
static struct lease *lease_unlink_locked(struct lease *lease)
{
    struct kvd_session *s = lease->session;
    kvd_list_remove(&lease->link);
    s->n_leases--;
    s->service->n_leases--;
    lease->released = true;
    return lease->busy ? NULL : lease;
}

/* Frees a released lease. What its client did not get, though it was found, moves to failed. */
static void lease_finish(struct lease *lease)
{
    if (lease->stale_from < lease->prompt.n_blocks) {
        lease_count_failed(lease, lease->stale_from);
    }
    lease_destroy(lease);
}

void lease_unclaim(struct lease *lease)
{
    struct kvd_service *service = lease->session->service;
    (void)pthread_mutex_lock(&service->mtx);
    lease->busy = false;
    bool released = lease->released;
    (void)pthread_mutex_unlock(&service->mtx);
    if (released) {
        lease_finish(lease);
    }
}

static void destroy_all(struct kvd_list *gone)
{
    for (struct kvd_list *it; (it = kvd_list_pop_front(gone));) {
        lease_destroy(KVD_CONTAINER_OF(it, struct lease, link));
    }
}

void kvd_service_release(struct kvd_session *session, uint64_t id, uint32_t stale_from)
{
    KVD_MAGIC_CHECK(session, SESSION_MAGIC);
    struct kvd_service *service = session->service;
    (void)pthread_mutex_lock(&service->mtx);
    struct lease *l = lease_find_locked(session, id);
    if (l) {
        l->stale_from = stale_from;
        l = lease_unlink_locked(l);
    }
    (void)pthread_mutex_unlock(&service->mtx);
    if (l) {
        lease_finish(l);
    }
}

void lease_count_failed(struct lease *lease, uint32_t from)
{
    struct kvd_service *service = lease->session->service;
    const struct kvd_space_desc *d = &lease->prompt.space->desc;
    struct kvd_count_who who;
    prompt_who(&lease->prompt, &who);
    struct kvd_amount moved[KVD_TIER_COUNT] = {{0}};
    for (uint32_t i = from; i < lease->counted_blocks; i++) {
        struct kvd_amount *m = &moved[lease->blocks[i].tier];
        m->tokens += d->block_tokens;
        m->blocks++;
        m->bytes += d->payload_bytes;
    }
    for (int tier = 0; tier < KVD_TIER_COUNT; tier++) {
        if (moved[tier].blocks) {
            kvd_counting_failed(service->counting, &lease->count_slot, &who, (enum kvd_tier_id)tier,
                                &moved[tier]);
        }
    }
    if (KVD_PROTECT(COUNT_FAILED_ONCE)) {
        lease->counted_blocks = from < lease->counted_blocks ? from : lease->counted_blocks;
    }
}

/* lock: service.mtx. Claims the overdue leases. */
static void claim_overdue_locked(struct kvd_service *service, uint64_t now_ns, struct kvd_list *ret)
{
    kvd_list_foreach (is, &service->sessions) {
        struct kvd_session *s = KVD_CONTAINER_OF(is, struct kvd_session, link);
        kvd_list_foreach (il, &s->leases) {
            struct lease *l = KVD_CONTAINER_OF(il, struct lease, link);
            if (KVD_PROTECT(LEASE_DEADLINE) && l->deadline_ns <= now_ns && !l->busy && !l->swept) {
                l->busy = true;
                l->swept = true;
                session_ref_locked(s);
                kvd_list_push_back(ret, &l->overdue);
            }
        }
    }
}

/* Nobody may take these pins away, so people are told: once a lease. */
static void alarm_placed(struct lease *lease, uint64_t now_ns)
{
    struct kvd_service *service = lease->session->service;
    char who[SESSION_NAME_MAX];
    uint32_t n = 0;
    (void)pthread_mutex_lock(&service->mtx);
    memcpy(who, lease->session->name, sizeof(who));
    uint64_t held_s = (now_ns - lease->placed_ns) / KVD_NS_PER_S;
    for (uint32_t i = 0; i < lease->prompt.n_blocks; i++) {
        n += lease->blocks[i].placed;
    }
    (void)pthread_mutex_unlock(&service->mtx);
    if (!lease->alarmed) {
        lease->alarmed = true;
        kvd_log_warn(
            service->log,
            "client %s: %u blocks (%llu bytes) of one lease are in use in place for %llu s; "
            "they stay until it releases them or ends",
            who, n, (unsigned long long)(n * lease->prompt.space->extent_bytes),
            (unsigned long long)held_s);
    }
}

/* Takes the pins away, but for those of placed blocks. The lease stays, without them, until it is
 * released or its client ends, so that what its client then says of it is still counted. */
static void expire_overdue(struct kvd_service *service, uint64_t now_ns)
{
    struct kvd_list overdue;
    kvd_list_init(&overdue);
    (void)pthread_mutex_lock(&service->mtx);
    claim_overdue_locked(service, now_ns, &overdue);
    (void)pthread_mutex_unlock(&service->mtx);
    for (struct kvd_list *it; (it = kvd_list_pop_front(&overdue));) {
        struct lease *l = KVD_CONTAINER_OF(it, struct lease, overdue);
        struct kvd_session *s = l->session;
        lease_drop_slots(l, l->prompt.n_blocks);
        l->expired = !l->placed_ns;
        if (l->placed_ns) {
            alarm_placed(l, now_ns);
        }
        lease_unclaim(l);
        session_unref(s);
    }
}

void lease_tick(void *service)
{
    expire_overdue(service, kvd_mono_ns());
}

void lease_places(struct kvd_service *service, uint64_t now_ns, struct lease_places *ret)
{
    *ret = (struct lease_places){0};
    (void)pthread_mutex_lock(&service->mtx);
    kvd_list_foreach (is, &service->sessions) {
        const struct kvd_session *s = KVD_CONTAINER_OF(is, struct kvd_session, link);
        kvd_list_foreach (il, &s->leases) {
            const struct lease *l = KVD_CONTAINER_OF(il, struct lease, link);
            const uint64_t held = l->placed_ns ? now_ns - l->placed_ns : 0;
            ret->leases += l->placed_ns != 0;
            ret->overdue += l->placed_ns != 0 && l->deadline_ns <= now_ns;
            ret->oldest_ns = held > ret->oldest_ns ? held : ret->oldest_ns;
        }
    }
    (void)pthread_mutex_unlock(&service->mtx);
}

void lease_end_session(struct kvd_session *session)
{
    struct kvd_list gone;
    kvd_list_init(&gone);
    (void)pthread_mutex_lock(&session->service->mtx);
    kvd_list_foreach_safe (il, &session->leases) {
        struct lease *l = lease_unlink_locked(KVD_CONTAINER_OF(il, struct lease, link));
        if (l) {
            kvd_list_push_back(&gone, &l->link);
        }
    }
    (void)pthread_mutex_unlock(&session->service->mtx);
    destroy_all(&gone);
}
