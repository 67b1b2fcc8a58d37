/* Repacking of a file's weight blocks into the panels that matmul.h defines. */
#include <string.h>

#include "kernels/matmul.h"
#include "proto/base/bytes.h"

enum { LANE_BYTES = 2, GROUP_BYTES = 4, GROUP_ROW = KVD_PANEL_ROWS * GROUP_BYTES, PAD = 32 };

/* What differs between the types: sizes in the file and in a panel. */
struct layout {
    uint32_t file_bytes;  /* of a block */
    uint32_t file_scales; /* f16 numbers before a block's quants */
    uint32_t head;
    uint32_t quants;
};

static struct layout layout_of(enum kvd_weight_type type)
{
    if (type == KVD_WEIGHT_Q4_1) {
        return (struct layout){KVD_Q4_1_BYTES, 2, KVD_Q4_1_HEAD, KVD_Q4_1_QUANTS};
    }
    return (struct layout){KVD_Q8_0_BYTES, 1, KVD_Q8_0_HEAD, KVD_Q8_0_QUANTS};
}

void kvd_matrix_init(struct kvd_matrix *matrix, enum kvd_weight_type type, uint32_t rows,
                     uint32_t cols)
{
    const struct layout l = layout_of(type);
    const size_t blocks = cols / KVD_QUANT_COLS;
    matrix->type = type;
    matrix->rows = rows;
    matrix->cols = cols;
    matrix->panels = rows / KVD_PANEL_ROWS + (rows % KVD_PANEL_ROWS != 0);
    matrix->head_bytes = kvd_round_up(blocks * l.head, PAD);
    matrix->panel_bytes = matrix->head_bytes + blocks * l.quants;
    matrix->packed = NULL;
}

size_t kvd_matrix_bytes(const struct kvd_matrix *matrix)
{
    return matrix->panels * matrix->panel_bytes;
}

/* Sum of a block's weights, as integers: at most 480 or within +-4,096. */
static int16_t sum_weights(enum kvd_weight_type type, const uint8_t *quants)
{
    int sum = 0;
    for (uint32_t i = 0; i < KVD_QUANT_COLS; i++) {
        if (type == KVD_WEIGHT_Q8_0) {
            sum += (int8_t)quants[i];
        } else if (i < KVD_QUANT_COLS / 2) {
            sum += (quants[i] & 15) + (quants[i] >> 4);
        }
    }
    return (int16_t)sum;
}

/* One block of output o: its scales and its sum go to the head, its groups of 4 columns, which lie
 * together in the file, are spread. A Q4_1 byte holds columns i and 16 + i in both layouts. */
static void pack_block(enum kvd_weight_type type, const struct layout *l, const uint8_t *from,
                       uint32_t o, uint8_t *head, uint8_t *quants)
{
    const uint8_t *weights = from + (size_t)l->file_scales * LANE_BYTES;
    for (uint32_t i = 0; i < l->file_scales; i++) {
        memcpy(head + ((size_t)i * KVD_PANEL_ROWS + o) * LANE_BYTES, from + (size_t)i * LANE_BYTES,
               LANE_BYTES);
    }
    kvd_put_le16(head + ((size_t)l->file_scales * KVD_PANEL_ROWS + o) * LANE_BYTES,
                 (uint16_t)sum_weights(type, weights));
    for (uint32_t g = 0; g < l->quants / GROUP_ROW; g++) {
        memcpy(quants + (size_t)g * GROUP_ROW + (size_t)o * GROUP_BYTES,
               weights + (size_t)g * GROUP_BYTES, GROUP_BYTES);
    }
}

void kvd_matrix_pack(struct kvd_matrix *matrix, const void *blocks)
{
    const struct layout l = layout_of(matrix->type);
    const uint32_t n = matrix->cols / KVD_QUANT_COLS;
    const uint8_t *from = blocks;
    memset(matrix->packed, 0, kvd_matrix_bytes(matrix));
    for (uint32_t r = 0; r < matrix->rows; r++) {
        uint8_t *head = matrix->packed + r / KVD_PANEL_ROWS * matrix->panel_bytes;
        uint8_t *quants = head + matrix->head_bytes;
        for (uint32_t b = 0; b < n; b++, from += l.file_bytes) {
            pack_block(matrix->type, &l, from, r % KVD_PANEL_ROWS, head + (size_t)b * l.head,
                       quants + (size_t)b * l.quants);
        }
    }
}
