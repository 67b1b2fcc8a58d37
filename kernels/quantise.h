/*
 * Activations to int8, per 32 columns: the first step of the numerics family. A block has a scale
 * and an offset, x is about scale * q + offset: the offset matters where one large value lies among
 * small ones, which is what language models have (it halves the divergence of their
 * distributions). For one block x[32]:
 *
 *     any x not finite:    scale = offset = sum = NaN, q = 0 (what follows is NaN; the graph
 *                          refuses it)
 *     low, high            smallest and largest x
 *     span   = high * 0.5 - low * 0.5
 *     offset = high * 0.5 + low * 0.5 + 0                (so that a zero is positive)
 *     span < 1e-30:        scale = 0, q = 0
 *     else                 scale = span / 127, inv = 127 / span
 *     q[i]   = (x[i] - offset) * inv, cut to -127..127, rounded to nearest even
 *     sum    = scale * (float)(q[0] + … + q[31]) + 32 * offset    (each rounded)
 *
 * sum is the block's sum of scale * q + offset, which a weight block's own offset is multiplied by.
 */
#ifndef KERNELS_QUANTISE_H
#define KERNELS_QUANTISE_H

#include <stdint.h>

enum { KVD_QUANT_COLS = 32 };

#define KVD_QUANT_TINY 1e-30f

/* Rows of quantised activations, one after the other. */
struct kvd_qrows {
    int8_t *q;     /* [row][cols] */
    float *scale;  /* [row][cols / 32] */
    float *offset; /* the same */
    float *sum;    /* the same */
    uint32_t cols;
};

/* Quantises one row of x, cols floats, into row 0 of `to`. cols: a multiple of 32. Any
 * alignment. */
typedef void kvd_quantise_fn(const float *x, const struct kvd_qrows *to);

/* Row `row` and those behind it. */
static inline struct kvd_qrows kvd_qrows_from(const struct kvd_qrows *all, uint32_t row)
{
    const uint64_t block = (uint64_t)row * (all->cols / KVD_QUANT_COLS);
    return (struct kvd_qrows){.q = all->q + (uint64_t)row * all->cols,
                              .scale = all->scale + block,
                              .offset = all->offset + block,
                              .sum = all->sum + block,
                              .cols = all->cols};
}

#endif
