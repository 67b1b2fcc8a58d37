/*
 * Root mean square norm of one row:
 *
 *     lane[j]  += x[i] * x[i] for i mod 8 = j, ascending, one fma each
 *     ss        = ((lane0 + lane4) + (lane2 + lane6)) + ((lane1 + lane5) + (lane3 + lane7))
 *     k         = 1 / sqrt(ss / n + eps)
 *     out[i]    = (x[i] * k) * weight[i]
 *
 * Square root and division are exactly rounded everywhere.
 */
#ifndef KERNELS_NORM_H
#define KERNELS_NORM_H

#include <stdint.h>

/* n: a multiple of 8. out may be x. */
typedef void kvd_rmsnorm_fn(const float *x, const float *weight, uint32_t n, float eps, float *out);

#endif
