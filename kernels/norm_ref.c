/* The reference of norm.h. */
#include "kernels/norm.h"

#include <math.h>

#include "kernels/versions.h"

void kvd_rmsnorm_ref(const float *x, const float *weight, uint32_t n, float eps, float *out)
{
    float lane[8] = {0};
    for (uint32_t i = 0; i < n; i++) {
        lane[i % 8] = fmaf(x[i], x[i], lane[i % 8]);
    }
    const float ss =
        ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
    const float k = 1.0f / sqrtf(ss / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) {
        out[i] = (x[i] * k) * weight[i];
    }
}
