/* What the AVX2 versions share. Only for files compiled with -mavx2 -mfma -mf16c. */
#ifndef KERNELS_X86_H
#define KERNELS_X86_H

#include <immintrin.h>

#include "kernels/exp.h"

/* Before a loop whose bounds the compiler knows and whose array must become registers. */
#if defined(__clang__)
#define KVD_UNROLL _Pragma("unroll")
#else
#define KVD_UNROLL _Pragma("GCC unroll 16")
#endif

/* A body that is to be compiled anew for each set of constant arguments. */
#define KVD_X86_INLINE static inline __attribute__((always_inline))

/* ((lane0 + lane4) + (lane2 + lane6)) + ((lane1 + lane5) + (lane3 + lane7)) */
static inline float kvd_x86_sum_lanes(__m256 v)
{
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* kvd_expf, eight at a time. */
static inline __m256 kvd_x86_exp(__m256 x)
{
    const __m256 alive = _mm256_cmp_ps(x, _mm256_set1_ps(KVD_EXP_MIN), _CMP_GE_OQ);
    const __m256 round = _mm256_set1_ps(KVD_EXP_ROUND);
    x = _mm256_min_ps(x, _mm256_set1_ps(KVD_EXP_MAX));
    const __m256 t = _mm256_add_ps(_mm256_mul_ps(x, _mm256_set1_ps(KVD_EXP_LOG2E)), round);
    const __m256 n = _mm256_sub_ps(t, round);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-KVD_EXP_LN2_HIGH), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-KVD_EXP_LN2_LOW), r);
    __m256 p = _mm256_set1_ps(KVD_EXP_C7);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(KVD_EXP_C6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(KVD_EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(KVD_EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(KVD_EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(KVD_EXP_C2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    const __m256i scaled =
        _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23));
    return _mm256_and_ps(_mm256_castsi256_ps(scaled), alive);
}

#endif
