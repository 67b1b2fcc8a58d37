/* What an engine is made of. For engine.c, run.c and cache.c only. */
#ifndef ENGINE_SESSION_ENGINE_H
#define ENGINE_SESSION_ENGINE_H

#include "engine/graph/graph.h"
#include "engine/session/cache.h"
#include "engine/session/session.h"

#define KVD_ENGINE_MAGIC 0x6e67696eU

struct kvd_engine {
    uint32_t magic;
    struct kvd_model *model;
    struct kvd_graph *graph;
    struct kvd_arena *arena;
    struct kvd_cache cache;
    struct kvd_log *log;
    char *name;
    uint32_t context; /* positions: the model's, or as many as the arena holds */
    float *logits;    /* one row */
    void *scratch;    /* of kvd_sample */
};

#endif
