/* The reference of quantise.h. */
#include "kernels/quantise.h"

#include <string.h>

#include "kernels/f16.h"
#include "kernels/versions.h"

static void quantise_block(const float *x, int8_t *q, float *scale, float *sum)
{
    uint32_t top = 0;
    for (uint32_t i = 0; i < KVD_QUANT_COLS; i++) {
        const uint32_t abs = kvd_f32_bits(x[i]) & 0x7fffffffu;
        top = abs > top ? abs : top;
    }
    const float amax = kvd_f32_of_bits(top);
    if (top >= 0x7f800000u || amax < KVD_QUANT_TINY) {
        memset(q, 0, KVD_QUANT_COLS);
        *scale = top >= 0x7f800000u ? kvd_f32_of_bits(0x7fc00000u) : 0.0f;
        *sum = *scale;
        return;
    }
    const float inv = 127.0f / amax;
    int32_t total = 0;
    for (uint32_t i = 0; i < KVD_QUANT_COLS; i++) {
        const float magic = 12582912.0f; /* 1.5 * 2^23: the addition rounds to an integer */
        const float rounded = (x[i] * inv + magic) - magic;
        q[i] = (int8_t)rounded;
        total += q[i];
    }
    *scale = amax / 127.0f;
    *sum = *scale * (float)total;
}

void kvd_quantise_ref(const float *x, uint32_t n, int8_t *q, float *scale, float *sum)
{
    for (uint32_t b = 0; b < n / KVD_QUANT_COLS; b++) {
        quantise_block(x + b * KVD_QUANT_COLS, q + b * KVD_QUANT_COLS, scale + b, sum + b);
    }
}
