/*
 * Row by row, element by element:
 *     silu_mul: gate[i] = (gate[i] / (1 + exp(-gate[i]))) * up[i]     exp as in kernels/exp.h
 *     add:      x[i] = x[i] + y[i]
 */
#ifndef KERNELS_ELEMENTWISE_H
#define KERNELS_ELEMENTWISE_H

#include <stdint.h>

/* n: a multiple of 8. */
typedef void kvd_silu_mul_fn(float *gate, const float *up, uint32_t n);
typedef void kvd_add_fn(float *x, const float *y, uint32_t n);

#endif
