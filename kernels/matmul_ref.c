/* The reference of matmul.h: one output of one row at a time. */
#include "kernels/matmul.h"

#include <math.h>

#include "kernels/f16.h"
#include "kernels/versions.h"
#include "proto/base/bytes.h"

static float f16_at(const uint8_t *halves, uint32_t nth)
{
    return kvd_f16_to_f32(kvd_get_le16(halves + (size_t)nth * 2));
}

/* Column c of output o in the 256 bytes of a Q8_0 block; also, for c < 16, the byte of Q4_1. */
static uint32_t group_at(uint32_t c, uint32_t o)
{
    return c / 4 * (KVD_PANEL_ROWS * 4) + o * 4 + c % 4;
}

static float output_q4_1(const uint8_t *panel, uint32_t o, const int8_t *q, const float *scale,
                         const float *sum, uint32_t blocks)
{
    float acc = 0.0f;
    for (uint32_t b = 0; b < blocks; b++) {
        const uint8_t *block = panel + (size_t)b * KVD_Q4_1_PANEL_BYTES;
        const uint8_t *nibbles = block + (size_t)KVD_PANEL_ROWS * 4;
        int32_t isum = 0;
        for (uint32_t c = 0; c < 16; c++) {
            const uint8_t byte = nibbles[group_at(c, o)];
            isum += (byte & 15) * q[b * KVD_QUANT_COLS + c];
            isum += (byte >> 4) * q[b * KVD_QUANT_COLS + 16 + c];
        }
        acc = fmaf(f16_at(block, KVD_PANEL_ROWS + o), sum[b], acc);
        acc = fmaf(f16_at(block, o), scale[b] * (float)isum, acc);
    }
    return acc;
}

static float output_q8_0(const struct kvd_matrix *w, const uint8_t *panel, uint32_t o,
                         const int8_t *q, const float *scale)
{
    const uint32_t blocks = w->cols / KVD_QUANT_COLS;
    const uint8_t *quants = panel + w->panel_bytes - (size_t)blocks * KVD_Q8_0_PANEL_BYTES;
    float acc = 0.0f;
    for (uint32_t b = 0; b < blocks; b++) {
        const int8_t *block = (const int8_t *)quants + (size_t)b * KVD_Q8_0_PANEL_BYTES;
        int32_t isum = 0;
        for (uint32_t c = 0; c < KVD_QUANT_COLS; c++) {
            isum += block[group_at(c, o)] * q[b * KVD_QUANT_COLS + c];
        }
        acc = fmaf(f16_at(panel, b * KVD_PANEL_ROWS + o), scale[b] * (float)isum, acc);
    }
    return acc;
}

static uint32_t panel_outputs(const struct kvd_matrix *w, uint32_t panel)
{
    const uint32_t left = w->rows - panel * KVD_PANEL_ROWS;
    return left < KVD_PANEL_ROWS ? left : KVD_PANEL_ROWS;
}

void kvd_matmul_q4_1_ref(const struct kvd_matrix *w, uint32_t first, uint32_t end,
                         const struct kvd_qrows *x, uint32_t n, float *out, size_t stride)
{
    const uint32_t blocks = w->cols / KVD_QUANT_COLS;
    for (uint32_t p = first; p < end; p++) {
        const uint8_t *panel = w->packed + p * w->panel_bytes;
        for (uint32_t r = 0; r < n; r++) {
            for (uint32_t o = 0; o < panel_outputs(w, p); o++) {
                out[r * stride + p * KVD_PANEL_ROWS + o] =
                    output_q4_1(panel, o, x->q + (size_t)r * x->cols, x->scale + (size_t)r * blocks,
                                x->sum + (size_t)r * blocks, blocks);
            }
        }
    }
}

void kvd_matmul_q8_0_ref(const struct kvd_matrix *w, uint32_t first, uint32_t end,
                         const struct kvd_qrows *x, uint32_t n, float *out, size_t stride)
{
    const uint32_t blocks = w->cols / KVD_QUANT_COLS;
    for (uint32_t p = first; p < end; p++) {
        const uint8_t *panel = w->packed + p * w->panel_bytes;
        for (uint32_t r = 0; r < n; r++) {
            for (uint32_t o = 0; o < panel_outputs(w, p); o++) {
                out[r * stride + p * KVD_PANEL_ROWS + o] = output_q8_0(
                    w, panel, o, x->q + (size_t)r * x->cols, x->scale + (size_t)r * blocks);
            }
        }
    }
}
