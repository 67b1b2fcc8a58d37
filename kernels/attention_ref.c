/* The reference of attention.h: one query at a time, no scratch. */
#include "kernels/attention.h"

#include <math.h>

#include "kernels/exp.h"
#include "kernels/versions.h"

struct query {
    float qs[KVD_ATTENTION_HEAD];
    float o[KVD_ATTENTION_HEAD];
    float top;
    float sum;
};

size_t kvd_attention_scratch(uint32_t head_dim, uint32_t tile_tokens, uint32_t group)
{
    const size_t queries = (size_t)KVD_ATTENTION_ROWS * group;
    return 2 * (size_t)head_dim * tile_tokens /* keys, transposed, and values in f32 */
           + queries * 2 * (size_t)head_dim   /* scaled queries and outputs */
           + queries * 8                      /* top, sum */
           + 4 * (size_t)KVD_ATTENTION_TILE;  /* weights of a few queries */
}

/* Scores of n keys into w; the largest is returned. */
static float scores(const struct kvd_attention *a, const struct query *s, const uint16_t *k,
                    uint32_t n, float *w)
{
    float top = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        float acc = 0.0f;
        for (uint32_t d = 0; d < a->head_dim; d++) {
            acc = fmaf(s->qs[d], kvd_f16_to_f32(k[(size_t)i * a->head_dim + d]), acc);
        }
        w[i] = acc;
        top = acc > top ? acc : top;
    }
    return top;
}

static float weights(float *w, uint32_t n, float top)
{
    float lane[8] = {0};
    for (uint32_t i = 0; i < n; i++) {
        w[i] = kvd_expf(w[i] - top);
        lane[i % 8] += w[i];
    }
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static void take_tile(const struct kvd_attention *a, struct query *s, uint32_t tile, uint32_t n)
{
    const uint16_t *k = (const uint16_t *)(const void *)(a->pages[tile] + a->k_offset);
    const uint16_t *v = (const uint16_t *)(const void *)(a->pages[tile] + a->v_offset);
    float w[KVD_ATTENTION_TILE];
    const float tile_top = scores(a, s, k, n, w);
    const float top = tile == 0 || tile_top > s->top ? tile_top : s->top;
    const float c = tile == 0 ? 0.0f : kvd_expf(s->top - top);
    s->sum = s->sum * c + weights(w, n, top);
    s->top = top;
    for (uint32_t d = 0; d < a->head_dim; d++) {
        s->o[d] = s->o[d] * c;
        for (uint32_t i = 0; i < n; i++) {
            s->o[d] = fmaf(w[i], kvd_f16_to_f32(v[(size_t)i * a->head_dim + d]), s->o[d]);
        }
    }
}

void kvd_attention_ref(const struct kvd_attention *a)
{
    for (uint32_t r = 0; r < a->rows; r++) {
        for (uint32_t g = 0; g < a->group; g++) {
            const size_t at = r * a->stride + (size_t)g * a->head_dim;
            const uint32_t keys = a->position + r + 1;
            struct query s = {.top = 0.0f};
            for (uint32_t d = 0; d < a->head_dim; d++) {
                s.qs[d] = a->q[at + d] * a->scale;
            }
            for (uint32_t first = 0; first < keys; first += a->tile_tokens) {
                const uint32_t left = keys - first;
                take_tile(a, &s, first / a->tile_tokens,
                          left < a->tile_tokens ? left : a->tile_tokens);
            }
            for (uint32_t d = 0; d < a->head_dim; d++) {
                a->out[at + d] = s.o[d] / s.sum;
            }
        }
    }
}
