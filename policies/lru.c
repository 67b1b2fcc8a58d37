/*
 * Least recently used: one list, coldest first. Insertion counts as a use. Callers use a chain's
 * blocks tail first, so that within a chain the tail is colder than the head and goes first: a
 * tail without its head would be of no use.
 */
#include <errno.h>
#include <stdlib.h>

#include "policies/policy.h"
#include "proto/base/assert.h"

enum { LRU_MAGIC = 0x4c525531 };

struct kvd_evict {
    uint32_t magic;
    struct kvd_list coldest_first;
};

static int lru_create(struct kvd_evict **ret)
{
    struct kvd_evict *e = calloc(1, sizeof(*e));
    if (!e) {
        return -ENOMEM;
    }
    KVD_MAGIC_SET(e, LRU_MAGIC);
    kvd_list_init(&e->coldest_first);
    *ret = e;
    return 0;
}

/* Nodes still in the list are their owners' and are left as lists of their own. */
static void lru_destroy(struct kvd_evict **e)
{
    if (!*e) {
        return;
    }
    KVD_MAGIC_CHECK(*e, LRU_MAGIC);
    while (kvd_list_pop_front(&(*e)->coldest_first)) {
    }
    KVD_MAGIC_CLEAR(*e);
    free(*e);
    *e = NULL;
}

static void lru_insert(struct kvd_evict *e, struct kvd_evict_node *node)
{
    KVD_MAGIC_CHECK(e, LRU_MAGIC);
    kvd_list_push_back(&e->coldest_first, &node->link);
}

static void lru_remove(struct kvd_evict *e, struct kvd_evict_node *node)
{
    KVD_MAGIC_CHECK(e, LRU_MAGIC);
    KVD_ASSERT(!kvd_list_empty(&node->link)); /* not inserted, or removed already */
    kvd_list_remove(&node->link);
}

static void lru_touch(struct kvd_evict *e, struct kvd_evict_node *node)
{
    lru_remove(e, node);
    lru_insert(e, node);
}

static struct kvd_evict_node *lru_victim(struct kvd_evict *e, kvd_evictable_fn *may, void *user)
{
    KVD_MAGIC_CHECK(e, LRU_MAGIC);
    kvd_list_foreach (it, &e->coldest_first) {
        struct kvd_evict_node *node = KVD_CONTAINER_OF(it, struct kvd_evict_node, link);
        if (may(node, user)) {
            return node;
        }
    }
    return NULL;
}

const struct kvd_evict_ops kvd_evict_lru = {
    .name = "lru",
    .text = "what was not used for the longest time goes first",
    .create = lru_create,
    .destroy = lru_destroy,
    .insert = lru_insert,
    .touch = lru_touch,
    .remove = lru_remove,
    .victim = lru_victim,
};
