/*
 * Rotary positions on pairs (2i, 2i + 1), as GGUF's `llama` architecture stores its heads:
 *
 *     out[2i]     = x[2i] * cos - x[2i + 1] * sin
 *     out[2i + 1] = x[2i + 1] * cos + x[2i] * sin        (each product and sum rounded)
 *
 * The angles' sines and cosines come from kvd_rope_row, in double arithmetic of our own, rounded
 * once to f32.
 */
#ifndef KERNELS_ROPE_H
#define KERNELS_ROPE_H

#include <stdint.h>

enum { KVD_ROPE_POSITION_MAX = 1 << 20 }; /* the argument reduction is exact up to here */

/* freq[i] = base^(-2i / dim) for i of [0, dim / 2). base > 0. */
void kvd_rope_freq(double base, uint32_t dim, double *freq);
/* table[2i] = cos(position * freq[i]), table[2i + 1] = sin(…); dim floats. position is below
 * KVD_ROPE_POSITION_MAX, freq at most 1. */
void kvd_rope_row(const double *freq, uint32_t dim, uint32_t position, float *table);

/* Rotates `heads` heads of dim floats, one after the other, in place. dim: a multiple of 8. */
typedef void kvd_rope_fn(float *x, uint32_t heads, uint32_t dim, const float *table);

#endif
