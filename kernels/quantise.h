/*
 * Activations to int8, per 32 columns: the first step of the numerics family. For one block x[32]:
 *
 *     amax  = max |x|, compared as integers (so a NaN or infinity wins)
 *     amax < 1e-30:        scale = 0, q = 0
 *     amax not finite:     scale = NaN, q = 0 (what follows is NaN, and the graph refuses it)
 *     inv   = 127 / amax, scale = amax / 127
 *     q[i]  = x[i] * inv, rounded to nearest even, within -127..127
 *     sum   = scale * (float)(q[0] + … + q[31])
 *
 * sum is what a weight block's offset is multiplied by.
 */
#ifndef KERNELS_QUANTISE_H
#define KERNELS_QUANTISE_H

#include <stdint.h>

enum { KVD_QUANT_COLS = 32 };

#define KVD_QUANT_TINY 1e-30f

/* n: a multiple of 32. q: n bytes; scale, sum: n / 32 floats. Any alignment. */
typedef void kvd_quantise_fn(const float *x, uint32_t n, int8_t *q, float *scale, float *sum);

#endif
