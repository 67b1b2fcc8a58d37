/*
 * The pool's functions as its users see them: each takes the lock, checks what its caller promised,
 * and leaves the work to the other pool_*.c.
 */
#include "cachesvc/tier/pool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cachesvc/tier/pool_internal.h"
#include "proto/base/bytes.h"
#include "proto/base/cleanup.h"

enum { POOL_MAGIC = 0x504f4f4c, POOL_SCENARIO_IDS = 1 << 16, WALK_BATCH = 64 };
/* slot ids are 32 bits: this many pages of the most slots keep them apart */
#define POOL_CAP_MAX_BYTES (UINT64_C(8) << 40)

static void pool_lock(struct kvd_pool *pool)
{
    KVD_MAGIC_CHECK(pool, POOL_MAGIC);
    (void)pthread_mutex_lock(&pool->mtx);
}

static void pool_unlock(struct kvd_pool *pool)
{
    (void)pthread_mutex_unlock(&pool->mtx);
}

/* The inside of a slot handed out. */
static struct pool_slot *inside(struct kvd_slot *slot)
{
    return KVD_CONTAINER_OF(slot, struct pool_slot, pub);
}

/* ---- open, close ---- */

static int check_options(const struct kvd_pool_options *options, struct kvd_diag *diag)
{
    if (options->cap_bytes < POOL_CAP_MIN_BYTES || options->cap_bytes > POOL_CAP_MAX_BYTES) {
        return kvd_fail(diag, -KVD_E_CONFIG,
                        "pool file %s: a cap of %llu bytes is not possible; from %llu to %llu is",
                        options->path, (unsigned long long)options->cap_bytes,
                        (unsigned long long)POOL_CAP_MIN_BYTES,
                        (unsigned long long)POOL_CAP_MAX_BYTES);
    }
    return 0;
}

/* The conditions' clock is the monotonic one, like every deadline. */
static int locks_init(struct kvd_pool *pool)
{
    pthread_condattr_t attr;
    int err = pthread_condattr_init(&attr);
    if (err) {
        return -err;
    }
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    err = pthread_cond_init(&pool->grown, &attr);
    (void)pthread_condattr_destroy(&attr);
    if (!err) {
        err = pthread_mutex_init(&pool->mtx, NULL);
        if (err) {
            (void)pthread_cond_destroy(&pool->grown);
        }
    }
    return -err;
}

static void lists_init(struct kvd_pool *pool)
{
    kvd_list_init(&pool->fresh);
    kvd_list_init(&pool->empty);
    for (uint32_t i = 0; i < POOL_CLASSES_MAX; i++) {
        kvd_list_init(&pool->classes[i].pages);
        kvd_list_init(&pool->classes[i].with_free);
    }
}

static int pages_init(struct kvd_pool *pool)
{
    pool->by_scenario = calloc(POOL_SCENARIO_IDS, sizeof(*pool->by_scenario));
    pool->pages = calloc(pool->layout.pages, sizeof(*pool->pages));
    if (!pool->by_scenario || !pool->pages) {
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < pool->layout.pages; i++) {
        struct pool_page *page = &pool->pages[i];
        kvd_list_init(&page->by_use);
        kvd_list_init(&page->with_free);
        kvd_list_init(&page->empty);
        pool_page_add_fresh(pool, page);
    }
    return pool_table_init(&pool->table);
}

static void pool_destroy(struct kvd_pool **pool)
{
    struct kvd_pool *p = *pool;
    if (!p) {
        return;
    }
    for (uint32_t i = 0; i < p->layout.classes; i++) {
        if (p->classes[i].evict) {
            p->eviction->destroy(&p->classes[i].evict);
        }
    }
    for (uint32_t i = 0; p->pages && i < p->layout.pages; i++) {
        free(p->pages[i].slots);
    }
    pool_table_fini(&p->table);
    pool_file_close(p);
    free(p->pages);
    free(p->by_scenario);
    (void)pthread_mutex_destroy(&p->mtx);
    (void)pthread_cond_destroy(&p->grown);
    KVD_MAGIC_CLEAR(p);
    free(p);
    *pool = NULL;
}

static int pool_create(const struct kvd_pool_options *options, struct kvd_pool **ret)
{
    struct kvd_pool *pool = calloc(1, sizeof(*pool));
    if (!pool) {
        return -ENOMEM;
    }
    const int err = locks_init(pool);
    if (err) {
        free(pool);
        return err;
    }
    KVD_MAGIC_SET(pool, POOL_MAGIC);
    pool->fd = -1;
    pool->fd_readonly = -1;
    pool->eviction = options->eviction;
    pool->log = options->log;
    pool->stat.cap_bytes = options->cap_bytes;
    pool->stat.page_bytes = POOL_UNIT_BYTES; /* the file's header */
    pool_layout_init(&pool->layout, options->cap_bytes);
    lists_init(pool);
    *ret = pool;
    return 0;
}

int kvd_pool_open(const struct kvd_pool_options *options, struct kvd_diag *diag,
                  struct kvd_pool **ret)
{
    KVD_CLEANUP(pool_destroy) struct kvd_pool *pool = NULL;
    bool fresh = true;
    int err = check_options(options, diag);
    if (err) {
        return err;
    }
    err = pool_create(options, &pool);
    err = err ? err : pages_init(pool);
    if (err) {
        return kvd_fail(diag, err, "pool file %s: %s", options->path, kvd_strerror(err));
    }
    err = pool_file_open(pool, options, diag, &fresh);
    if (err) {
        return err;
    }
    err = fresh ? 0 : pool_warm_start(pool);
    if (err) {
        return kvd_fail(diag, err, "pool file %s: cannot be read back: %s", options->path,
                        kvd_strerror(err));
    }
    *ret = KVD_TAKE(pool);
    return 0;
}

void kvd_pool_close(struct kvd_pool **pool)
{
    if (!*pool) {
        return;
    }
    pool_lock(*pool);
    for (uint32_t i = 0; i < (*pool)->layout.pages; i++) {
        KVD_ASSERT((*pool)->pages[i].busy == 0);
    }
    pool_unlock(*pool);
    pool_destroy(pool);
}

void kvd_pool_on_evicted(struct kvd_pool *pool, kvd_pool_evicted_fn *fn, void *user)
{
    pool_lock(pool);
    pool->evicted = fn;
    pool->evicted_user = user;
    pool_unlock(pool);
}

int kvd_pool_fd_readonly(struct kvd_pool *pool)
{
    KVD_MAGIC_CHECK(pool, POOL_MAGIC);
    return pool->fd_readonly;
}

uint64_t kvd_pool_map_bytes(struct kvd_pool *pool)
{
    KVD_MAGIC_CHECK(pool, POOL_MAGIC);
    return pool->layout.file_bytes;
}

bool kvd_pool_page(struct kvd_pool *pool, int page, void **ret_base, uint64_t *ret_bytes)
{
    pool_lock(pool);
    const bool there =
        page >= 0 && (uint32_t)page < pool->layout.pages && pool->pages[page].allocated;
    pool_unlock(pool);
    if (there) {
        *ret_base = pool->map + pool_layout_page_offset(&pool->layout, (uint32_t)page);
        *ret_bytes = pool->layout.page_bytes;
    }
    return there;
}

/* ---- filling ---- */

int kvd_pool_alloc(struct kvd_pool *pool, uint64_t extent_bytes, uint16_t scenario,
                   struct kvd_slot **ret)
{
    KVD_MAGIC_CHECK(pool, POOL_MAGIC);
    const int class = pool_layout_class(&pool->layout, extent_bytes);
    if (class < 0) {
        return -KVD_E_TOO_LONG;
    }
    pool_lock(pool);
    struct pool_slot *slot = pool_slot_take_free(pool, class);
    int err = 0;
    while (!slot && !err) {
        err = pool_make_room_locked(pool, class);
        slot = err ? NULL : pool_slot_take_free(pool, class);
    }
    if (slot) {
        slot->node.bytes = kvd_round_up(extent_bytes, POOL_UNIT_BYTES);
        slot->node.scenario = scenario;
        pool->stat.used_bytes += slot->node.bytes;
        *ret = &slot->pub;
    }
    pool_unlock(pool);
    return err;
}

static void slot_pin(struct kvd_pool *pool, struct pool_slot *slot)
{
    if (slot->pins++ == 0) {
        pool->pages[slot->pub.page].busy++;
        pool->stat.pinned_bytes += slot->node.bytes;
    }
}

int kvd_pool_publish(struct kvd_pool *pool, struct kvd_slot *slot, const struct kvd_slot_meta *meta)
{
    struct pool_slot *s = inside(slot);
    KVD_ASSERT(meta->header_bytes > 0 && meta->header_bytes % POOL_UNIT_BYTES == 0 &&
               meta->header_bytes + kvd_round_up(meta->payload_bytes, POOL_UNIT_BYTES) <=
                   slot->slot_bytes);
    pool_lock(pool);
    KVD_ASSERT(s->state == POOL_SLOT_FILLING);
    if (pool_table_find(pool, &meta->addr)) {
        pool_unlock(pool);
        return -KVD_E_EXISTS;
    }
    slot->meta = *meta;
    pool_slot_used(pool, s, ++pool->tick);
    pool_file_slot_meta(pool, s);
    pool_file_slot_state(pool, s, POOL_SLOT_READY);
    pool_slot_ready(pool, s);
    pool->pages[slot->page].busy--; /* was FILLING, is pinned */
    slot_pin(pool, s);
    pool_unlock(pool);
    return 0;
}

void kvd_pool_cancel(struct kvd_pool *pool, struct kvd_slot *slot)
{
    struct pool_slot *s = inside(slot);
    pool_lock(pool);
    KVD_ASSERT(s->state == POOL_SLOT_FILLING);
    pool->pages[slot->page].busy--;
    pool_slot_free(pool, s);
    pool_unlock(pool);
}

/* ---- finding ---- */

uint32_t kvd_pool_pin_chain(struct kvd_pool *pool, const struct kvd_addr *addrs, uint32_t n,
                            struct kvd_slot **ret)
{
    uint32_t found = 0;
    pool_lock(pool);
    while (found < n) {
        struct pool_slot *slot = pool_table_find(pool, &addrs[found]);
        if (!slot) {
            break;
        }
        slot_pin(pool, slot);
        ret[found++] = &slot->pub;
    }
    pool_unlock(pool);
    return found;
}

struct kvd_slot *kvd_pool_pin(struct kvd_pool *pool, const struct kvd_addr *addr)
{
    struct kvd_slot *slot = NULL;
    return kvd_pool_pin_chain(pool, addr, 1, &slot) ? slot : NULL;
}

bool kvd_pool_contains(struct kvd_pool *pool, const struct kvd_addr *addr)
{
    pool_lock(pool);
    const bool there = pool_table_find(pool, addr) != NULL;
    pool_unlock(pool);
    return there;
}

void kvd_pool_pin_again(struct kvd_pool *pool, struct kvd_slot *slot)
{
    pool_lock(pool);
    KVD_ASSERT(inside(slot)->pins > 0);
    slot_pin(pool, inside(slot));
    pool_unlock(pool);
}

void kvd_pool_uses(struct kvd_pool *pool, struct kvd_slot *const *slots, uint32_t n,
                   struct kvd_slot_use *ret_uses)
{
    pool_lock(pool);
    for (uint32_t i = 0; i < n; i++) {
        const struct kvd_slot_meta *meta = &slots[i]->meta;
        ret_uses[i] = (struct kvd_slot_use){.last_use_day = meta->last_use_day,
                                            .created_day = meta->created_day,
                                            .put_id = meta->put_id,
                                            .scenario = meta->scenario};
    }
    pool_unlock(pool);
}

void kvd_pool_unpin(struct kvd_pool *pool, struct kvd_slot *slot)
{
    struct pool_slot *s = inside(slot);
    pool_lock(pool);
    KVD_ASSERT(s->pins > 0);
    if (--s->pins == 0) {
        pool->pages[slot->page].busy--;
        pool->stat.pinned_bytes -= s->node.bytes;
        if (s->state == POOL_SLOT_REMOVED) {
            pool_slot_free(pool, s);
        }
    }
    pool_unlock(pool);
}

/* ---- of a pinned slot ---- */

void kvd_pool_meta(struct kvd_pool *pool, const struct kvd_slot *slot, struct kvd_slot_meta *ret)
{
    pool_lock(pool);
    *ret = slot->meta;
    pool_unlock(pool);
}

void kvd_pool_set_verified(struct kvd_pool *pool, struct kvd_slot *slot)
{
    pool_lock(pool);
    KVD_ASSERT(inside(slot)->pins > 0);
    __atomic_store_n(&slot->verified, true, __ATOMIC_RELAXED);
    pool_unlock(pool);
}

void kvd_pool_set_nvme_segment(struct kvd_pool *pool, struct kvd_slot *slot, uint64_t segment)
{
    pool_lock(pool);
    KVD_ASSERT(inside(slot)->pins > 0);
    __atomic_store_n(&slot->meta.nvme_segment, kvd_slot_segment(segment), __ATOMIC_RELAXED);
    if (inside(slot)->state == POOL_SLOT_READY) {
        pool_file_slot_meta(pool, inside(slot));
    }
    pool_unlock(pool);
}

void kvd_pool_touch(struct kvd_pool *pool, struct kvd_slot *slot, uint16_t scenario, uint32_t day)
{
    struct pool_slot *s = inside(slot);
    pool_lock(pool);
    KVD_ASSERT(s->pins > 0);
    if (s->state == POOL_SLOT_READY) {
        pool->by_scenario[s->node.scenario] -= s->node.bytes;
        pool->by_scenario[scenario] += s->node.bytes;
        s->node.scenario = scenario;
        __atomic_store_n(&slot->meta.scenario, scenario, __ATOMIC_RELAXED);
        if (day > slot->meta.last_use_day) {
            __atomic_store_n(&slot->meta.last_use_day, day, __ATOMIC_RELAXED);
        }
        pool_slot_used(pool, s, ++pool->tick);
        pool->eviction->touch(pool->classes[pool->pages[slot->page].class].evict, &s->node);
        pool_file_slot_meta(pool, s);
    }
    pool_unlock(pool);
}

bool kvd_pool_remove(struct kvd_pool *pool, struct kvd_slot *slot)
{
    pool_lock(pool);
    KVD_ASSERT(inside(slot)->pins > 0);
    const bool there = inside(slot)->state == POOL_SLOT_READY;
    if (there) {
        pool_slot_forget(pool, inside(slot));
    }
    pool_unlock(pool);
    return there;
}

/* ---- all ---- */

/* The next READY slots from (*page, *slot) on, pinned; at most max. */
static uint32_t walk_batch(struct kvd_pool *pool, uint32_t *page, uint32_t *slot, uint32_t max,
                           struct kvd_slot **ret)
{
    uint32_t n = 0;
    pool_lock(pool);
    while (*page < pool->layout.pages && n < max) {
        const struct pool_page *p = &pool->pages[*page];
        if (p->class < 0 || *slot >= pool->layout.shape[p->class].slots) {
            (*page)++;
            *slot = 0;
            continue;
        }
        struct pool_slot *s = &p->slots[(*slot)++];
        if (s->state == POOL_SLOT_READY) {
            slot_pin(pool, s);
            ret[n++] = &s->pub;
        }
    }
    pool_unlock(pool);
    return n;
}

void kvd_pool_walk(struct kvd_pool *pool, void (*fn)(struct kvd_slot *slot, void *user), void *user)
{
    struct kvd_slot *slots[WALK_BATCH];
    uint32_t page = 0;
    uint32_t at = 0;
    uint32_t n;
    while ((n = walk_batch(pool, &page, &at, WALK_BATCH, slots)) > 0) {
        for (uint32_t i = 0; i < n; i++) {
            fn(slots[i], user);
            kvd_pool_unpin(pool, slots[i]);
        }
    }
}

struct kvd_slot *kvd_pool_next(struct kvd_pool *pool, uint64_t *cursor)
{
    struct kvd_slot *slot = NULL;
    uint32_t page = (uint32_t)(*cursor >> 32);
    uint32_t at = (uint32_t)*cursor;
    (void)walk_batch(pool, &page, &at, 1, &slot);
    *cursor = (uint64_t)page << 32 | at;
    return slot;
}

void kvd_pool_stat(struct kvd_pool *pool, struct kvd_pool_stat *ret)
{
    pool_lock(pool);
    *ret = pool->stat;
    pool_unlock(pool);
}

void kvd_pool_scenario_bytes(struct kvd_pool *pool, uint64_t *per, uint32_t n)
{
    pool_lock(pool);
    for (uint32_t i = 0; i < n && i < POOL_SCENARIO_IDS; i++) {
        per[i] += pool->by_scenario[i];
    }
    pool_unlock(pool);
}
