/* quantise.h in AVX2: a block at a time. */
#include "kernels/quantise.h"

#include <immintrin.h>
#include <string.h>

#include "kernels/f16.h"
#include "kernels/versions.h"

static uint32_t block_top(const __m256 x[4])
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i top = _mm256_and_si256(_mm256_castps_si256(x[0]), mask);
    for (int i = 1; i < 4; i++) {
        top = _mm256_max_epu32(top, _mm256_and_si256(_mm256_castps_si256(x[i]), mask));
    }
    __m128i half = _mm_max_epu32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(half);
}

static int32_t sum_lanes(__m256i v)
{
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    return _mm_cvtsi128_si32(half);
}

static void quantise_block(const float *x, int8_t *q, float *scale, float *sum)
{
    const __m256 v[4] = {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8), _mm256_loadu_ps(x + 16),
                         _mm256_loadu_ps(x + 24)};
    const uint32_t top = block_top(v);
    const float amax = kvd_f32_of_bits(top);
    if (top >= 0x7f800000u || amax < KVD_QUANT_TINY) {
        memset(q, 0, KVD_QUANT_COLS);
        *scale = top >= 0x7f800000u ? kvd_f32_of_bits(0x7fc00000u) : 0.0f;
        *sum = *scale;
        return;
    }
    const __m256 inv = _mm256_set1_ps(127.0f / amax);
    __m256i n[4];
    for (int i = 0; i < 4; i++) {
        n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inv));
    }
    const __m256i total =
        _mm256_add_epi32(_mm256_add_epi32(n[0], n[1]), _mm256_add_epi32(n[2], n[3]));
    /* The packs work within halves; the permutation puts the groups of four back in order. */
    const __m256i words01 = _mm256_packs_epi32(n[0], n[1]);
    const __m256i words23 = _mm256_packs_epi32(n[2], n[3]);
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words01, words23),
                                                      _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)q, bytes);
    *scale = amax / 127.0f;
    *sum = *scale * (float)sum_lanes(total);
}

void kvd_quantise_avx2(const float *x, uint32_t n, int8_t *q, float *scale, float *sum)
{
    for (uint32_t b = 0; b < n / KVD_QUANT_COLS; b++) {
        quantise_block(x + b * KVD_QUANT_COLS, q + b * KVD_QUANT_COLS, scale + b, sum + b);
    }
}
