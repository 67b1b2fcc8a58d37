/*
 * Leases: what a match gives and a load uses. A copy-lease holds its blocks in dram until it is
 * released, its client ends, or its deadline passes; a client that copies later than that is told
 * so by the slots' generations.
 */
#include <errno.h>
#include <stdlib.h>

#include "cachesvc/core/service_private.h"
#include "proto/base/assert.h"
#include "proto/base/clock.h"

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

uint32_t lease_charge_some(struct lease *lease, uint64_t bytes, uint32_t n)
{
    struct kvd_service *service = lease->session->service;
    (void)pthread_mutex_lock(&service->mtx);
    uint64_t own = (service->pin_cap_client - lease->session->pinned_bytes) / bytes;
    uint64_t all = (service->pin_cap - service->pinned_bytes) / bytes;
    uint64_t some = own < all ? own : all;
    some = some < n ? some : n;
    lease->session->pinned_bytes += some * bytes;
    service->pinned_bytes += some * bytes;
    (void)pthread_mutex_unlock(&service->mtx);
    return (uint32_t)some;
}

bool lease_charge(struct lease *lease, uint64_t bytes)
{
    return lease_charge_some(lease, bytes, 1) == 1;
}

void lease_discharge(struct lease *lease, uint64_t bytes)
{
    struct kvd_service *service = lease->session->service;
    (void)pthread_mutex_lock(&service->mtx);
    KVD_ASSERT(lease->session->pinned_bytes >= bytes && service->pinned_bytes >= bytes);
    lease->session->pinned_bytes -= bytes;
    service->pinned_bytes -= bytes;
    (void)pthread_mutex_unlock(&service->mtx);
}

void lease_set_slot(struct lease *lease, uint32_t index, struct kvd_slot *slot, bool charged)
{
    KVD_ASSERT(!lease->blocks[index].slot);
    lease->blocks[index].slot = slot;
    lease->blocks[index].charged = charged;
}

void lease_drop_slot(struct lease *lease, uint32_t index)
{
    struct kvd_slot *slot = lease->blocks[index].slot;
    if (slot) {
        lease->blocks[index].slot = NULL;
        kvd_pool_unpin(lease->session->service->pool, slot);
        lease_discharge(lease,
                        lease->blocks[index].charged ? lease->prompt.space->extent_bytes : 0);
    }
}

void lease_drop_slots(struct lease *lease, uint32_t end)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < end; i++) {
        struct kvd_slot *slot = lease->blocks[i].slot;
        if (slot) {
            lease->blocks[i].slot = NULL;
            kvd_pool_unpin(lease->session->service->pool, slot);
            bytes += lease->blocks[i].charged ? lease->prompt.space->extent_bytes : 0;
        }
    }
    lease_discharge(lease, bytes);
}

void lease_destroy(struct lease *lease)
{
    lease_drop_slots(lease, lease->prompt.n_blocks);
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
    lease->counted_blocks = from < lease->counted_blocks ? from : lease->counted_blocks;
}

/* lock: service.mtx. Claims the overdue leases. */
static void claim_overdue_locked(struct kvd_service *service, uint64_t now_ns, struct kvd_list *ret)
{
    kvd_list_foreach (is, &service->sessions) {
        struct kvd_session *s = KVD_CONTAINER_OF(is, struct kvd_session, link);
        kvd_list_foreach (il, &s->leases) {
            struct lease *l = KVD_CONTAINER_OF(il, struct lease, link);
            if (l->deadline_ns <= now_ns && !l->busy && !l->expired) {
                l->busy = true;
                session_ref_locked(s);
                kvd_list_push_back(ret, &l->overdue);
            }
        }
    }
}

/* Takes the pins away. The lease stays, without them, until it is released or its client ends, so
 * that what its client then says of it is still counted. */
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
        l->expired = true;
        lease_unclaim(l);
        session_unref(s);
    }
}

void lease_tick(void *service)
{
    expire_overdue(service, kvd_mono_ns());
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
