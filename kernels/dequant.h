/* One row of a file's weights as floats: the embedding of a token. Plain C on every machine. */
#ifndef KERNELS_DEQUANT_H
#define KERNELS_DEQUANT_H

#include <stdint.h>

/* Q4_1: q * d, rounded, + m. Q8_0: q * d. cols: a multiple of 32. */
void kvd_dequant_q4_1(const void *blocks, uint32_t cols, float *out);
void kvd_dequant_q8_0(const void *blocks, uint32_t cols, float *out);
void kvd_dequant_f16(const void *halves, uint32_t cols, float *out);

#endif
