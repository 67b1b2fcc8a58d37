/* elementwise.h and the row of f16.h in AVX2. */
#include "kernels/elementwise.h"

#include <immintrin.h>

#include "kernels/versions.h"
#include "kernels/x86.h"

void kvd_silu_mul_avx2(float *gate, const float *up, uint32_t n)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const __m256 one = _mm256_set1_ps(1.0f);
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256 g = _mm256_loadu_ps(gate + i);
        const __m256 e = kvd_x86_exp(_mm256_xor_ps(g, sign));
        const __m256 silu = _mm256_div_ps(g, _mm256_add_ps(one, e));
        _mm256_storeu_ps(gate + i, _mm256_mul_ps(silu, _mm256_loadu_ps(up + i)));
    }
}

void kvd_add_avx2(float *x, const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8) {
        _mm256_storeu_ps(x + i, _mm256_add_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
    }
}

void kvd_to_f16_avx2(const float *x, uint32_t n, uint16_t *out)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(void *)(out + i), h);
    }
    for (; i < n; i++) {
        out[i] = kvd_f32_to_f16(x[i]);
    }
}
