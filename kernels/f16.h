/*
 * IEEE half precision in software, bit for bit what F16C does: to f32 exact, from f32 rounded to
 * nearest even, overflow to infinity, denormals kept, NaN quiet. The kernel `to_f16` converts a
 * row.
 */
#ifndef KERNELS_F16_H
#define KERNELS_F16_H

#include <stdint.h>
#include <string.h>

static inline float kvd_f32_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

static inline uint32_t kvd_f32_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    return bits;
}

static inline float kvd_f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t exponent = (h >> 10) & 0x1fu;
    const uint32_t fraction = h & 0x3ffu;
    if (exponent == 0) {
        const float f = (float)fraction * 0x1p-24f; /* exact */
        return kvd_f32_of_bits(kvd_f32_bits(f) | sign);
    }
    if (exponent == 31) {
        const uint32_t quiet = fraction ? 0x400000u : 0;
        return kvd_f32_of_bits(sign | 0x7f800000u | fraction << 13 | quiet);
    }
    return kvd_f32_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

static inline uint16_t kvd_f32_to_f16(float f)
{
    const uint32_t bits = kvd_f32_bits(f);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t abs = bits & 0x7fffffffu;
    if (abs > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | (abs >> 13 & 0x3ffu));
    }
    if (abs >= 0x477ff000u) { /* 65520: the first that rounds to infinity */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (abs < 0x38800000u) {
        /* Below 2^-14 the result is a multiple of 2^-24: adding 0.5, whose last bit is worth
         * 2^-24, makes the addition do the rounding. */
        const float sum = kvd_f32_of_bits(abs) + 0.5f;
        return (uint16_t)(sign | (kvd_f32_bits(sum) - 0x3f000000u));
    }
    const uint32_t rounded = abs + 0xfffu + (abs >> 13 & 1u);
    return (uint16_t)(sign | ((rounded >> 13) - (112u << 10)));
}

/* Converts n floats. Any n, any alignment. */
typedef void kvd_to_f16_fn(const float *x, uint32_t n, uint16_t *out);

#endif
