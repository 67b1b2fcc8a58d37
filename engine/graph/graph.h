/*
 * The forward pass. A row's result depends on nothing but its prefix: not on chunking, threads,
 * kernel choice or the physical order of pages (numerics family KVD_NUMERICS of
 * engine/model/space.h). So KV of generated tokens is the KV that prefill makes. A graph is shared
 * and has one set of scratch buffers: one caller at a time.
 */
#ifndef ENGINE_GRAPH_GRAPH_H
#define ENGINE_GRAPH_GRAPH_H

#include <stdint.h>

#include "engine/graph/arena.h"
#include "engine/model/model.h"
#include "proto/base/error.h"

enum { KVD_GRAPH_CHUNK_MAX = 512 };

struct kvd_graph;

struct kvd_graph_options {
    uint32_t threads;      /* 1 to 64 */
    uint32_t block_tokens; /* tokens a page holds; 64 */
    const char *kernels;   /* NULL or "auto": the best that the CPU runs; else "ref", "avx2", … */
};

int kvd_graph_create(const struct kvd_model *model, const struct kvd_graph_options *options,
                     struct kvd_diag *diag, struct kvd_graph **ret);
void kvd_graph_destroy(struct kvd_graph **graph);

uint64_t kvd_graph_page_bytes(const struct kvd_graph *graph);
const char *kvd_graph_kernels(const struct kvd_graph *graph); /* name of the kernels in use */

/* One sequence's KV: pages in order of position. */
struct kvd_kv_view {
    struct kvd_arena *arena;
    const int *pages; /* block table: page of positions [i * block_tokens, …) */
};

/*
 * Computes tokens[0..n) at positions pos .. pos + n - 1 (all before pos are in the pages already),
 * writing their KV. n is at most KVD_GRAPH_CHUNK_MAX. logits: n_logits rows of vocab floats, for
 * the last n_logits of the tokens (0: none). -KVD_E_BAD_REQUEST: position beyond the context, a
 * token id out of range; nothing was written. -KVD_E_CORRUPT: weights or pages hold what is no
 * number; what was written is not to be used.
 */
int kvd_graph_forward(struct kvd_graph *graph, const struct kvd_kv_view *kv, uint32_t pos,
                      const uint32_t *tokens, uint32_t n, float *logits, uint32_t n_logits);

#endif
