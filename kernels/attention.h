/*
 * Causal attention of some rows of a chunk, for one KV head and the query heads that share it, over
 * f16 keys and values in pages. One page is one tile, by absolute position, so the order of every
 * sum depends on the row's position alone. For one query of a row at position p, with T tokens a
 * page:
 *
 *     qs[d]    = q[d] * scale
 *     for tile t = 0 .. p / T, with n = min(T, p + 1 - t * T) keys:
 *         s[i] = sum over d ascending of qs[d] * k[i][d], one fma each, from 0
 *         top  = t = 0 ? max s[i] : max(top of before, max s[i])
 *         c    = t = 0 ? 0 : exp(top of before - top)
 *         w[i] = exp(s[i] - top)
 *         lane[j] = w[j] + w[j + 8] + …, ascending, from 0;
 *         tile's sum = ((lane0 + lane4) + (lane2 + lane6)) + ((lane1 + lane5) + (lane3 + lane7))
 *         sum  = sum * c + tile's sum                       (two roundings)
 *         o[d] = o[d] * c, then for i ascending: o[d] = fma(w[i], v[i][d], o[d])
 *     out[d]   = o[d] / sum
 *
 * exp is kernels/exp.h's. What lies in a page behind the row's position is read but has no effect,
 * whatever it is.
 */
#ifndef KERNELS_ATTENTION_H
#define KERNELS_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

enum {
    KVD_ATTENTION_ROWS = 16,  /* rows of one call, at most */
    KVD_ATTENTION_GROUP = 16, /* query heads that share a KV head, at most */
    KVD_ATTENTION_TILE = 64,  /* tokens a page, at most; a multiple of 8 */
    KVD_ATTENTION_HEAD = 256, /* head size, at most; a multiple of 8 */
};

struct kvd_attention {
    uint32_t head_dim;
    uint32_t tile_tokens;
    uint32_t group; /* query heads */
    uint32_t rows;
    uint32_t position; /* of the first row; the others follow */
    float scale;
    const float *q;              /* [row * stride][group][head_dim] */
    float *out;                  /* the same shape */
    size_t stride;               /* floats from one row to the next, of both */
    const uint8_t *const *pages; /* by absolute tile */
    size_t k_offset; /* bytes from a page's start to this head's keys [token][dim] f16 */
    size_t v_offset;
    float *scratch; /* kvd_attention_scratch floats, aligned to 32; one thread's */
};

/* Floats of scratch for calls of these sizes. */
size_t kvd_attention_scratch(uint32_t head_dim, uint32_t tile_tokens, uint32_t group);

typedef void kvd_attention_fn(const struct kvd_attention *a);

#endif
