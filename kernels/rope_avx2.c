/* rope.h in AVX2: four pairs at a time. */
#include "kernels/rope.h"

#include <immintrin.h>

#include "kernels/versions.h"

void kvd_rope_avx2(float *x, uint32_t heads, uint32_t dim, const float *table)
{
    for (uint32_t h = 0; h < heads; h++, x += dim) {
        for (uint32_t i = 0; i < dim; i += 8) {
            const __m256 v = _mm256_loadu_ps(x + i);
            const __m256 angle = _mm256_loadu_ps(table + i);
            const __m256 swapped = _mm256_permute_ps(v, 0xb1);
            /* Even lanes x0 * cos - x1 * sin, odd lanes x1 * cos + x0 * sin. */
            _mm256_storeu_ps(x + i,
                             _mm256_addsub_ps(_mm256_mul_ps(v, _mm256_moveldup_ps(angle)),
                                              _mm256_mul_ps(swapped, _mm256_movehdup_ps(angle))));
        }
    }
}
