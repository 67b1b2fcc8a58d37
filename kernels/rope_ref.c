/* The reference of rope.h, and the angles, which are the same code everywhere. */
#include "kernels/rope.h"

#include "kernels/kmath.h"
#include "kernels/versions.h"

void kvd_rope_freq(double base, uint32_t dim, double *freq)
{
    const double log_base = kvd_math_log(base);
    for (uint32_t i = 0; i < dim / 2; i++) {
        freq[i] = kvd_math_exp(-(log_base * (2.0 * i / dim)));
    }
}

void kvd_rope_row(const double *freq, uint32_t dim, uint32_t position, float *table)
{
    for (uint32_t i = 0; i < dim / 2; i++) {
        double sine;
        double cosine;
        kvd_math_sincos((double)position * freq[i], &sine, &cosine);
        table[2 * i] = (float)cosine;
        table[2 * i + 1] = (float)sine;
    }
}

void kvd_rope_ref(float *x, uint32_t heads, uint32_t dim, const float *table)
{
    for (uint32_t h = 0; h < heads; h++, x += dim) {
        for (uint32_t i = 0; i < dim; i += 2) {
            const float x0 = x[i];
            const float x1 = x[i + 1];
            x[i] = x0 * table[i] - x1 * table[i + 1];
            x[i + 1] = x1 * table[i] + x0 * table[i + 1];
        }
    }
}
