/* What a graph holds; shared by graph.c (building it) and forward.c (running it). */
#ifndef ENGINE_GRAPH_GRAPH_PRIV_H
#define ENGINE_GRAPH_GRAPH_PRIV_H

#include "engine/graph/crew.h"
#include "engine/graph/graph.h"
#include "kernels/kernels.h"

enum {
    KVD_GRAPH_MAGIC = 0x68707267,
    KVD_GRAPH_FEW = 4 /* rows that each thread keeps a stream of its own for; see forward.c */
};

struct graph_layer {
    float *attn_norm;
    float *ffn_norm;
    struct kvd_matrix q, k, v, o, gate, up, down;
};

/* What goes from stage to stage, and what every thread could compute for itself. */
struct graph_stream {
    float *x;               /* the residual stream [row][width] */
    float *rope;            /* [row][head_dim]: kvd_rope_row */
    struct kvd_qrows quant; /* the input of the next matrices; cols changes from stage to stage */
};

/* Rows of a chunk at the other stages; rows are as wide as the stage is. One caller at a time. */
struct graph_rows {
    float *proj; /* what is added to the residual stream next [row][width] */
    float *q;    /* [row][heads][head_dim] */
    float *k;    /* [row][kv_heads][head_dim] */
    float *v;    /* the same */
    float *attn; /* as q */
    float *gate; /* [row][ffn] */
    float *up;   /* [row][ffn] */
};

struct graph_thread {
    struct graph_stream few; /* KVD_GRAPH_FEW rows */
    float *row;              /* as wide as the widest */
    float *attention;        /* scratch of the kernel */
};

struct kvd_graph {
    uint32_t magic;
    const struct kvd_model *model; /* borrowed */
    struct kvd_model_params p;
    struct kvd_kernels kernels;
    struct kvd_crew *crew;
    uint32_t block_tokens;
    uint32_t group;   /* query heads a KV head */
    uint32_t q_width; /* heads * head_dim */
    uint32_t kv_width;
    struct graph_layer *layers;
    float *output_norm;
    struct kvd_matrix output;
    uint8_t
        *embedding; /* rows as in the file; a copy, as all weights: the file may be written to */
    double *freq;
    struct graph_stream stream; /* KVD_GRAPH_CHUNK_MAX rows, of all threads together */
    struct graph_rows rows;
    struct graph_thread *threads;
    uint8_t **pages; /* of the sequence at hand, by absolute block */
    uint8_t *memory; /* weights and everything above that is in floats; one allocation */
    size_t memory_bytes;
};

#endif
