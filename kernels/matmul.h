/*
 * Rows of quantised activations times a quantised matrix. One output o of one row r is
 *
 *     acc = 0
 *     for each block b of 32 columns, ascending:
 *         t   = offset[r][b] * (float)wsum                  wsum = sum of q_w over the block
 *         t   = fma(scale[r][b], (float)isum, t)            isum = sum of q_w * q_x
 *         Q4_1: acc = fma(m[o][b], sum[r][b], acc)
 *         acc = fma(d[o][b], t, acc)
 *
 * with isum and wsum exact, so it depends on its row and its weights alone: not on how many rows or
 * outputs are computed together, nor by whom. 8 outputs lie side by side in lanes, which is why the
 * matrix is repacked.
 *
 * Packed layout: panels of 8 outputs (the last one padded with zeros), one after the other; within
 * a panel, first heads and then quants, by block of 32 columns. o counts the outputs, g groups of 4
 * columns:
 *     Q4_1: head 48 B: d[o] f16, m[o] f16, wsum[o] int16;
 *           quants 128 B: for g = 0..3 and each o, 4 bytes whose low nibbles are columns 4g.. and
 *           whose high nibbles are columns 16 + 4g..
 *     Q8_0: head 32 B: d[o] f16, wsum[o] int16;
 *           quants 256 B: for g = 0..7 and each o, the 4 bytes of columns 4g..
 * The heads of a panel are padded to a multiple of 32 B.
 */
#ifndef KERNELS_MATMUL_H
#define KERNELS_MATMUL_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/quantise.h"

enum { KVD_PANEL_ROWS = 8 };

enum kvd_weight_type { KVD_WEIGHT_Q4_1, KVD_WEIGHT_Q8_0, KVD_WEIGHT_TYPES };

enum {
    KVD_Q4_1_BYTES = 20, /* of a block in a GGUF file: f16 d, f16 m, 16 bytes */
    KVD_Q8_0_BYTES = 34, /* f16 d, 32 int8 */
    KVD_Q4_1_HEAD = 48,  /* of a panel's block, as above */
    KVD_Q8_0_HEAD = 32,
    KVD_Q4_1_QUANTS = 128,
    KVD_Q8_0_QUANTS = 256
};

struct kvd_matrix {
    enum kvd_weight_type type;
    uint32_t rows;      /* outputs */
    uint32_t cols;      /* a multiple of 32 */
    uint32_t panels;    /* rows / 8, rounded up */
    size_t head_bytes;  /* of a panel's heads; a multiple of 32 */
    size_t panel_bytes; /* a multiple of 32 */
    uint8_t *packed;    /* panels * panel_bytes, aligned to 64; owned by whoever allocated it */
};

/* Fills everything but `packed`. */
void kvd_matrix_init(struct kvd_matrix *matrix, enum kvd_weight_type type, uint32_t rows,
                     uint32_t cols);
size_t kvd_matrix_bytes(const struct kvd_matrix *matrix);
/* Packs from a file's rows of blocks (rows * cols / 32 blocks, any alignment, any bytes) into
 * `packed`. */
void kvd_matrix_pack(struct kvd_matrix *matrix, const void *blocks);

/* out[r * stride + o] for rows r of [0, n) and the outputs o of panels [first, end). x.cols is
 * w.cols. */
typedef void kvd_matmul_fn(const struct kvd_matrix *w, uint32_t first, uint32_t end,
                           const struct kvd_qrows *x, uint32_t n, float *out, size_t stride);

#endif
