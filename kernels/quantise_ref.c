/* The reference of quantise.h. */
#include "kernels/quantise.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/f16.h"
#include "kernels/versions.h"

/* False: some x is not finite. */
static bool find_range(const float *x, float *ret_low, float *ret_high)
{
    float low = x[0];
    float high = x[0];
    bool finite = true;
    for (uint32_t i = 0; i < KVD_QUANT_COLS; i++) {
        finite = finite && (kvd_f32_bits(x[i]) & 0x7f800000u) != 0x7f800000u;
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    *ret_low = low;
    *ret_high = high;
    return finite;
}

static void quantise_block(const float *x, const struct kvd_qrows *to, uint32_t b)
{
    int8_t *q = to->q + (size_t)b * KVD_QUANT_COLS;
    float low;
    float high;
    if (!find_range(x, &low, &high)) {
        memset(q, 0, KVD_QUANT_COLS);
        to->scale[b] = to->offset[b] = to->sum[b] = kvd_f32_of_bits(0x7fc00000u);
        return;
    }
    const float span = high * 0.5f - low * 0.5f;
    const float offset = high * 0.5f + low * 0.5f + 0.0f;
    const bool flat = span < KVD_QUANT_TINY;
    const float scale = flat ? 0.0f : span / 127.0f;
    const float inv = flat ? 0.0f : 127.0f / span;
    int32_t total = 0;
    for (uint32_t i = 0; i < KVD_QUANT_COLS; i++) {
        const float magic = 12582912.0f; /* 1.5 * 2^23: the addition rounds to an integer */
        /* Cut: where the offset is far larger than the span, its rounding shows. */
        const float steps = fminf(fmaxf((x[i] - offset) * inv, -127.0f), 127.0f);
        const float rounded = (steps + magic) - magic;
        q[i] = (int8_t)rounded;
        total += q[i];
    }
    to->scale[b] = scale;
    to->offset[b] = offset;
    to->sum[b] = scale * (float)total + (float)KVD_QUANT_COLS * offset;
}

void kvd_quantise_ref(const float *x, const struct kvd_qrows *to)
{
    for (uint32_t b = 0; b < to->cols / KVD_QUANT_COLS; b++) {
        quantise_block(x + (size_t)b * KVD_QUANT_COLS, to, b);
    }
}
