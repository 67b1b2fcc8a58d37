/* The reference of elementwise.h and of f16.h's row. */
#include "kernels/elementwise.h"

#include "kernels/exp.h"
#include "kernels/versions.h"

void kvd_silu_mul_ref(float *gate, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        gate[i] = (gate[i] / (1.0f + kvd_expf(-gate[i]))) * up[i];
    }
}

void kvd_add_ref(float *x, const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        x[i] = x[i] + y[i];
    }
}

void kvd_to_f16_ref(const float *x, uint32_t n, uint16_t *out)
{
    for (uint32_t i = 0; i < n; i++) {
        out[i] = kvd_f32_to_f16(x[i]);
    }
}
