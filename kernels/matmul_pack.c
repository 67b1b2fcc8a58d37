/* Repacking of a file's weight blocks into the panels that matmul.h defines. */
#include <stdbool.h>
#include <string.h>

#include "kernels/matmul.h"

enum { D_BYTES = 2, GROUP_BYTES = 4, GROUP_ROW = KVD_PANEL_ROWS * GROUP_BYTES };

static size_t q8_0_scales_bytes(uint32_t blocks)
{
    return ((size_t)blocks * KVD_PANEL_ROWS * D_BYTES + 31) & ~(size_t)31;
}

void kvd_matrix_init(struct kvd_matrix *matrix, enum kvd_weight_type type, uint32_t rows,
                     uint32_t cols)
{
    const uint32_t blocks = cols / KVD_QUANT_COLS;
    matrix->type = type;
    matrix->rows = rows;
    matrix->cols = cols;
    matrix->panels = rows / KVD_PANEL_ROWS + (rows % KVD_PANEL_ROWS != 0);
    matrix->panel_bytes = type == KVD_WEIGHT_Q4_1
                              ? (size_t)blocks * KVD_Q4_1_PANEL_BYTES
                              : q8_0_scales_bytes(blocks) + (size_t)blocks * KVD_Q8_0_PANEL_BYTES;
    matrix->packed = NULL;
}

size_t kvd_matrix_bytes(const struct kvd_matrix *matrix)
{
    return matrix->panels * matrix->panel_bytes;
}

/* Puts output o's n groups of 4 columns, which lie together in the file, where the panel wants
 * them. */
static void spread_groups(uint8_t *panel, uint32_t o, const uint8_t *bytes, uint32_t n)
{
    for (uint32_t g = 0; g < n; g++) {
        memcpy(panel + (size_t)g * GROUP_ROW + (size_t)o * GROUP_BYTES,
               bytes + (size_t)g * GROUP_BYTES, GROUP_BYTES);
    }
}

static void pack_q4_1(uint8_t *panel, uint32_t o, const uint8_t *row, uint32_t blocks)
{
    for (uint32_t b = 0; b < blocks; b++) {
        uint8_t *to = panel + (size_t)b * KVD_Q4_1_PANEL_BYTES;
        const uint8_t *from = row + (size_t)b * KVD_Q4_1_BYTES;
        memcpy(to + (size_t)o * D_BYTES, from, D_BYTES);
        memcpy(to + (size_t)(KVD_PANEL_ROWS + o) * D_BYTES, from + D_BYTES, D_BYTES);
        /* A file's byte i holds columns i and 16 + i, which is what the panel's byte holds too. */
        spread_groups(to + (size_t)2 * KVD_PANEL_ROWS * D_BYTES, o, from + (size_t)2 * D_BYTES, 4);
    }
}

static void pack_q8_0(uint8_t *panel, uint32_t o, const uint8_t *row, uint32_t blocks)
{
    uint8_t *quants = panel + q8_0_scales_bytes(blocks);
    for (uint32_t b = 0; b < blocks; b++) {
        const uint8_t *from = row + (size_t)b * KVD_Q8_0_BYTES;
        memcpy(panel + ((size_t)b * KVD_PANEL_ROWS + o) * D_BYTES, from, D_BYTES);
        spread_groups(quants + (size_t)b * KVD_Q8_0_PANEL_BYTES, o, from + D_BYTES, 8);
    }
}

void kvd_matrix_pack(struct kvd_matrix *matrix, const void *blocks)
{
    const uint32_t n = matrix->cols / KVD_QUANT_COLS;
    const bool q4 = matrix->type == KVD_WEIGHT_Q4_1;
    const size_t row_bytes = (size_t)n * (q4 ? KVD_Q4_1_BYTES : KVD_Q8_0_BYTES);
    memset(matrix->packed, 0, kvd_matrix_bytes(matrix));
    for (uint32_t r = 0; r < matrix->rows; r++) {
        uint8_t *panel = matrix->packed + r / KVD_PANEL_ROWS * matrix->panel_bytes;
        const uint8_t *row = (const uint8_t *)blocks + r * row_bytes;
        if (q4) {
            pack_q4_1(panel, r % KVD_PANEL_ROWS, row, n);
        } else {
            pack_q8_0(panel, r % KVD_PANEL_ROWS, row, n);
        }
    }
}
