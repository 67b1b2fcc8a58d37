/* Choosing the kernels at run time; see kernels.h. */
#include "kernels/kernels.h"

#include <stdbool.h>
#include <string.h>

#include "kernels/versions.h"
#include "proto/base/error.h"

static void fill_ref(struct kvd_kernels *k)
{
    *k = (struct kvd_kernels){
        .name = "ref",
        .quantise = kvd_quantise_ref,
        .matmul =
            {[KVD_WEIGHT_Q4_1] = kvd_matmul_q4_1_ref, [KVD_WEIGHT_Q8_0] = kvd_matmul_q8_0_ref},
        .rmsnorm = kvd_rmsnorm_ref,
        .rope = kvd_rope_ref,
        .to_f16 = kvd_to_f16_ref,
        .attention = kvd_attention_ref,
        .silu_mul = kvd_silu_mul_ref,
        .add = kvd_add_ref,
    };
}

#if KVD_KERNELS_AVX2
#include <cpuid.h>

static bool has_avx2(void)
{
    unsigned eax, ebx, ecx, edx;
    /* f16c by cpuid: clang 14 does not know it as a name. avx2 includes the system's part, saved
     * registers */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

static void override_avx2(struct kvd_kernels *k)
{
    k->name = "avx2";
    k->quantise = kvd_quantise_avx2;
    k->matmul[KVD_WEIGHT_Q4_1] = kvd_matmul_q4_1_avx2;
    k->matmul[KVD_WEIGHT_Q8_0] = kvd_matmul_q8_0_avx2;
    k->rmsnorm = kvd_rmsnorm_avx2;
    k->rope = kvd_rope_avx2;
    k->to_f16 = kvd_to_f16_avx2;
    k->attention = kvd_attention_avx2;
    k->silu_mul = kvd_silu_mul_avx2;
    k->add = kvd_add_avx2;
}
#else
static bool has_avx2(void)
{
    return false;
}

static void override_avx2(struct kvd_kernels *k)
{
    (void)k;
}
#endif

const char *const *kvd_kernels_names(void)
{
    static const char *const names[] = {"avx2", "ref", NULL};
    return names;
}

int kvd_kernels_select(const char *name, struct kvd_kernels *ret)
{
    const bool best = !name || strcmp(name, "auto") == 0;
    const bool avx2 = best ? has_avx2() : strcmp(name, "avx2") == 0;
    if (!best && !avx2 && strcmp(name, "ref") != 0) {
        return -KVD_E_NOT_FOUND;
    }
    if (avx2 && !has_avx2()) {
        return -KVD_E_UNAVAILABLE;
    }
    fill_ref(ret);
    if (avx2) {
        override_avx2(ret);
    }
    return 0;
}
