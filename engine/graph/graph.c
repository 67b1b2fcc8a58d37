/*
 * Building a graph: checks the model against what the kernels take, lays everything out in one
 * allocation (a first pass over the same code only counts) and repacks the matrices. forward.c
 * runs it.
 */
#include "engine/graph/graph.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/graph/graph_priv.h"
#include "proto/base/assert.h"
#include "proto/base/bytes.h"
#include "proto/base/cleanup.h"

enum { LINE = 64, HUGE_PAGE = 2 << 20 };

/* Hands out pieces of an allocation, or only counts while base is NULL. */
struct bump {
    uint8_t *base;
    size_t at;
};

static void *bump_take(struct bump *b, size_t bytes)
{
    void *piece = b->base ? b->base + b->at : NULL;
    b->at += kvd_round_up(bytes, LINE);
    return piece;
}

static float *bump_floats(struct bump *b, size_t n)
{
    return bump_take(b, n * sizeof(float));
}

static int weight_type(const struct kvd_gguf_tensor *t, struct kvd_diag *diag,
                       enum kvd_weight_type *ret)
{
    if (t->type == KVD_GGML_Q4_1) {
        *ret = KVD_WEIGHT_Q4_1;
        return 0;
    }
    if (t->type == KVD_GGML_Q8_0) {
        *ret = KVD_WEIGHT_Q8_0;
        return 0;
    }
    return kvd_fail(diag, -KVD_E_FORMAT,
                    "matrix %.*s has GGUF type %u; matrices can be Q4_1 or Q8_0: quantise the "
                    "model to one of them",
                    (int)t->name.bytes, t->name.text, t->type);
}

static int matrix_init(struct kvd_matrix *m, const struct kvd_gguf_tensor *t, struct kvd_diag *diag)
{
    enum kvd_weight_type type = KVD_WEIGHT_Q4_1;
    const int r = weight_type(t, diag, &type);
    if (r == 0) {
        kvd_matrix_init(m, type, (uint32_t)t->dims[1], (uint32_t)t->dims[0]);
    }
    return r;
}

/* A layer's matrices beside the tensors they come from. */
enum { LAYER_MATRICES = 7 };
struct pair {
    struct kvd_matrix *matrix;
    const struct kvd_gguf_tensor *tensor;
};

static void layer_pairs(struct graph_layer *l, const struct kvd_model_layer *from,
                        struct pair pairs[LAYER_MATRICES])
{
    const struct pair all[LAYER_MATRICES] = {
        {&l->q, from->q},       {&l->k, from->k},   {&l->v, from->v},       {&l->o, from->o},
        {&l->gate, from->gate}, {&l->up, from->up}, {&l->down, from->down},
    };
    memcpy(pairs, all, sizeof(all));
}

static int init_matrices(struct kvd_graph *g, struct kvd_diag *diag)
{
    for (uint32_t i = 0; i < g->p.layers; i++) {
        struct pair pairs[LAYER_MATRICES];
        layer_pairs(&g->layers[i], &g->model->layers[i], pairs);
        for (int m = 0; m < LAYER_MATRICES; m++) {
            const int r = matrix_init(pairs[m].matrix, pairs[m].tensor, diag);
            if (r < 0) {
                return r;
            }
        }
    }
    return matrix_init(&g->output, g->model->output, diag);
}

static void lay_weights(struct kvd_graph *g, struct bump *b)
{
    for (uint32_t i = 0; i < g->p.layers; i++) {
        struct pair pairs[LAYER_MATRICES];
        layer_pairs(&g->layers[i], &g->model->layers[i], pairs);
        for (int m = 0; m < LAYER_MATRICES; m++) {
            pairs[m].matrix->packed = bump_take(b, kvd_matrix_bytes(pairs[m].matrix));
        }
        g->layers[i].attn_norm = bump_floats(b, g->p.width);
        g->layers[i].ffn_norm = bump_floats(b, g->p.width);
    }
    g->output.packed = bump_take(b, kvd_matrix_bytes(&g->output));
    g->embedding = bump_take(b, g->model->embedding->bytes);
    g->output_norm = bump_floats(b, g->p.width);
    g->freq = bump_take(b, g->p.head_dim / 2 * sizeof(double));
}

static uint32_t widest(const struct kvd_graph *g)
{
    uint32_t most = g->p.width > g->p.ffn ? g->p.width : g->p.ffn;
    return most > g->q_width ? most : g->q_width;
}

static void lay_stream(const struct kvd_graph *g, struct graph_stream *s, size_t rows,
                       struct bump *b)
{
    const size_t blocks = rows * (widest(g) / KVD_QUANT_COLS);
    s->x = bump_floats(b, rows * g->p.width);
    s->rope = bump_floats(b, rows * g->p.head_dim);
    s->quant.q = bump_take(b, rows * widest(g));
    s->quant.scale = bump_floats(b, blocks);
    s->quant.offset = bump_floats(b, blocks);
    s->quant.sum = bump_floats(b, blocks);
}

static void lay_rows(struct kvd_graph *g, struct bump *b)
{
    const size_t n = KVD_GRAPH_CHUNK_MAX;
    struct graph_rows *r = &g->rows;
    lay_stream(g, &g->stream, n, b);
    r->proj = bump_floats(b, n * g->p.width);
    r->q = bump_floats(b, n * g->q_width);
    r->k = bump_floats(b, n * g->kv_width);
    r->v = bump_floats(b, n * g->kv_width);
    r->attn = bump_floats(b, n * g->q_width);
    r->gate = bump_floats(b, n * g->p.ffn);
    r->up = bump_floats(b, n * g->p.ffn);
    for (uint32_t t = 0; t < kvd_crew_threads(g->crew); t++) {
        struct graph_thread *own = &g->threads[t];
        lay_stream(g, &own->few, KVD_GRAPH_FEW, b);
        own->row = bump_floats(b, widest(g));
        own->attention =
            bump_floats(b, kvd_attention_scratch(g->p.head_dim, g->block_tokens, g->group));
    }
}

static int lay_out(struct kvd_graph *g, struct kvd_diag *diag)
{
    struct bump count = {0};
    lay_weights(g, &count);
    lay_rows(g, &count);
    const size_t bytes = kvd_round_up(count.at, HUGE_PAGE);
    g->memory = aligned_alloc(HUGE_PAGE, bytes);
    if (!g->memory) {
        return kvd_fail(diag, -ENOMEM, "no memory for the model: %zu bytes are needed", bytes);
    }
    g->memory_bytes = bytes;
    (void)madvise(g->memory, bytes,
                  MADV_HUGEPAGE); /* fewer misses of the TLB, where it is allowed */
    struct bump take = {.base = g->memory};
    lay_weights(g, &take);
    lay_rows(g, &take);
    return 0;
}

static void copy_norm(float *to, const struct kvd_gguf_tensor *t)
{
    memcpy(to, t->data, t->dims[0] * sizeof(float));
}

/* A job of the crew: each claims layers; the last item is the output matrix. */
static void pack_job(void *user, struct kvd_crew *crew, uint32_t thread)
{
    struct kvd_graph *g = user;
    uint32_t i;
    uint32_t end;
    (void)thread;
    while (kvd_crew_claim(crew, g->p.layers + 1, 1, &i, &end)) {
        if (i == g->p.layers) {
            kvd_matrix_pack(&g->output, g->model->output->data);
            copy_norm(g->output_norm, g->model->output_norm);
            memcpy(g->embedding, g->model->embedding->data, g->model->embedding->bytes);
            continue;
        }
        struct pair pairs[LAYER_MATRICES];
        layer_pairs(&g->layers[i], &g->model->layers[i], pairs);
        for (int m = 0; m < LAYER_MATRICES; m++) {
            kvd_matrix_pack(pairs[m].matrix, pairs[m].tensor->data);
        }
        copy_norm(g->layers[i].attn_norm, g->model->layers[i].attn_norm);
        copy_norm(g->layers[i].ffn_norm, g->model->layers[i].ffn_norm);
    }
}

static int check_params(const struct kvd_model_params *p, const struct kvd_graph_options *o,
                        struct kvd_diag *diag)
{
    if (p->head_dim % 8 != 0 || p->head_dim > KVD_ATTENTION_HEAD ||
        p->heads / p->kv_heads > KVD_ATTENTION_GROUP) {
        return kvd_fail(diag, -KVD_E_FORMAT,
                        "head size %u with %u query heads a KV head: the size must be a multiple "
                        "of 8 and at most %d, the query heads at most %d",
                        p->head_dim, p->heads / p->kv_heads, KVD_ATTENTION_HEAD,
                        KVD_ATTENTION_GROUP);
    }
    if (p->context > KVD_ROPE_POSITION_MAX) {
        return kvd_fail(diag, -KVD_E_FORMAT, "context of %u tokens; at most %d can be computed",
                        p->context, KVD_ROPE_POSITION_MAX);
    }
    if (!(p->rope_base >= 1.0 && p->rope_base <= 1e12)) {
        return kvd_fail(diag, -KVD_E_FORMAT, "rope base %g; it must be from 1 to 1e12",
                        p->rope_base);
    }
    if (o->block_tokens == 0 || o->block_tokens % 8 != 0 || o->block_tokens > KVD_ATTENTION_TILE) {
        return kvd_fail(diag, -KVD_E_CONFIG,
                        "blocks of %u tokens; a block holds a multiple of 8, at most %d",
                        o->block_tokens, KVD_ATTENTION_TILE);
    }
    if (o->threads == 0 || o->threads > KVD_CREW_THREADS_MAX) {
        return kvd_fail(diag, -KVD_E_CONFIG, "%u threads; 1 to %d can be used", o->threads,
                        KVD_CREW_THREADS_MAX);
    }
    return 0;
}

static int select_kernels(struct kvd_graph *g, const char *name, struct kvd_diag *diag)
{
    const int r = kvd_kernels_select(name, &g->kernels);
    if (r == -KVD_E_NOT_FOUND) {
        return kvd_fail(diag, -KVD_E_CONFIG, "there are no kernels '%s'; use auto, avx2 or ref",
                        name);
    }
    if (r < 0) {
        return kvd_fail(diag, r, "this CPU doesn't run the kernels '%s'; use auto or ref", name);
    }
    return 0;
}

static int fill(struct kvd_graph *g, const struct kvd_graph_options *options, struct kvd_diag *diag)
{
    g->p = g->model->params;
    g->block_tokens = options->block_tokens;
    g->group = g->p.heads / g->p.kv_heads;
    g->q_width = g->p.heads * g->p.head_dim;
    g->kv_width = g->p.kv_heads * g->p.head_dim;
    int r = select_kernels(g, options->kernels, diag);
    if (r < 0) {
        return r;
    }
    r = kvd_crew_create(options->threads, &g->crew);
    if (r < 0) {
        return kvd_fail(diag, r, "can't start %u threads: %s", options->threads, kvd_strerror(r));
    }
    g->layers = calloc(g->p.layers, sizeof(*g->layers));
    g->pages = calloc(g->p.context / g->block_tokens + 1, sizeof(*g->pages));
    g->threads = calloc(options->threads, sizeof(*g->threads));
    if (!g->layers || !g->pages || !g->threads) {
        return kvd_fail(diag, -ENOMEM, "no memory for a graph of %u layers", g->p.layers);
    }
    r = init_matrices(g, diag);
    r = r < 0 ? r : lay_out(g, diag);
    if (r < 0) {
        return r;
    }
    kvd_crew_run(g->crew, pack_job, g);
    kvd_rope_freq(g->p.rope_base, g->p.head_dim, g->freq);
    return 0;
}

int kvd_graph_create(const struct kvd_model *model, const struct kvd_graph_options *options,
                     struct kvd_diag *diag, struct kvd_graph **ret)
{
    int r = check_params(&model->params, options, diag);
    if (r < 0) {
        return r;
    }
    KVD_CLEANUP(kvd_graph_destroy) struct kvd_graph *g = calloc(1, sizeof(*g));
    if (!g) {
        return kvd_fail(diag, -ENOMEM, "no memory");
    }
    g->magic = KVD_GRAPH_MAGIC;
    g->model = model;
    r = fill(g, options, diag);
    if (r < 0) {
        return r;
    }
    *ret = KVD_TAKE(g);
    return 0;
}

void kvd_graph_destroy(struct kvd_graph **graph)
{
    if (!graph || !*graph) {
        return;
    }
    struct kvd_graph *g = *graph;
    KVD_MAGIC_CHECK(g, KVD_GRAPH_MAGIC);
    kvd_crew_destroy(&g->crew);
    free(g->memory);
    free(g->layers);
    free((void *)g->pages);
    free(g->threads);
    KVD_MAGIC_CLEAR(g);
    free(g);
    *graph = NULL;
}

uint64_t kvd_graph_page_bytes(const struct kvd_graph *graph)
{
    KVD_MAGIC_CHECK(graph, KVD_GRAPH_MAGIC);
    return (uint64_t)graph->p.layers * 2 * graph->kv_width * graph->block_tokens * sizeof(uint16_t);
}

const char *kvd_graph_kernels(const struct kvd_graph *graph)
{
    KVD_MAGIC_CHECK(graph, KVD_GRAPH_MAGIC);
    return graph->kernels.name;
}
