/*
 * Pages and slots changing hands. Everything here is called with pool.mtx held.
 *
 * A slot is wanted. In this order: a free slot of its class; a page without a class, or an empty
 * one of another class; a new page from the file system; then something must go. Within the class
 * the eviction policy says what. But a page of another class whose slots were all used before that
 * victim was is the better choice, and the only one when the class has no victim: it is emptied and
 * changes its class. Without this, the first class to fill the pool would keep it for ever.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cachesvc/tier/pool_internal.h"
#include "proto/base/bytes.h"
#include "proto/base/cleanup.h"
#include "proto/base/clock.h"
#include "proto/base/protect.h"

#define GROW_AGAIN_NS (10 * KVD_NS_PER_S)
#define GROW_WAIT_NS (5 * KVD_NS_PER_S)

static struct pool_page *page_of(struct kvd_pool *pool, const struct pool_slot *slot)
{
    return &pool->pages[slot->pub.page];
}

static uint32_t page_index(const struct kvd_pool *pool, const struct pool_page *page)
{
    return (uint32_t)(page - pool->pages);
}

static uint64_t extent_of(const struct kvd_slot_meta *meta)
{
    return (uint64_t)meta->header_bytes + kvd_round_up(meta->payload_bytes, POOL_UNIT_BYTES);
}

/* ---- pages ---- */

void pool_page_add_fresh(struct kvd_pool *pool, struct pool_page *page)
{
    page->class = -1;
    if (page->allocated) {
        kvd_list_push_front(&pool->fresh, &page->by_use);
    } else {
        kvd_list_push_back(&pool->fresh, &page->by_use);
    }
}

static int class_setup(struct kvd_pool *pool, struct pool_class *class)
{
    return class->evict ? 0 : pool->eviction->create(&class->evict);
}

static void slot_setup(const struct kvd_pool *pool, uint32_t page, const struct pool_shape *shape,
                       uint32_t index, struct pool_slot *slot)
{
    const uint64_t page_offset = pool_layout_page_offset(&pool->layout, page);
    const uint64_t offset = page_offset + shape->data_offset + (uint64_t)index * shape->slot_bytes;
    const uint8_t *generation = (uint8_t *)pool_file_generation(pool, page, index);
    slot->pub.base = pool->map + offset;
    slot->pub.file_offset = offset;
    slot->pub.generation_offset = (uint64_t)(generation - pool->map);
    slot->pub.slot_bytes = shape->slot_bytes;
    slot->pub.page = (int)page;
    slot->next = index + 1 < shape->slots ? index + 1 : POOL_SLOT_NONE;
    kvd_list_init(&slot->node.link);
}

int pool_page_carve(struct kvd_pool *pool, struct pool_page *page, int class, bool format)
{
    KVD_ASSERT(page->class == -1 && page->allocated);
    struct pool_class *of = &pool->classes[class];
    const struct pool_shape *shape = &pool->layout.shape[class];
    const int err = class_setup(pool, of);
    struct pool_slot *slots = err ? NULL : calloc(shape->slots, sizeof(*slots));
    if (!slots) {
        return err ? err : -ENOMEM;
    }
    if (format) {
        pool_file_page_format(pool, page_index(pool, page), class);
    }
    for (uint32_t i = 0; i < shape->slots; i++) {
        slot_setup(pool, page_index(pool, page), shape, i, &slots[i]);
    }
    kvd_list_remove(&page->by_use);
    page->slots = slots;
    page->class = class;
    page->first_free = 0;
    page->used = 0;
    page->busy = 0;
    page->used_tick = 0;
    kvd_list_push_back(&of->pages, &page->by_use);
    kvd_list_push_back(&of->with_free, &page->with_free);
    kvd_list_push_back(&pool->empty, &page->empty);
    return 0;
}

/* An empty page leaves its class. */
static void page_uncarve(struct kvd_pool *pool, struct pool_page *page)
{
    KVD_ASSERT(page->class >= 0 && page->used == 0 && page->busy == 0);
    kvd_list_remove(&page->by_use);
    kvd_list_remove(&page->with_free);
    kvd_list_remove(&page->empty);
    free(KVD_TAKE(page->slots));
    pool_page_add_fresh(pool, page);
}

static void growth_failed(struct kvd_pool *pool, int err)
{
    pool->grow_again_ns = kvd_mono_ns() + GROW_AGAIN_NS;
    if (!pool->growth_refused) {
        pool->growth_refused = true;
        kvd_log_warn(pool->log,
                     "dram: the pool file cannot grow beyond %llu bytes of %llu (%s): older blocks "
                     "are thrown away instead; enlarge its file system or lower the cap",
                     (unsigned long long)pool->stat.page_bytes,
                     (unsigned long long)pool->stat.cap_bytes, kvd_strerror(err));
    }
}

/* Lets another thread's growth end, so that nothing is thrown away that needn't be. */
static void growth_wait(struct kvd_pool *pool)
{
    const uint64_t deadline = kvd_mono_ns() + GROW_WAIT_NS;
    const struct timespec ts = {.tv_sec = (time_t)(deadline / KVD_NS_PER_S),
                                .tv_nsec = (long)(deadline % KVD_NS_PER_S)};
    int err = 0;
    while (pool->growing && err == 0) {
        err = pthread_cond_timedwait(&pool->grown, &pool->mtx, &ts);
    }
}

/* Gets a page's room from the file system; look-ups go on meanwhile. */
static bool page_grow(struct kvd_pool *pool, struct pool_page *page)
{
    kvd_list_remove(&page->by_use);
    pool->growing = true;
    (void)pthread_mutex_unlock(&pool->mtx);
    const int err = pool_file_allocate_page(pool, page_index(pool, page));
    (void)pthread_mutex_lock(&pool->mtx);
    pool->growing = false;
    (void)pthread_cond_broadcast(&pool->grown);
    if (err) {
        growth_failed(pool, err);
    } else {
        page->allocated = true;
        pool->stat.page_bytes += pool->layout.page_bytes;
    }
    pool_page_add_fresh(pool, page);
    return err == 0;
}

/* The file's next page, when it may grow. NULL: it may not. *ret_again: things changed, look again.
 */
static struct pool_page *page_unused(struct kvd_pool *pool, bool *ret_again)
{
    *ret_again = false;
    const bool any = !kvd_list_empty(&pool->fresh);
    struct pool_page *page = KVD_CONTAINER_OF(pool->fresh.next, struct pool_page, by_use);
    if (any && page->allocated) {
        return page;
    }
    if (!kvd_list_empty(&pool->empty)) {
        page = KVD_CONTAINER_OF(pool->empty.next, struct pool_page, empty);
        page_uncarve(pool, page);
        return page;
    }
    if (pool->growing) {
        growth_wait(pool);
        *ret_again = !pool->growing;
        return NULL;
    }
    if (any && kvd_mono_ns() >= pool->grow_again_ns) {
        *ret_again = page_grow(pool, page);
    }
    return NULL;
}

/* ---- slots ---- */

struct pool_slot *pool_slot_take_free(struct kvd_pool *pool, int class)
{
    struct pool_class *of = &pool->classes[class];
    if (kvd_list_empty(&of->with_free)) {
        return NULL;
    }
    struct pool_page *page = KVD_CONTAINER_OF(of->with_free.next, struct pool_page, with_free);
    struct pool_slot *slot = &page->slots[page->first_free];
    KVD_ASSERT(slot->state == POOL_SLOT_FREE && slot->pins == 0);
    page->first_free = slot->next;
    if (page->first_free == POOL_SLOT_NONE) {
        kvd_list_remove(&page->with_free);
    }
    if (page->used++ == 0) {
        kvd_list_remove(&page->empty);
    }
    page->busy++;
    slot->state = POOL_SLOT_FILLING;
    slot->pub.verified = true;
    slot->pub.generation = pool_file_slot_begin(pool, slot);
    return slot;
}

/* Empty pages lie at the end of their class's list, so that the others are filled first. */
void pool_slot_free(struct kvd_pool *pool, struct pool_slot *slot)
{
    struct pool_page *page = page_of(pool, slot);
    KVD_ASSERT(slot->state != POOL_SLOT_FREE && slot->pins == 0);
    pool_file_slot_state(pool, slot, POOL_SLOT_FREE);
    slot->state = POOL_SLOT_FREE;
    pool->stat.used_bytes -= slot->node.bytes;
    slot->next = page->first_free;
    page->first_free = pool_slot_index(pool, slot);
    page->used--;
    kvd_list_remove(&page->with_free);
    if (page->used > 0) {
        kvd_list_push_front(&pool->classes[page->class].with_free, &page->with_free);
    } else {
        kvd_list_push_back(&pool->classes[page->class].with_free, &page->with_free);
        kvd_list_push_back(&pool->empty, &page->empty);
    }
}

void pool_slot_used(struct kvd_pool *pool, struct pool_slot *slot, uint64_t tick)
{
    struct pool_page *page = page_of(pool, slot);
    slot->used_tick = tick;
    page->used_tick = tick;
    kvd_list_remove(&page->by_use);
    kvd_list_push_back(&pool->classes[page->class].pages, &page->by_use);
}

void pool_slot_ready(struct kvd_pool *pool, struct pool_slot *slot)
{
    const uint64_t bytes = extent_of(&slot->pub.meta);
    pool->stat.used_bytes += bytes - slot->node.bytes;
    slot->node.bytes = bytes;
    slot->node.depth_blocks = slot->pub.meta.index;
    slot->node.scenario = slot->pub.meta.scenario;
    slot->state = POOL_SLOT_READY;
    pool->eviction->insert(pool->classes[page_of(pool, slot)->class].evict, &slot->node);
    pool_table_insert(pool, slot);
    pool->stat.blocks++;
    pool->by_scenario[slot->node.scenario] += bytes;
}

void pool_slot_forget(struct kvd_pool *pool, struct pool_slot *slot)
{
    KVD_ASSERT(slot->state == POOL_SLOT_READY);
    pool_file_slot_state(pool, slot, POOL_SLOT_FREE);
    pool_table_remove(pool, slot);
    pool->eviction->remove(pool->classes[page_of(pool, slot)->class].evict, &slot->node);
    pool->stat.blocks--;
    pool->by_scenario[slot->node.scenario] -= slot->node.bytes;
    slot->state = POOL_SLOT_REMOVED;
}

static void slot_evict(struct kvd_pool *pool, struct pool_slot *slot)
{
    pool_slot_forget(pool, slot);
    pool_slot_free(pool, slot);
    pool->stat.evicted_blocks++;
    if (pool->evicted) {
        pool->evicted(&slot->pub.meta, pool->evicted_user);
    }
}

/* ---- what goes ---- */

static bool slot_may_go(const struct kvd_evict_node *node, void *user)
{
    const struct pool_slot *slot = KVD_CONTAINER_OF(node, const struct pool_slot, node);
    return slot->pins == 0 || !KVD_PROTECT(SLOT_PIN);
}

static struct pool_slot *class_victim(struct kvd_pool *pool, int class)
{
    struct kvd_evict *evict = pool->classes[class].evict;
    struct kvd_evict_node *node = evict ? pool->eviction->victim(evict, slot_may_go, pool) : NULL;
    return node ? KVD_CONTAINER_OF(node, struct pool_slot, node) : NULL;
}

/* Of the other classes, the page that was unused longest and has nothing pinned or FILLING. */
static struct pool_page *coldest_page(struct kvd_pool *pool, int not_class)
{
    struct pool_page *best = NULL;
    for (uint32_t i = 0; i < pool->layout.classes; i++) {
        if ((int)i == not_class) {
            continue;
        }
        kvd_list_foreach (it, &pool->classes[i].pages) {
            struct pool_page *page = KVD_CONTAINER_OF(it, struct pool_page, by_use);
            if (best && page->used_tick >= best->used_tick) {
                break; /* the rest of this class was used later still */
            }
            if (page->busy == 0 || !KVD_PROTECT(BUSY_PAGE_STAYS)) {
                best = page;
                break;
            }
        }
    }
    return best;
}

static int page_convert(struct kvd_pool *pool, struct pool_page *page, int class)
{
    const uint32_t slots = pool->layout.shape[page->class].slots;
    for (uint32_t i = 0; i < slots && page->used > 0; i++) {
        if (page->slots[i].state == POOL_SLOT_READY) {
            slot_evict(pool, &page->slots[i]);
        }
    }
    page_uncarve(pool, page);
    return pool_page_carve(pool, page, class, true);
}

int pool_make_room_locked(struct kvd_pool *pool, int class)
{
    bool again;
    struct pool_page *page = page_unused(pool, &again);
    if (page) {
        return pool_page_carve(pool, page, class, true);
    }
    if (again) {
        return 0;
    }
    struct pool_slot *victim = class_victim(pool, class);
    page = coldest_page(pool, class);
    if (page && (!victim || page->used_tick < victim->used_tick)) {
        return page_convert(pool, page, class);
    }
    if (!victim) {
        return -KVD_E_FULL;
    }
    slot_evict(pool, victim);
    return 0;
}
