/*
 * Residency: which slot holds (key, rank). A table of chains; slots carry the links, so an entry
 * costs 4 bytes and its share of the buckets. A key is a hash already: its first bytes choose the
 * bucket.
 */
#include <errno.h>
#include <stdlib.h>

#include "cachesvc/tier/pool_internal.h"
#include "proto/base/bytes.h"

enum { TABLE_FIRST_BUCKETS = 1024 };

static uint32_t *buckets_new(uint32_t n)
{
    uint32_t *buckets = malloc(sizeof(*buckets) * n);
    for (uint32_t i = 0; buckets && i < n; i++) {
        buckets[i] = POOL_SLOT_NONE;
    }
    return buckets;
}

int pool_table_init(struct pool_table *t)
{
    t->buckets = buckets_new(TABLE_FIRST_BUCKETS);
    t->mask = TABLE_FIRST_BUCKETS - 1;
    t->count = 0;
    return t->buckets ? 0 : -ENOMEM;
}

void pool_table_fini(struct pool_table *t)
{
    free(t->buckets);
    t->buckets = NULL;
}

void pool_table_reserve(struct pool_table *t, size_t entries)
{
    uint32_t n = TABLE_FIRST_BUCKETS;
    KVD_ASSERT(t->count == 0);
    while (n < entries && n <= UINT32_MAX / 4) {
        n *= 2;
    }
    uint32_t *buckets = n > t->mask + 1 ? buckets_new(n) : NULL;
    if (buckets) {
        free(t->buckets);
        t->buckets = buckets;
        t->mask = n - 1;
    }
}

static uint32_t *bucket_of(const struct pool_table *t, const struct kvd_addr *addr)
{
    return &t->buckets[(kvd_get_le32(addr->key.b) + addr->rank) & t->mask];
}

struct pool_slot *pool_table_find(const struct kvd_pool *pool, const struct kvd_addr *addr)
{
    uint32_t id = *bucket_of(&pool->table, addr);
    while (id != POOL_SLOT_NONE) {
        struct pool_slot *slot = pool_slot_of_id(pool, id);
        const struct kvd_addr *have = &slot->pub.meta.addr;
        if (have->rank == addr->rank && kvd_key_equal(&have->key, &addr->key)) {
            return slot;
        }
        id = slot->next;
    }
    return NULL;
}

/* Twice the buckets. Without memory for it the chains get longer, and it is tried again later. */
static void table_grow(struct kvd_pool *pool)
{
    struct pool_table *t = &pool->table;
    const struct pool_table was = *t;
    uint32_t *buckets = was.mask < UINT32_MAX / 4 ? buckets_new(2 * (was.mask + 1)) : NULL;
    if (!buckets) {
        return;
    }
    t->buckets = buckets;
    t->mask = 2 * was.mask + 1;
    for (uint32_t i = 0; i <= was.mask; i++) {
        for (uint32_t id = was.buckets[i], next; id != POOL_SLOT_NONE; id = next) {
            struct pool_slot *slot = pool_slot_of_id(pool, id);
            uint32_t *bucket = bucket_of(t, &slot->pub.meta.addr);
            next = slot->next;
            slot->next = *bucket;
            *bucket = id;
        }
    }
    free(was.buckets);
}

void pool_table_insert(struct kvd_pool *pool, struct pool_slot *slot)
{
    if (pool->table.count > pool->table.mask) {
        table_grow(pool);
    }
    uint32_t *bucket = bucket_of(&pool->table, &slot->pub.meta.addr);
    slot->next = *bucket;
    *bucket = pool_slot_id(pool, slot);
    pool->table.count++;
}

void pool_table_remove(struct kvd_pool *pool, struct pool_slot *slot)
{
    const uint32_t id = pool_slot_id(pool, slot);
    uint32_t *link = bucket_of(&pool->table, &slot->pub.meta.addr);
    while (*link != id) {
        KVD_ASSERT(*link != POOL_SLOT_NONE);
        link = &pool_slot_of_id(pool, *link)->next;
    }
    *link = slot->next;
    pool->table.count--;
}
