/* quantise.h in AVX2: a block at a time. */
#include "kernels/quantise.h"

#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/versions.h"
#include "kernels/x86.h"

enum { VECTORS = 4 };

static bool all_finite(const __m256 x[VECTORS])
{
    const __m256i mask = _mm256_set1_epi32(0x7f800000);
    __m256i bad = _mm256_setzero_si256();
    KVD_UNROLL
    for (int i = 0; i < VECTORS; i++) {
        const __m256i exponent = _mm256_and_si256(_mm256_castps_si256(x[i]), mask);
        bad = _mm256_or_si256(bad, _mm256_cmpeq_epi32(exponent, mask));
    }
    return _mm256_testz_si256(bad, bad);
}

/* The largest lane. Of zeros of both signs it may be either. */
static float max_lanes(__m256 v)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

static int32_t sum_lanes(__m256i v)
{
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    return _mm_cvtsi128_si32(half);
}

/* Rounds (x - offset) * inv to int8 at q; returns the sum. */
static int32_t round_block(const __m256 x[VECTORS], float offset, float inv, int8_t *q)
{
    __m256i n[VECTORS];
    KVD_UNROLL
    for (int i = 0; i < VECTORS; i++) {
        const __m256 centred = _mm256_sub_ps(x[i], _mm256_set1_ps(offset));
        const __m256 steps = _mm256_mul_ps(centred, _mm256_set1_ps(inv));
        n[i] = _mm256_cvtps_epi32(
            _mm256_min_ps(_mm256_max_ps(steps, _mm256_set1_ps(-127.0f)), _mm256_set1_ps(127.0f)));
    }
    /* The packs work within halves; the permutation puts the groups of four back in order. */
    const __m256i words01 = _mm256_packs_epi32(n[0], n[1]);
    const __m256i words23 = _mm256_packs_epi32(n[2], n[3]);
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words01, words23),
                                                      _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)q, bytes);
    return sum_lanes(_mm256_add_epi32(_mm256_add_epi32(n[0], n[1]), _mm256_add_epi32(n[2], n[3])));
}

static void quantise_block(const float *at, const struct kvd_qrows *to, uint32_t b)
{
    int8_t *q = to->q + (size_t)b * KVD_QUANT_COLS;
    const __m256 x[VECTORS] = {_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8),
                               _mm256_loadu_ps(at + 16), _mm256_loadu_ps(at + 24)};
    if (!all_finite(x)) {
        memset(q, 0, KVD_QUANT_COLS);
        to->scale[b] = to->offset[b] = to->sum[b] = kvd_f32_of_bits(0x7fc00000u);
        return;
    }
    const __m256 highs = _mm256_max_ps(_mm256_max_ps(x[0], x[1]), _mm256_max_ps(x[2], x[3]));
    const __m256 lows = _mm256_min_ps(_mm256_min_ps(x[0], x[1]), _mm256_min_ps(x[2], x[3]));
    const float high = max_lanes(highs);
    const float low = -max_lanes(_mm256_xor_ps(lows, _mm256_set1_ps(-0.0f)));
    const float span = high * 0.5f - low * 0.5f;
    const float offset = high * 0.5f + low * 0.5f + 0.0f;
    const bool flat = span < KVD_QUANT_TINY;
    const float scale = flat ? 0.0f : span / 127.0f;
    const int32_t total = round_block(x, offset, flat ? 0.0f : 127.0f / span, q);
    to->scale[b] = scale;
    to->offset[b] = offset;
    to->sum[b] = scale * (float)total + (float)KVD_QUANT_COLS * offset;
}

void kvd_quantise_avx2(const float *x, const struct kvd_qrows *to)
{
    for (uint32_t b = 0; b < to->cols / KVD_QUANT_COLS; b++) {
        quantise_block(x + (size_t)b * KVD_QUANT_COLS, to, b);
    }
}
