/*
 * attention.h in AVX2. A tile's keys are converted and transposed once (keys in lanes, so a score
 * is one chain of fma over d, as the reference has it), its values converted once, and then all
 * queries of the call pass over it. Queries go by three, which is what the registers hold: 3 * 4
 * sums, 4 operands. What lies behind a query's last key is computed in the lanes and then replaced.
 */
#include "kernels/attention.h"

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>

#include "kernels/versions.h"
#include "kernels/x86.h"

enum { LANES = 8, TRIO = 3, VECTORS = 4 };

/* One call's scratch, cut up. */
struct work {
    const struct kvd_attention *a;
    float *keys;    /* [dim][tile] */
    float *values;  /* [tile][dim] */
    float *qs;      /* [query][dim] */
    float *o;       /* [query][dim] */
    float *top;     /* [query] */
    float *sum;     /* [query] */
    float *weights; /* [TRIO][tile] */
};

static struct work cut(const struct kvd_attention *a)
{
    const size_t queries = (size_t)KVD_ATTENTION_ROWS * a->group;
    const size_t tile = (size_t)a->head_dim * a->tile_tokens;
    struct work w = {.a = a, .keys = a->scratch};
    w.values = w.keys + tile;
    w.qs = w.values + tile;
    w.o = w.qs + queries * a->head_dim;
    w.weights = w.o + queries * a->head_dim;
    w.top = w.weights + (size_t)KVD_ATTENTION_TILE * VECTORS;
    w.sum = w.top + queries;
    return w;
}

/* 8 tokens of 8 dims become 8 dims of 8 tokens, in f32. */
static void transpose8(const uint16_t *k, size_t dim, float *out, size_t tile)
{
    __m128i r[8];
    __m128i s[8];
    KVD_UNROLL
    for (size_t i = 0; i < 8; i++) {
        r[i] = _mm_loadu_si128((const __m128i *)(const void *)(k + i * dim));
    }
    KVD_UNROLL
    for (size_t i = 0; i < 4; i++) {
        s[2 * i] = _mm_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
        s[2 * i + 1] = _mm_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
    }
    KVD_UNROLL
    for (size_t i = 0; i < 2; i++) {
        r[4 * i] = _mm_unpacklo_epi32(s[4 * i], s[4 * i + 2]);
        r[4 * i + 1] = _mm_unpackhi_epi32(s[4 * i], s[4 * i + 2]);
        r[4 * i + 2] = _mm_unpacklo_epi32(s[4 * i + 1], s[4 * i + 3]);
        r[4 * i + 3] = _mm_unpackhi_epi32(s[4 * i + 1], s[4 * i + 3]);
    }
    KVD_UNROLL
    for (size_t i = 0; i < 4; i++) {
        const __m128i low = _mm_unpacklo_epi64(r[i], r[i + 4]);
        const __m128i high = _mm_unpackhi_epi64(r[i], r[i + 4]);
        _mm256_store_ps(out + 2 * i * tile, _mm256_cvtph_ps(low));
        _mm256_store_ps(out + (2 * i + 1) * tile, _mm256_cvtph_ps(high));
    }
}

static void load_tile(const struct work *w, uint32_t tile, uint32_t keys)
{
    const struct kvd_attention *a = w->a;
    const uint16_t *k = (const uint16_t *)(const void *)(a->pages[tile] + a->k_offset);
    const uint16_t *v = (const uint16_t *)(const void *)(a->pages[tile] + a->v_offset);
    for (size_t i = 0; i < keys; i += LANES) {
        for (size_t d = 0; d < a->head_dim; d += LANES) {
            transpose8(k + i * a->head_dim + d, a->head_dim, w->keys + d * a->tile_tokens + i,
                       a->tile_tokens);
        }
    }
    for (size_t i = 0; i < (size_t)keys * a->head_dim; i += LANES) {
        const __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(v + i));
        _mm256_store_ps(w->values + i, _mm256_cvtph_ps(h));
    }
}

/* Scores of nq queries against 8 * nv keys. */
KVD_X86_INLINE void score(const float *qs, size_t dim, const float *keys, size_t tile, float *out,
                          int nq, int nv)
{
    __m256 acc[TRIO][VECTORS];
    KVD_UNROLL
    for (int q = 0; q < nq; q++) {
        KVD_UNROLL
        for (int v = 0; v < nv; v++) {
            acc[q][v] = _mm256_setzero_ps();
        }
    }
    for (size_t d = 0; d < dim; d++) {
        __m256 k[VECTORS];
        KVD_UNROLL
        for (int v = 0; v < nv; v++) {
            k[v] = _mm256_load_ps(keys + d * tile + (size_t)v * LANES);
        }
        KVD_UNROLL
        for (int q = 0; q < nq; q++) {
            const __m256 x = _mm256_broadcast_ss(qs + (size_t)q * dim + d);
            KVD_UNROLL
            for (int v = 0; v < nv; v++) {
                acc[q][v] = _mm256_fmadd_ps(x, k[v], acc[q][v]);
            }
        }
    }
    KVD_UNROLL
    for (int q = 0; q < nq; q++) {
        KVD_UNROLL
        for (int v = 0; v < nv; v++) {
            _mm256_store_ps(out + (size_t)q * KVD_ATTENTION_TILE + (size_t)v * LANES, acc[q][v]);
        }
    }
}

static void scores(const struct work *w, uint32_t query, uint32_t nq, uint32_t keys)
{
    const size_t dim = w->a->head_dim;
    const size_t tile = w->a->tile_tokens;
    const float *qs = w->qs + query * dim;
    uint32_t i = 0;
    for (; i + LANES * VECTORS <= keys; i += LANES * VECTORS) {
        if (nq == TRIO) {
            score(qs, dim, w->keys + i, tile, w->weights + i, TRIO, VECTORS);
        } else {
            score(qs, dim, w->keys + i, tile, w->weights + i, 1, VECTORS);
        }
    }
    for (; i < keys; i += LANES) {
        if (nq == TRIO) {
            score(qs, dim, w->keys + i, tile, w->weights + i, TRIO, 1);
        } else {
            score(qs, dim, w->keys + i, tile, w->weights + i, 1, 1);
        }
    }
}

/* All ones in the lanes whose key, first + lane, is below n. */
static inline __m256 below(uint32_t first, uint32_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i left = _mm256_set1_epi32((int32_t)n - (int32_t)first);
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(left, lane));
}

static inline float max_lanes(__m256 v)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

/* Turns the n scores of one query into weights; returns what the query's earlier sums are
 * multiplied by. */
static float softmax(const struct work *w, uint32_t query, float *s, uint32_t tile, uint32_t n)
{
    __m256 tops = _mm256_set1_ps(-INFINITY);
    for (uint32_t i = 0; i < n; i += LANES) {
        const __m256 v =
            _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), _mm256_load_ps(s + i), below(i, n));
        tops = _mm256_max_ps(tops, v);
    }
    const float tile_top = max_lanes(tops);
    const float before = w->top[query];
    const float top = tile == 0 || tile_top > before ? tile_top : before;
    const float c = tile == 0 ? 0.0f : _mm256_cvtss_f32(kvd_x86_exp(_mm256_set1_ps(before - top)));
    __m256 lanes = _mm256_setzero_ps();
    for (uint32_t i = 0; i < n; i += LANES) {
        __m256 v = kvd_x86_exp(_mm256_sub_ps(_mm256_load_ps(s + i), _mm256_set1_ps(top)));
        v = _mm256_and_ps(v, below(i, n));
        _mm256_store_ps(s + i, v);
        lanes = _mm256_add_ps(lanes, v);
    }
    w->top[query] = top;
    w->sum[query] = w->sum[query] * c + kvd_x86_sum_lanes(lanes);
    return c;
}

/* o = o * c + weights * values for nq queries with n keys each, 8 * nv dims. */
KVD_X86_INLINE void gather(const float *weights, const float *c, const float *values, size_t dim,
                           uint32_t n, float *o, int nq, int nv)
{
    __m256 acc[TRIO][VECTORS];
    KVD_UNROLL
    for (int q = 0; q < nq; q++) {
        KVD_UNROLL
        for (int v = 0; v < nv; v++) {
            acc[q][v] = _mm256_mul_ps(_mm256_load_ps(o + (size_t)q * dim + (size_t)v * LANES),
                                      _mm256_set1_ps(c[q]));
        }
    }
    for (size_t i = 0; i < n; i++) {
        __m256 x[VECTORS];
        KVD_UNROLL
        for (int v = 0; v < nv; v++) {
            x[v] = _mm256_load_ps(values + i * dim + (size_t)v * LANES);
        }
        KVD_UNROLL
        for (int q = 0; q < nq; q++) {
            const __m256 p = _mm256_broadcast_ss(weights + (size_t)q * KVD_ATTENTION_TILE + i);
            KVD_UNROLL
            for (int v = 0; v < nv; v++) {
                acc[q][v] = _mm256_fmadd_ps(p, x[v], acc[q][v]);
            }
        }
    }
    KVD_UNROLL
    for (int q = 0; q < nq; q++) {
        KVD_UNROLL
        for (int v = 0; v < nv; v++) {
            _mm256_store_ps(o + (size_t)q * dim + (size_t)v * LANES, acc[q][v]);
        }
    }
}

static void gather_all(const struct work *w, uint32_t query, uint32_t nq, const float *weights,
                       const float *c, uint32_t n)
{
    const size_t dim = w->a->head_dim;
    float *o = w->o + query * dim;
    size_t d = 0;
    for (; d + LANES * VECTORS <= dim; d += LANES * VECTORS) {
        if (nq == TRIO) {
            gather(weights, c, w->values + d, dim, n, o + d, TRIO, VECTORS);
        } else {
            gather(weights, c, w->values + d, dim, n, o + d, 1, VECTORS);
        }
    }
    for (; d < dim; d += LANES) {
        if (nq == TRIO) {
            gather(weights, c, w->values + d, dim, n, o + d, TRIO, 1);
        } else {
            gather(weights, c, w->values + d, dim, n, o + d, 1, 1);
        }
    }
}

/* Keys of a tile that a query may see. */
static uint32_t visible(const struct kvd_attention *a, uint32_t query, uint32_t tile)
{
    const uint32_t keys = a->position + query / a->group + 1;
    const uint32_t first = tile * a->tile_tokens;
    const uint32_t left = keys > first ? keys - first : 0;
    return left < a->tile_tokens ? left : a->tile_tokens;
}

/* One tile for queries [query, query + nq), the first of which sees some of it or none does. */
static void take_tile(const struct work *w, uint32_t query, uint32_t nq, uint32_t tile)
{
    const uint32_t most = visible(w->a, query + nq - 1, tile);
    if (most == 0) {
        return;
    }
    scores(w, query, nq, (most + LANES - 1) / LANES * LANES);
    float c[TRIO];
    bool alike = true;
    for (uint32_t q = 0; q < nq; q++) {
        const uint32_t n = visible(w->a, query + q, tile);
        alike = alike && n == most;
        c[q] =
            n ? softmax(w, query + q, w->weights + (size_t)q * KVD_ATTENTION_TILE, tile, n) : 1.0f;
    }
    if (alike) {
        gather_all(w, query, nq, w->weights, c, most);
        return;
    }
    for (uint32_t q = 0; q < nq; q++) {
        const uint32_t n = visible(w->a, query + q, tile);
        if (n) {
            gather_all(w, query + q, 1, w->weights + (size_t)q * KVD_ATTENTION_TILE, c + q, n);
        }
    }
}

static void begin(const struct work *w, uint32_t query)
{
    const struct kvd_attention *a = w->a;
    const float *q = a->q + query / a->group * a->stride + (size_t)(query % a->group) * a->head_dim;
    for (size_t d = 0; d < a->head_dim; d += LANES) {
        const __m256 x = _mm256_mul_ps(_mm256_loadu_ps(q + d), _mm256_set1_ps(a->scale));
        _mm256_store_ps(w->qs + (size_t)query * a->head_dim + d, x);
        _mm256_store_ps(w->o + (size_t)query * a->head_dim + d, _mm256_setzero_ps());
    }
    w->top[query] = 0.0f;
    w->sum[query] = 0.0f;
}

static void finish(const struct work *w, uint32_t query)
{
    const struct kvd_attention *a = w->a;
    float *out = a->out + query / a->group * a->stride + (size_t)(query % a->group) * a->head_dim;
    for (size_t d = 0; d < a->head_dim; d += LANES) {
        const __m256 o = _mm256_load_ps(w->o + (size_t)query * a->head_dim + d);
        _mm256_storeu_ps(out + d, _mm256_div_ps(o, _mm256_set1_ps(w->sum[query])));
    }
}

void kvd_attention_avx2(const struct kvd_attention *a)
{
    const struct work w = cut(a);
    const uint32_t queries = a->rows * a->group;
    const uint32_t tiles = (a->position + a->rows - 1) / a->tile_tokens + 1;
    for (uint32_t q = 0; q < queries; q++) {
        begin(&w, q);
    }
    for (uint32_t tile = 0; tile < tiles; tile++) {
        const uint32_t most = visible(a, queries - 1, tile);
        load_tile(&w, tile, (most + LANES - 1) / LANES * LANES);
        for (uint32_t q = 0; q < queries;) {
            const uint32_t nq = queries - q >= TRIO ? TRIO : 1;
            take_tile(&w, q, nq, tile);
            q += nq;
        }
    }
    for (uint32_t q = 0; q < queries; q++) {
        finish(&w, q);
    }
}
