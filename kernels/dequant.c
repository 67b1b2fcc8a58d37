/* Rows of weights as floats; see dequant.h. */
#include "kernels/dequant.h"

#include "kernels/f16.h"
#include "kernels/matmul.h"
#include "proto/base/bytes.h"

void kvd_dequant_q4_1(const void *blocks, uint32_t cols, float *out)
{
    const uint8_t *block = blocks;
    for (uint32_t b = 0; b < cols / KVD_QUANT_COLS; b++, block += KVD_Q4_1_BYTES) {
        const float d = kvd_f16_to_f32(kvd_get_le16(block));
        const float m = kvd_f16_to_f32(kvd_get_le16(block + 2));
        for (uint32_t i = 0; i < KVD_QUANT_COLS / 2; i++) {
            const uint8_t byte = block[4 + i];
            out[b * KVD_QUANT_COLS + i] = (float)(byte & 15) * d + m;
            out[b * KVD_QUANT_COLS + 16 + i] = (float)(byte >> 4) * d + m;
        }
    }
}

void kvd_dequant_q8_0(const void *blocks, uint32_t cols, float *out)
{
    const uint8_t *block = blocks;
    for (uint32_t b = 0; b < cols / KVD_QUANT_COLS; b++, block += KVD_Q8_0_BYTES) {
        const float d = kvd_f16_to_f32(kvd_get_le16(block));
        for (uint32_t i = 0; i < KVD_QUANT_COLS; i++) {
            out[b * KVD_QUANT_COLS + i] = (float)(int8_t)block[2 + i] * d;
        }
    }
}

void kvd_dequant_f16(const void *halves, uint32_t cols, float *out)
{
    for (uint32_t i = 0; i < cols; i++) {
        out[i] = kvd_f16_to_f32(kvd_get_le16((const uint8_t *)halves + (size_t)i * 2));
    }
}
