/* The reference of matmul.h: one output of one row at a time. */
#include "kernels/matmul.h"

#include <math.h>

#include "kernels/f16.h"
#include "kernels/versions.h"
#include "proto/base/bytes.h"

/* Lane o of the nth vector of 8 in a block's head. */
static uint16_t head_at(const uint8_t *head, uint32_t nth, uint32_t o)
{
    return kvd_get_le16(head + ((size_t)nth * KVD_PANEL_ROWS + o) * 2);
}

/* Place of column c of output o in a block's quants; for Q4_1 of the byte of columns c and
 * 16 + c. */
static uint32_t column_at(uint32_t c, uint32_t o)
{
    return c / 4 * (KVD_PANEL_ROWS * 4) + o * 4 + c % 4;
}

static float block_term(const struct kvd_qrows *x, uint32_t b, int32_t isum, uint16_t wsum)
{
    const float t = x->offset[b] * (float)(int16_t)wsum;
    return fmaf(x->scale[b], (float)isum, t);
}

/* Output o of a panel for row 0 of x. */
static float output_q4_1(const struct kvd_matrix *w, const uint8_t *panel, uint32_t o,
                         const struct kvd_qrows *x)
{
    float acc = 0.0f;
    for (uint32_t b = 0; b < w->cols / KVD_QUANT_COLS; b++) {
        const uint8_t *head = panel + (size_t)b * KVD_Q4_1_HEAD;
        const uint8_t *quants = panel + w->head_bytes + (size_t)b * KVD_Q4_1_QUANTS;
        const int8_t *q = x->q + (size_t)b * KVD_QUANT_COLS;
        int32_t isum = 0;
        for (uint32_t c = 0; c < 16; c++) {
            const uint8_t byte = quants[column_at(c, o)];
            isum += (byte & 15) * q[c] + (byte >> 4) * q[16 + c];
        }
        acc = fmaf(kvd_f16_to_f32(head_at(head, 1, o)), x->sum[b], acc);
        acc = fmaf(kvd_f16_to_f32(head_at(head, 0, o)), block_term(x, b, isum, head_at(head, 2, o)),
                   acc);
    }
    return acc;
}

static float output_q8_0(const struct kvd_matrix *w, const uint8_t *panel, uint32_t o,
                         const struct kvd_qrows *x)
{
    float acc = 0.0f;
    for (uint32_t b = 0; b < w->cols / KVD_QUANT_COLS; b++) {
        const uint8_t *head = panel + (size_t)b * KVD_Q8_0_HEAD;
        const uint8_t *quants = panel + w->head_bytes + (size_t)b * KVD_Q8_0_QUANTS;
        const int8_t *q = x->q + (size_t)b * KVD_QUANT_COLS;
        int32_t isum = 0;
        for (uint32_t c = 0; c < KVD_QUANT_COLS; c++) {
            isum += (int8_t)quants[column_at(c, o)] * q[c];
        }
        acc = fmaf(kvd_f16_to_f32(head_at(head, 0, o)), block_term(x, b, isum, head_at(head, 1, o)),
                   acc);
    }
    return acc;
}

static uint32_t panel_outputs(const struct kvd_matrix *w, uint32_t panel)
{
    const uint32_t left = w->rows - panel * KVD_PANEL_ROWS;
    return left < KVD_PANEL_ROWS ? left : KVD_PANEL_ROWS;
}

typedef float output_fn(const struct kvd_matrix *w, const uint8_t *panel, uint32_t o,
                        const struct kvd_qrows *x);

static void matmul(const struct kvd_matrix *w, uint32_t first, uint32_t end,
                   const struct kvd_qrows *x, uint32_t n, float *out, size_t stride,
                   output_fn *output)
{
    for (uint32_t r = 0; r < n; r++) {
        const struct kvd_qrows row = kvd_qrows_from(x, r);
        for (uint32_t p = first; p < end; p++) {
            for (uint32_t o = 0; o < panel_outputs(w, p); o++) {
                out[r * stride + (size_t)p * KVD_PANEL_ROWS + o] =
                    output(w, w->packed + p * w->panel_bytes, o, &row);
            }
        }
    }
}

void kvd_matmul_q4_1_ref(const struct kvd_matrix *w, uint32_t first, uint32_t end,
                         const struct kvd_qrows *x, uint32_t n, float *out, size_t stride)
{
    matmul(w, first, end, x, n, out, stride, output_q4_1);
}

void kvd_matmul_q8_0_ref(const struct kvd_matrix *w, uint32_t first, uint32_t end,
                         const struct kvd_qrows *x, uint32_t n, float *out, size_t stride)
{
    matmul(w, first, end, x, n, out, stride, output_q8_0);
}
