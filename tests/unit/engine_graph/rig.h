/* A model, a graph and pages for the tests of the graph. */
#ifndef TESTS_UNIT_ENGINE_GRAPH_RIG_H
#define TESTS_UNIT_ENGINE_GRAPH_RIG_H

#include <stddef.h>
#include <stdint.h>

#include "engine/graph/graph.h"

struct rig_options {
    const char *kernels;
    uint32_t threads;
    uint64_t shuffle_seed;
    uint32_t block_tokens; /* 0: 64 */
};

struct rig {
    struct kvd_graph *graph;
    struct kvd_arena *arena;
    int *pages;
    uint32_t n_pages;
    uint32_t block_tokens;
    const struct kvd_model_params *p; /* the model's */
};

/* Pages for `tokens` tokens; every byte of them is 0xff (a NaN) before the first pass. Fails the
 * test if anything can't be made. */
void rig_open(struct rig *rig, const struct kvd_model *model, struct rig_options options,
              uint32_t tokens);
void rig_close(struct rig *rig);

/* Computes ids[from, to) in chunks, the logits of every token (if logits is not NULL) at
 * logits[(token - from) * vocab]. */
void rig_run(struct rig *rig, const uint32_t *ids, uint32_t from, uint32_t to, uint32_t chunk,
             float *logits);

/* Keys and values of the first n tokens, [layer][K, V][kv head][token][dim] f16; the caller
 * frees. */
uint16_t *rig_kv(const struct rig *rig, uint32_t n, size_t *ret_bytes);

/* The generated model with seed 7; written once a program, the file is gone when it returns. */
struct kvd_model *rig_tiny_model(void);
struct kvd_model *rig_open_model(const char *path);

#endif
