/*
 * The forward pass. Every thread of the crew runs `pass_job`: stages that claim panels of matrices,
 * pieces of attention or rows, with a barrier after each. Which thread takes what has no influence:
 * a stage's items write disjoint places and each is computed in the kernels' fixed order.
 *
 * What is done row by row (norms, rounding to int8, activation) costs nothing beside a barrier when
 * there are few rows, as in decoding. Then every thread does it for itself, in a stream of its own,
 * and only what is shared out needs barriers: 5 a layer instead of 10. The results are the same,
 * since every thread computes the same.
 */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "engine/graph/graph_priv.h"
#include "kernels/dequant.h"
#include "proto/base/assert.h"

enum { ROW_GRAIN = 8, PRODUCTS_MAX = 3, SHARES = 8 /* of a product, by thread */ };

struct pass {
    struct kvd_graph *g;
    uint32_t pos;
    const uint32_t *tokens;
    uint32_t n;
    float *logits;
    uint32_t n_logits;
    atomic_bool broken; /* a row has a value that is no number */
};

/* One thread's view of a pass. */
struct seat {
    struct pass *p;
    const struct kvd_graph *g;
    struct kvd_crew *crew;
    const struct graph_thread *own;
    bool few;                     /* rows are few: the stream is this thread's own */
    const struct graph_stream *s; /* own->few, or the one of all */
};

/* Rows [first, n) of the chunk times one matrix. */
struct product {
    const struct kvd_matrix *w;
    float *out; /* of row first */
    size_t stride;
    uint32_t first;
};

/* Where a loop over rows is. */
struct row_range {
    uint32_t first;
    uint32_t end;
    bool done;
};

/* The next rows of [first, n) for this thread: all of them at once where it works for itself. */
static bool next_rows(const struct seat *seat, uint32_t first, struct row_range *range)
{
    if (seat->few) {
        const bool again = range->done;
        *range = (struct row_range){.first = first, .end = seat->p->n, .done = true};
        return !again;
    }
    if (!kvd_crew_claim(seat->crew, seat->p->n - first, ROW_GRAIN, &range->first, &range->end)) {
        return false;
    }
    range->first += first;
    range->end += first;
    return true;
}

static void end_rows(const struct seat *seat)
{
    if (!seat->few) {
        kvd_crew_barrier(seat->crew);
    }
}

/* The quantised rows from `row` on, where rows have `cols` columns. */
static struct kvd_qrows quant_rows(const struct seat *seat, uint32_t cols, uint32_t row)
{
    struct kvd_qrows all = seat->s->quant;
    all.cols = cols;
    return kvd_qrows_from(&all, row);
}

/* Panels [first, end) of one product. */
static void multiply(const struct seat *seat, const struct product *job, uint32_t first,
                     uint32_t end)
{
    const uint32_t n = seat->p->n;
    if (job->first < n) {
        const struct kvd_qrows x = quant_rows(seat, job->w->cols, job->first);
        seat->g->kernels.matmul[job->w->type](job->w, first, end, &x, n - job->first, job->out,
                                              job->stride);
    }
}

/* A stage: all panels of up to three products of the same input. */
static void multiply_all(const struct seat *seat, const struct product *jobs, uint32_t n_jobs)
{
    uint32_t total = 0;
    for (uint32_t i = 0; i < n_jobs; i++) {
        total += jobs[i].w->panels;
    }
    const uint32_t shares = kvd_crew_threads(seat->crew) * SHARES;
    const uint32_t grain = total / shares > 0 ? total / shares : 1;
    uint32_t first;
    uint32_t end;
    while (kvd_crew_claim(seat->crew, total, grain, &first, &end)) {
        uint32_t base = 0; /* of job i's panels in the stage's numbering */
        for (uint32_t i = 0; i < n_jobs; base += jobs[i].w->panels, i++) {
            const uint32_t job_end = base + jobs[i].w->panels;
            const uint32_t from = first > base ? first : base;
            const uint32_t to = end < job_end ? end : job_end;
            if (from < to) {
                multiply(seat, &jobs[i], from - base, to - base);
            }
        }
    }
    kvd_crew_barrier(seat->crew);
}

static void embed_row(const struct seat *seat, uint32_t r)
{
    const struct kvd_graph *g = seat->g;
    const struct kvd_gguf_tensor *t = g->model->embedding;
    const uint8_t *row = g->embedding + t->bytes / t->dims[1] * seat->p->tokens[r];
    float *x = seat->s->x + (size_t)r * g->p.width;
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
    kvd_rope_row(g->freq, g->p.head_dim, seat->p->pos + r,
                 seat->s->rope + (size_t)r * g->p.head_dim);
}

static void embed(const struct seat *seat)
{
    struct row_range rows = {0};
    while (next_rows(seat, 0, &rows)) {
        for (uint32_t r = rows.first; r < rows.end; r++) {
            embed_row(seat, r);
        }
    }
    end_rows(seat);
}

static void quantise_row(const struct seat *seat, const float *x, uint32_t cols, uint32_t r)
{
    const struct kvd_qrows to = quant_rows(seat, cols, r);
    seat->g->kernels.quantise(x, &to);
}

/* x += proj (unless this is the first norm of all), norm, quantise. */
static void norm_rows(const struct seat *seat, bool add, const float *weight, uint32_t first)
{
    const struct kvd_graph *g = seat->g;
    const uint32_t width = g->p.width;
    struct row_range rows = {0};
    while (next_rows(seat, first, &rows)) {
        for (uint32_t r = rows.first; r < rows.end; r++) {
            float *x = seat->s->x + (size_t)r * width;
            if (add) {
                g->kernels.add(x, g->rows.proj + (size_t)r * width, width);
            }
            g->kernels.rmsnorm(x, weight, width, g->p.rms_eps, seat->own->row);
            quantise_row(seat, seat->own->row, width, r);
        }
    }
    end_rows(seat);
}

/* Bytes from a page's start to a head's keys (kv 0) or values (1). */
static size_t page_offset(const struct kvd_graph *g, uint32_t layer, uint32_t kv, uint32_t head)
{
    const size_t heads = ((size_t)layer * 2 + kv) * g->p.kv_heads + head;
    return heads * g->block_tokens * g->p.head_dim * sizeof(uint16_t);
}

static void write_head(const struct seat *seat, uint32_t layer, uint32_t kv, uint32_t head,
                       uint32_t r, const float *x)
{
    const struct kvd_graph *g = seat->g;
    const uint32_t position = seat->p->pos + r;
    const size_t at = page_offset(g, layer, kv, head) +
                      (size_t)(position % g->block_tokens) * g->p.head_dim * sizeof(uint16_t);
    uint8_t *page = g->pages[position / g->block_tokens];
    g->kernels.to_f16(x, g->p.head_dim, (uint16_t *)(void *)(page + at));
}

/* One row of one KV head: the key is rotated, key and value go to their page, the queries that
 * share the head are rotated where they are wanted. */
static void rotate_head(const struct seat *seat, uint32_t layer, uint32_t head, uint32_t r,
                        bool with_queries)
{
    const struct kvd_graph *g = seat->g;
    const uint32_t dim = g->p.head_dim;
    const float *angles = seat->s->rope + (size_t)r * dim;
    const size_t at = (size_t)r * g->kv_width + (size_t)head * dim;
    g->kernels.rope(g->rows.k + at, 1, dim, angles);
    write_head(seat, layer, 0, head, r, g->rows.k + at);
    write_head(seat, layer, 1, head, r, g->rows.v + at);
    if (with_queries) {
        float *q = g->rows.q + (size_t)r * g->q_width + (size_t)head * g->group * dim;
        g->kernels.rope(q, g->group, dim, angles);
    }
}

/* The stage of its own that this is where rows are many. */
static void rotate_rows(const struct seat *seat, uint32_t layer, uint32_t first)
{
    struct row_range rows = {0};
    while (next_rows(seat, 0, &rows)) {
        for (uint32_t r = rows.first; r < rows.end; r++) {
            for (uint32_t h = 0; h < seat->g->p.kv_heads; h++) {
                rotate_head(seat, layer, h, r, r >= first);
            }
        }
    }
    end_rows(seat);
}

static void attend_rows(const struct seat *seat, uint32_t layer, uint32_t head, uint32_t row,
                        uint32_t rows)
{
    const struct kvd_graph *g = seat->g;
    const size_t at = (size_t)row * g->q_width + (size_t)head * g->group * g->p.head_dim;
    const struct kvd_attention a = {
        .head_dim = g->p.head_dim,
        .tile_tokens = g->block_tokens,
        .group = g->group,
        .rows = rows,
        .position = seat->p->pos + row,
        .scale = 1.0f / sqrtf((float)g->p.head_dim),
        .q = g->rows.q + at,
        .out = g->rows.attn + at,
        .stride = g->q_width,
        .pages = (const uint8_t *const *)g->pages,
        .k_offset = page_offset(g, layer, 0, head),
        .v_offset = page_offset(g, layer, 1, head),
        .scratch = seat->own->attention,
    };
    g->kernels.attention(&a);
}

/* Many rows: an item is a KV head and some rows. The last rows, which see most, are taken first. */
static void attend_many(const struct seat *seat, uint32_t layer, uint32_t first)
{
    const uint32_t heads = seat->g->p.kv_heads;
    const uint32_t n = seat->p->n - first;
    const uint32_t groups = (n + KVD_ATTENTION_ROWS - 1) / KVD_ATTENTION_ROWS;
    uint32_t i;
    uint32_t end;
    rotate_rows(seat, layer, first);
    while (kvd_crew_claim(seat->crew, groups * heads, 1, &i, &end)) {
        const uint32_t row = (groups - 1 - i / heads) * KVD_ATTENTION_ROWS;
        const uint32_t left = n - row;
        attend_rows(seat, layer, i % heads, first + row,
                    left < KVD_ATTENTION_ROWS ? left : KVD_ATTENTION_ROWS);
    }
    kvd_crew_barrier(seat->crew);
}

/* Few rows: an item is a KV head with all its rows, from rotation on. */
static void attend_few(const struct seat *seat, uint32_t layer, uint32_t first)
{
    uint32_t head;
    uint32_t end;
    while (kvd_crew_claim(seat->crew, seat->g->p.kv_heads, 1, &head, &end)) {
        for (uint32_t r = 0; r < seat->p->n; r++) {
            rotate_head(seat, layer, head, r, r >= first);
        }
        if (first < seat->p->n) {
            attend_rows(seat, layer, head, first, seat->p->n - first);
        }
    }
    kvd_crew_barrier(seat->crew);
}

static void quantise_attn(const struct seat *seat, uint32_t first)
{
    const uint32_t width = seat->g->q_width;
    struct row_range rows = {0};
    while (next_rows(seat, first, &rows)) {
        for (uint32_t r = rows.first; r < rows.end; r++) {
            quantise_row(seat, seat->g->rows.attn + (size_t)r * width, width, r);
        }
    }
    end_rows(seat);
}

static void activate(const struct seat *seat, uint32_t first)
{
    const struct kvd_graph *g = seat->g;
    const uint32_t ffn = g->p.ffn;
    float *row = seat->own->row; /* the shared rows stay as they are: others may be reading them */
    struct row_range rows = {0};
    while (next_rows(seat, first, &rows)) {
        for (uint32_t r = rows.first; r < rows.end; r++) {
            memcpy(row, g->rows.gate + (size_t)r * ffn, ffn * sizeof(float));
            g->kernels.silu_mul(row, g->rows.up + (size_t)r * ffn, ffn);
            quantise_row(seat, row, ffn, r);
        }
    }
    end_rows(seat);
}

static void feed_forward(const struct seat *seat, const struct graph_layer *l, uint32_t first)
{
    const struct kvd_graph *g = seat->g;
    const size_t at = first;
    const struct product gate_up[] = {{&l->gate, g->rows.gate + at * g->p.ffn, g->p.ffn, first},
                                      {&l->up, g->rows.up + at * g->p.ffn, g->p.ffn, first}};
    const struct product down = {&l->down, g->rows.proj + at * g->p.width, g->p.width, first};
    norm_rows(seat, true, l->ffn_norm, first);
    multiply_all(seat, gate_up, 2);
    activate(seat, first);
    multiply_all(seat, &down, 1);
}

/* Keys and values of all rows are made; what follows only for rows [first, n), which is all of them
 * but in the last layer, where only rows with logits are wanted. */
static void run_layer(const struct seat *seat, uint32_t layer, uint32_t first)
{
    const struct kvd_graph *g = seat->g;
    const struct graph_layer *l = &g->layers[layer];
    const struct graph_rows *rows = &g->rows;
    const size_t at = first;
    const struct product qkv[PRODUCTS_MAX] = {{&l->q, rows->q + at * g->q_width, g->q_width, first},
                                              {&l->k, rows->k, g->kv_width, 0},
                                              {&l->v, rows->v, g->kv_width, 0}};
    const struct product o = {&l->o, rows->proj + at * g->p.width, g->p.width, first};
    norm_rows(seat, layer > 0, l->attn_norm, 0);
    multiply_all(seat, qkv, PRODUCTS_MAX);
    if (seat->few) {
        attend_few(seat, layer, first);
    } else {
        attend_many(seat, layer, first);
    }
    if (first < seat->p->n) {
        quantise_attn(seat, first);
        multiply_all(seat, &o, 1);
        feed_forward(seat, l, first);
    }
}

static bool finite_row(const float *x, uint32_t n)
{
    uint32_t bad = 0;
    for (uint32_t i = 0; i < n; i++) {
        bad |= (kvd_f32_bits(x[i]) & 0x7f800000u) == 0x7f800000u;
    }
    return bad == 0;
}

/* Notes whether any of n rows holds what is no number: weights or pages that are broken. Each row
 * is looked at by one thread, though all may have a copy. */
static void check_rows(const struct seat *seat, const float *rows, uint32_t n, uint32_t width)
{
    uint32_t from;
    uint32_t to;
    while (kvd_crew_claim(seat->crew, n, ROW_GRAIN, &from, &to)) {
        for (uint32_t r = from; r < to; r++) {
            if (!finite_row(rows + (size_t)r * width, width)) {
                atomic_store_explicit(&seat->p->broken, true, memory_order_relaxed);
            }
        }
    }
    kvd_crew_barrier(seat->crew);
}

static void pass_job(void *user, struct kvd_crew *crew, uint32_t thread)
{
    struct pass *p = user;
    const struct kvd_graph *g = p->g;
    const struct graph_thread *own = &g->threads[thread];
    const bool few = p->n <= KVD_GRAPH_FEW;
    const struct seat seat = {p, g, crew, own, few, few ? &own->few : &g->stream};
    const uint32_t layers = g->p.layers;
    const uint32_t wanted = p->n - p->n_logits;
    embed(&seat);
    for (uint32_t i = 0; i < layers; i++) {
        run_layer(&seat, i, i + 1 == layers ? wanted : 0);
    }
    norm_rows(&seat, true, g->output_norm, wanted);
    check_rows(&seat, seat.s->x, p->n, g->p.width);
    if (p->n_logits > 0) {
        const struct product logits = {&g->output, p->logits, g->p.vocab, wanted};
        multiply_all(&seat, &logits, 1);
        check_rows(&seat, p->logits, p->n_logits, g->p.vocab);
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
