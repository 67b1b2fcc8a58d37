/* norm.h in AVX2: the eight lanes are the eight sums. */
#include "kernels/norm.h"

#include <immintrin.h>

#include "kernels/versions.h"
#include "kernels/x86.h"

void kvd_rmsnorm_avx2(const float *x, const float *weight, uint32_t n, float eps, float *out)
{
    __m256 lanes = _mm256_setzero_ps();
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);
        lanes = _mm256_fmadd_ps(v, v, lanes);
    }
    const float mean = kvd_x86_sum_lanes(lanes) / (float)n + eps;
    const float root = _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean)));
    const __m256 k = _mm256_set1_ps(1.0f / root);
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), k);
        _mm256_storeu_ps(out + i, _mm256_mul_ps(v, _mm256_loadu_ps(weight + i)));
    }
}
