/*
 * The forward pass. Every thread of the crew runs `pass_job`: stages that claim rows, panels of
 * matrices or pieces of attention, with a barrier after each. Which thread takes what has no
 * influence: a stage's items write disjoint places and each is computed in the kernels' fixed
 * order.
 */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "engine/graph/graph_priv.h"
#include "kernels/dequant.h"
#include "proto/base/assert.h"

enum { ROW_GRAIN = 8, JOBS_MAX = 3 };

struct pass {
    struct kvd_graph *g;
    uint32_t pos;
    const uint32_t *tokens;
    uint32_t n;
    float *logits;
    uint32_t n_logits;
    atomic_bool broken; /* a row has a value that is no number */
};

/* Rows [first, n) of the chunk times one matrix. */
struct product {
    const struct kvd_matrix *w;
    float *out; /* of row first */
    size_t stride;
    uint32_t first;
};

/* The quantised rows from `row` on, where rows have `cols` columns. */
static struct kvd_qrows quant_rows(const struct kvd_graph *g, uint32_t cols, uint32_t row)
{
    struct kvd_qrows all = g->rows.quant;
    all.cols = cols;
    return kvd_qrows_from(&all, row);
}

/* Panels [first, end) of one product. */
static void multiply(const struct pass *p, const struct product *job, uint32_t first, uint32_t end)
{
    const struct kvd_graph *g = p->g;
    if (job->first >= p->n) {
        return;
    }
    const struct kvd_qrows x = quant_rows(g, job->w->cols, job->first);
    g->kernels.matmul[job->w->type](job->w, first, end, &x, p->n - job->first, job->out,
                                    job->stride);
}

/* A stage: all panels of up to three products of the same input. */
static void multiply_all(const struct pass *p, struct kvd_crew *crew, const struct product *jobs,
                         uint32_t n_jobs)
{
    uint32_t total = 0;
    for (uint32_t i = 0; i < n_jobs; i++) {
        total += jobs[i].w->panels;
    }
    const uint32_t shares = kvd_crew_threads(crew) * 8;
    const uint32_t grain = total / shares > 0 ? total / shares : 1;
    uint32_t first;
    uint32_t end;
    while (kvd_crew_claim(crew, total, grain, &first, &end)) {
        uint32_t base = 0; /* of job i's panels in the stage's numbering */
        for (uint32_t i = 0; i < n_jobs; base += jobs[i].w->panels, i++) {
            const uint32_t job_end = base + jobs[i].w->panels;
            const uint32_t from = first > base ? first : base;
            const uint32_t to = end < job_end ? end : job_end;
            if (from < to) {
                multiply(p, &jobs[i], from - base, to - base);
            }
        }
    }
    kvd_crew_barrier(crew);
}

/* Claims rows of [first, n) for a stage that works row by row. */
static bool claim_rows(const struct pass *p, struct kvd_crew *crew, uint32_t first,
                       uint32_t *ret_from, uint32_t *ret_to)
{
    const uint32_t total = first < p->n ? p->n - first : 0;
    if (!kvd_crew_claim(crew, total, ROW_GRAIN, ret_from, ret_to)) {
        return false;
    }
    *ret_from += first;
    *ret_to += first;
    return true;
}

static void embed_row(const struct pass *p, uint32_t r)
{
    const struct kvd_graph *g = p->g;
    const struct kvd_gguf_tensor *t = g->model->embedding;
    const uint8_t *row = (const uint8_t *)t->data + t->bytes / t->dims[1] * p->tokens[r];
    float *x = g->rows.x + (size_t)r * g->p.width;
    switch (t->type) {
    case KVD_GGML_Q4_1:
        kvd_dequant_q4_1(row, g->p.width, x);
        break;
    case KVD_GGML_Q8_0:
        kvd_dequant_q8_0(row, g->p.width, x);
        break;
    case KVD_GGML_F16:
        kvd_dequant_f16(row, g->p.width, x);
        break;
    default:
        memcpy(x, row, (size_t)g->p.width * sizeof(float));
        break;
    }
    kvd_rope_row(g->freq, g->p.head_dim, p->pos + r, g->rows.rope + (size_t)r * g->p.head_dim);
}

static void embed(const struct pass *p, struct kvd_crew *crew)
{
    uint32_t from;
    uint32_t to;
    while (claim_rows(p, crew, 0, &from, &to)) {
        for (uint32_t r = from; r < to; r++) {
            embed_row(p, r);
        }
    }
    kvd_crew_barrier(crew);
}

static void quantise_row(const struct kvd_graph *g, const float *x, uint32_t cols, uint32_t r)
{
    const struct kvd_qrows to = quant_rows(g, cols, r);
    g->kernels.quantise(x, &to);
}

/* x += proj (unless this is the first norm of all), norm, quantise. */
static void norm_rows(const struct pass *p, struct kvd_crew *crew, uint32_t thread, bool add,
                      const float *weight, uint32_t first)
{
    const struct kvd_graph *g = p->g;
    const uint32_t width = g->p.width;
    uint32_t from;
    uint32_t to;
    while (claim_rows(p, crew, first, &from, &to)) {
        for (uint32_t r = from; r < to; r++) {
            float *x = g->rows.x + (size_t)r * width;
            if (add) {
                g->kernels.add(x, g->rows.proj + (size_t)r * width, width);
            }
            g->kernels.rmsnorm(x, weight, width, g->p.rms_eps, g->thread_row[thread]);
            quantise_row(g, g->thread_row[thread], width, r);
        }
    }
    kvd_crew_barrier(crew);
}

/* Bytes from a page's start to a head's keys (kv 0) or values (1). */
static size_t page_offset(const struct kvd_graph *g, uint32_t layer, uint32_t kv, uint32_t head)
{
    const size_t heads = ((size_t)layer * 2 + kv) * g->p.kv_heads + head;
    return heads * g->block_tokens * g->p.head_dim * sizeof(uint16_t);
}

static void write_heads(const struct pass *p, uint32_t layer, uint32_t kv, uint32_t r,
                        const float *heads)
{
    const struct kvd_graph *g = p->g;
    const uint32_t position = p->pos + r;
    const uint32_t dim = g->p.head_dim;
    /* The pages are the caller's arena's, which are writable; the graph keeps them as const because
     * attention only reads. */
    uint8_t *page = (uint8_t *)(uintptr_t)g->pages[position / g->block_tokens];
    const size_t at = (size_t)(position % g->block_tokens) * dim * sizeof(uint16_t);
    for (uint32_t h = 0; h < g->p.kv_heads; h++) {
        uint16_t *to = (uint16_t *)(void *)(page + page_offset(g, layer, kv, h) + at);
        g->kernels.to_f16(heads + (size_t)h * dim, dim, to);
    }
}

/* Rotates queries of rows [first, n) and keys of all rows; keys and values go to their pages. */
static void rotate_and_write(const struct pass *p, struct kvd_crew *crew, uint32_t layer,
                             uint32_t first)
{
    const struct kvd_graph *g = p->g;
    uint32_t from;
    uint32_t to;
    while (claim_rows(p, crew, 0, &from, &to)) {
        for (uint32_t r = from; r < to; r++) {
            const float *angles = g->rows.rope + (size_t)r * g->p.head_dim;
            float *k = g->rows.k + (size_t)r * g->kv_width;
            g->kernels.rope(k, g->p.kv_heads, g->p.head_dim, angles);
            write_heads(p, layer, 0, r, k);
            write_heads(p, layer, 1, r, g->rows.v + (size_t)r * g->kv_width);
            if (r >= first) {
                g->kernels.rope(g->rows.q + (size_t)r * g->q_width, g->p.heads, g->p.head_dim,
                                angles);
            }
        }
    }
    kvd_crew_barrier(crew);
}

static void attend_rows(const struct pass *p, uint32_t thread, uint32_t layer, uint32_t head,
                        uint32_t row, uint32_t rows)
{
    const struct kvd_graph *g = p->g;
    const size_t at = (size_t)row * g->q_width + (size_t)head * g->group * g->p.head_dim;
    const struct kvd_attention a = {
        .head_dim = g->p.head_dim,
        .tile_tokens = g->block_tokens,
        .group = g->group,
        .rows = rows,
        .position = p->pos + row,
        .scale = 1.0f / sqrtf((float)g->p.head_dim),
        .q = g->rows.q + at,
        .out = g->rows.attn + at,
        .stride = g->q_width,
        .pages = g->pages,
        .k_offset = page_offset(g, layer, 0, head),
        .v_offset = page_offset(g, layer, 1, head),
        .scratch = g->thread_attn[thread],
    };
    g->kernels.attention(&a);
}

/* An item is a KV head and some rows. The last rows, which see most, are taken first. */
static void attend(const struct pass *p, struct kvd_crew *crew, uint32_t thread, uint32_t layer,
                   uint32_t first)
{
    const uint32_t heads = p->g->p.kv_heads;
    const uint32_t rows = p->n - first;
    const uint32_t groups = (rows + KVD_ATTENTION_ROWS - 1) / KVD_ATTENTION_ROWS;
    uint32_t i;
    uint32_t end;
    while (kvd_crew_claim(crew, groups * heads, 1, &i, &end)) {
        const uint32_t row = (groups - 1 - i / heads) * KVD_ATTENTION_ROWS;
        const uint32_t left = rows - row;
        attend_rows(p, thread, layer, i % heads, first + row,
                    left < KVD_ATTENTION_ROWS ? left : KVD_ATTENTION_ROWS);
    }
    kvd_crew_barrier(crew);
}

static void quantise_attn(const struct pass *p, struct kvd_crew *crew, uint32_t first)
{
    const struct kvd_graph *g = p->g;
    uint32_t from;
    uint32_t to;
    while (claim_rows(p, crew, first, &from, &to)) {
        for (uint32_t r = from; r < to; r++) {
            quantise_row(g, g->rows.attn + (size_t)r * g->q_width, g->q_width, r);
        }
    }
    kvd_crew_barrier(crew);
}

static void activate(const struct pass *p, struct kvd_crew *crew, uint32_t first)
{
    const struct kvd_graph *g = p->g;
    uint32_t from;
    uint32_t to;
    while (claim_rows(p, crew, first, &from, &to)) {
        for (uint32_t r = from; r < to; r++) {
            float *gate = g->rows.gate + (size_t)r * g->p.ffn;
            g->kernels.silu_mul(gate, g->rows.up + (size_t)r * g->p.ffn, g->p.ffn);
            quantise_row(g, gate, g->p.ffn, r);
        }
    }
    kvd_crew_barrier(crew);
}

/* Keys and values of all rows are made; what follows only for rows [first, n), which is all of them
 * but in the last layer, where only rows with logits are wanted. */
static void run_layer(const struct pass *p, struct kvd_crew *crew, uint32_t thread, uint32_t layer,
                      uint32_t first)
{
    const struct kvd_graph *g = p->g;
    const struct graph_layer *l = &g->layers[layer];
    const struct graph_rows *rows = &g->rows;
    const size_t at = first;
    const struct product qkv[] = {{&l->q, rows->q + at * g->q_width, g->q_width, first},
                                  {&l->k, rows->k, g->kv_width, 0},
                                  {&l->v, rows->v, g->kv_width, 0}};
    const struct product o = {&l->o, rows->proj + at * g->p.width, g->p.width, first};
    const struct product gate_up[] = {{&l->gate, rows->gate + at * g->p.ffn, g->p.ffn, first},
                                      {&l->up, rows->up + at * g->p.ffn, g->p.ffn, first}};
    const struct product down = {&l->down, rows->proj + at * g->p.width, g->p.width, first};
    norm_rows(p, crew, thread, layer > 0, l->attn_norm, 0);
    multiply_all(p, crew, qkv, 3);
    rotate_and_write(p, crew, layer, first);
    if (first == p->n) {
        return;
    }
    attend(p, crew, thread, layer, first);
    quantise_attn(p, crew, first);
    multiply_all(p, crew, &o, 1);
    norm_rows(p, crew, thread, true, l->ffn_norm, first);
    multiply_all(p, crew, gate_up, 2);
    activate(p, crew, first);
    multiply_all(p, crew, &down, 1);
}

static bool finite_row(const float *x, uint32_t n)
{
    uint32_t bad = 0;
    for (uint32_t i = 0; i < n; i++) {
        bad |= (kvd_f32_bits(x[i]) & 0x7f800000u) == 0x7f800000u;
    }
    return bad == 0;
}

/* Notes whether any of n rows holds what is no number: weights that are broken. */
static void check_rows(struct pass *p, struct kvd_crew *crew, const float *rows, uint32_t n,
                       uint32_t width)
{
    uint32_t from;
    uint32_t to;
    while (kvd_crew_claim(crew, n, ROW_GRAIN, &from, &to)) {
        for (uint32_t r = from; r < to; r++) {
            if (!finite_row(rows + (size_t)r * width, width)) {
                atomic_store_explicit(&p->broken, true, memory_order_relaxed);
            }
        }
    }
    kvd_crew_barrier(crew);
}

static void pass_job(void *user, struct kvd_crew *crew, uint32_t thread)
{
    struct pass *p = user;
    const struct kvd_graph *g = p->g;
    const uint32_t layers = g->p.layers;
    const uint32_t wanted = p->n - p->n_logits;
    embed(p, crew);
    for (uint32_t i = 0; i < layers; i++) {
        run_layer(p, crew, thread, i, i + 1 == layers ? wanted : 0);
    }
    norm_rows(p, crew, thread, true, g->output_norm, wanted);
    check_rows(p, crew, g->rows.x, p->n, g->p.width);
    if (p->n_logits > 0) {
        const struct product logits = {&g->output, p->logits, g->p.vocab, wanted};
        multiply_all(p, crew, &logits, 1);
        check_rows(p, crew, p->logits, p->n_logits, g->p.vocab);
    }
}

static bool tokens_known(const struct kvd_graph *g, const uint32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (tokens[i] >= g->p.vocab) {
            return false;
        }
    }
    return true;
}

int kvd_graph_forward(struct kvd_graph *graph, const struct kvd_kv_view *kv, uint32_t pos,
                      const uint32_t *tokens, uint32_t n, float *logits, uint32_t n_logits)
{
    KVD_MAGIC_CHECK(graph, KVD_GRAPH_MAGIC);
    const uint32_t context = graph->p.context;
    if (n == 0 || n > KVD_GRAPH_CHUNK_MAX || n_logits > n || pos > context || n > context - pos ||
        !tokens_known(graph, tokens, n)) {
        return -KVD_E_BAD_REQUEST;
    }
    for (uint32_t i = 0; i <= (pos + n - 1) / graph->block_tokens; i++) {
        graph->pages[i] = kvd_arena_page(kv->arena, kv->pages[i]);
    }
    struct pass pass = {
        .g = graph, .pos = pos, .tokens = tokens, .n = n, .logits = logits, .n_logits = n_logits};
    kvd_crew_run(graph->crew, pass_job, &pass);
    return atomic_load_explicit(&pass.broken, memory_order_relaxed) ? -KVD_E_CORRUPT : 0;
}
