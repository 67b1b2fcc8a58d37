/*
 * Warm start: the READY slots of an earlier run are found again, in the order of their last use.
 * Headers in the file are not trusted: a damaged page header gives up the page, a damaged slot
 * header the slot. Records are not read here; whoever uses one first checks it.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "cachesvc/tier/pool_internal.h"
#include "proto/base/cleanup.h"
#include "proto/base/protect.h"

struct found {
    uint64_t tick;
    struct pool_slot *slot;
};

struct found_list {
    struct found *at;
    size_t n;
    size_t room;
};

static int found_add(struct found_list *list, struct pool_slot *slot)
{
    if (list->n == list->room) {
        const size_t room = list->room ? 2 * list->room : 1024;
        struct found *at = realloc(list->at, room * sizeof(*at));
        if (!at) {
            return -ENOMEM;
        }
        list->at = at;
        list->room = room;
    }
    list->at[list->n++] = (struct found){slot->used_tick, slot};
    return 0;
}

static void found_fini(struct found_list *list)
{
    free(list->at);
}

static int found_compare(const void *a, const void *b)
{
    const uint64_t x = ((const struct found *)a)->tick;
    const uint64_t y = ((const struct found *)b)->tick;
    return x < y ? -1 : x > y;
}

/* Carves one page as it lies in the file and collects its READY slots. */
static int page_read(struct kvd_pool *pool, uint32_t page, int class, struct found_list *list)
{
    struct pool_page *p = &pool->pages[page];
    p->allocated = true;
    pool->stat.page_bytes += pool->layout.page_bytes;
    int err = pool_page_carve(pool, p, class, false);
    for (uint32_t i = 0; !err && i < pool->layout.shape[class].slots; i++) {
        if (pool_file_slot_read(pool, &p->slots[i])) {
            err = found_add(list, &p->slots[i]);
        } else {
            pool_file_slot_state(pool, &p->slots[i], POOL_SLOT_FREE);
        }
    }
    return err;
}

/* A page's slots were all put on its free list in order; those read back are taken off again. */
static void page_relink(struct kvd_pool *pool, struct pool_page *page)
{
    uint32_t *link = &page->first_free;
    for (uint32_t i = 0; i < pool->layout.shape[page->class].slots; i++) {
        if (page->slots[i].state == POOL_SLOT_FREE) {
            *link = i;
            link = &page->slots[i].next;
        }
    }
    *link = POOL_SLOT_NONE;
    if (page->first_free == POOL_SLOT_NONE) {
        kvd_list_remove(&page->with_free);
    }
    if (page->used > 0) {
        kvd_list_remove(&page->empty);
    }
}

static void slots_adopt(struct kvd_pool *pool, const struct found_list *list)
{
    pool_table_reserve(&pool->table, list->n);
    for (size_t i = 0; i < list->n; i++) {
        struct pool_slot *slot = list->at[i].slot;
        const uint32_t index = pool_slot_index(pool, slot);
        if (KVD_PROTECT(POOL_ADDRESS_ONCE) && pool_table_find(pool, &slot->pub.meta.addr)) {
            pool_file_slot_state(pool, slot, POOL_SLOT_FREE);
            continue; /* one address, two slots: the first stays */
        }
        slot->pub.verified = false;
        slot->pub.generation = atomic_load_explicit(
            pool_file_generation(pool, (uint32_t)slot->pub.page, index), memory_order_relaxed);
        pool->pages[slot->pub.page].used++;
        pool_slot_ready(pool, slot);
        pool_slot_used(pool, slot, list->at[i].tick);
        pool->tick = list->at[i].tick;
        if (slot->pub.meta.put_id > pool->stat.warm_put_id) {
            pool->stat.warm_put_id = slot->pub.meta.put_id;
        }
    }
}

/* A copy of the file may have holes where the pool had allocated: to touch one may be fatal. */
static bool file_has_holes(const struct kvd_pool *pool, uint32_t pages)
{
    struct stat st;
    return fstat(pool->fd, &st) != 0 ||
           (uint64_t)st.st_blocks * 512 <
               POOL_UNIT_BYTES + (uint64_t)pages * pool->layout.page_bytes;
}

static int pages_read(struct kvd_pool *pool, const int *classes, uint32_t used,
                      struct found_list *list)
{
    const bool holes = file_has_holes(pool, used);
    int err = 0;
    for (uint32_t i = 0; i < pool->layout.pages && !err; i++) {
        if (classes[i] >= 0 && (!holes || pool_file_allocate_page(pool, i) == 0)) {
            err = page_read(pool, i, classes[i], list);
        }
    }
    return err;
}

int pool_warm_start(struct kvd_pool *pool)
{
    KVD_AUTOFREE int *classes = calloc(pool->layout.pages, sizeof(*classes));
    KVD_CLEANUP(found_fini) struct found_list list = {0};
    uint32_t used = 0;
    uint32_t damaged = 0;
    if (!classes) {
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < pool->layout.pages; i++) {
        classes[i] = pool_file_page_class(pool, i);
        used += classes[i] >= 0;
        damaged += classes[i] == -KVD_E_CORRUPT;
    }
    if (damaged) {
        kvd_log_warn(pool->log, "dram: %u pages of the pool file are damaged and start empty",
                     damaged);
    }
    const int err = pages_read(pool, classes, used, &list);
    if (err) {
        return err;
    }
    if (list.n) {
        qsort(list.at, list.n, sizeof(*list.at), found_compare);
    }
    slots_adopt(pool, &list);
    for (uint32_t i = 0; i < pool->layout.pages; i++) {
        if (pool->pages[i].class >= 0) {
            page_relink(pool, &pool->pages[i]);
        }
    }
    pool->stat.warm_blocks = pool->stat.blocks;
    return 0;
}
