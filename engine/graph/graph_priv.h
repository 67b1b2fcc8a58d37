/* What a graph holds; shared by graph.c (building it) and forward.c (running it). */
#ifndef ENGINE_GRAPH_GRAPH_PRIV_H
#define ENGINE_GRAPH_GRAPH_PRIV_H

#include "engine/graph/crew.h"
#include "engine/graph/graph.h"
#include "kernels/kernels.h"

enum { KVD_GRAPH_MAGIC = 0x68707267 };

struct graph_layer {
    float *attn_norm;
    float *ffn_norm;
    struct kvd_matrix q, k, v, o, gate, up, down;
};

/* Rows of a chunk at each stage; rows are as wide as the stage is. One caller at a time. */
struct graph_rows {
    float *x;               /* the residual stream [row][width] */
    float *proj;            /* what is added to it next [row][width] */
    float *q;               /* [row][heads][head_dim] */
    float *k;               /* [row][kv_heads][head_dim] */
    float *v;               /* the same */
    float *attn;            /* as q */
    float *gate;            /* [row][ffn] */
    float *up;              /* [row][ffn] */
    float *rope;            /* [row][head_dim]: kvd_rope_row */
    struct kvd_qrows quant; /* the input of the next matrices; cols changes from stage to stage */
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
    double *freq;
    struct graph_rows rows;
    const uint8_t **pages; /* of the sequence at hand, by absolute block */
    float **thread_row;    /* by thread: one row of width floats */
    float **thread_attn;   /* by thread: scratch of the attention kernel */
    uint8_t *memory;       /* weights and everything above that is in floats; one allocation */
    size_t memory_bytes;
};

#endif
