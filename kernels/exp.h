/*
 * e to the x in f32, of our own, so that no result of a C library reaches a stored byte. The steps
 * below are the definition; each version does the same with the same roundings:
 *
 *     x < -87 (or NaN)    0
 *     x = min(x, 88)
 *     t = x * log2(e) + 1.5 * 2^23, n = t - 1.5 * 2^23        (two roundings; n is an integer)
 *     r = fma(n, -ln2_high, x), r = fma(n, -ln2_low, r)
 *     p = Taylor's polynomial of degree 7 by Horner, every step one fma
 *     n is added to the exponent of p
 *
 * Relative error below 2e-7 over the whole range.
 */
#ifndef KERNELS_EXP_H
#define KERNELS_EXP_H

#include <math.h>

#include "kernels/f16.h"

#define KVD_EXP_MIN (-87.0f)
#define KVD_EXP_MAX 88.0f
#define KVD_EXP_LOG2E 0x1.715476p+0f
#define KVD_EXP_ROUND 12582912.0f /* 1.5 * 2^23: adding it leaves an integer in the low bits */
#define KVD_EXP_LN2_HIGH 0x1.62ep-1f
#define KVD_EXP_LN2_LOW 0x1.0bfbe8p-15f
#define KVD_EXP_C7 (1.0f / 5040.0f)
#define KVD_EXP_C6 (1.0f / 720.0f)
#define KVD_EXP_C5 (1.0f / 120.0f)
#define KVD_EXP_C4 (1.0f / 24.0f)
#define KVD_EXP_C3 (1.0f / 6.0f)
#define KVD_EXP_C2 0.5f

static inline float kvd_expf(float x)
{
    if (!(x >= KVD_EXP_MIN)) {
        return 0.0f;
    }
    x = x < KVD_EXP_MAX ? x : KVD_EXP_MAX;
    const float t = x * KVD_EXP_LOG2E + KVD_EXP_ROUND;
    const float n = t - KVD_EXP_ROUND;
    float r = fmaf(n, -KVD_EXP_LN2_HIGH, x);
    r = fmaf(n, -KVD_EXP_LN2_LOW, r);
    float p = fmaf(KVD_EXP_C7, r, KVD_EXP_C6);
    p = fmaf(p, r, KVD_EXP_C5);
    p = fmaf(p, r, KVD_EXP_C4);
    p = fmaf(p, r, KVD_EXP_C3);
    p = fmaf(p, r, KVD_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    return kvd_f32_of_bits(kvd_f32_bits(p) + (kvd_f32_bits(t) << 23));
}

#endif
