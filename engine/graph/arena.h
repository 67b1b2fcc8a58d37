/*
 * Pages of KV, one block a page. The interface that the hbm tier will fill; until then the engine
 * owns private pages, which are no tier. A page's bytes are a record's payload: [layer][K, V][kv
 * head][token][dim] f16. Threads: one lock inside.
 */
#ifndef ENGINE_GRAPH_ARENA_H
#define ENGINE_GRAPH_ARENA_H

#include <stdint.h>

#include "proto/base/error.h"

struct kvd_arena;

struct kvd_arena_options {
    uint64_t page_bytes;
    uint32_t pages;
    uint64_t shuffle_seed; /* 0: pages are handed out in order; else in an order drawn from the seed
                              (tests) */
};

int kvd_arena_create(const struct kvd_arena_options *options, struct kvd_arena **ret);
void kvd_arena_destroy(struct kvd_arena **arena);
/* A page number, or -KVD_E_FULL. */
int kvd_arena_get(struct kvd_arena *arena);
void kvd_arena_put(struct kvd_arena *arena, int page);
void *kvd_arena_page(struct kvd_arena *arena, int page);
uint32_t kvd_arena_free_pages(struct kvd_arena *arena);

#endif
