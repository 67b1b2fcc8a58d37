/* What kernels.c fills its table from. Internal to this room. */
#ifndef KERNELS_VERSIONS_H
#define KERNELS_VERSIONS_H

#include "kernels/kernels.h"

kvd_quantise_fn kvd_quantise_ref;
kvd_matmul_fn kvd_matmul_q4_1_ref;
kvd_matmul_fn kvd_matmul_q8_0_ref;
kvd_rmsnorm_fn kvd_rmsnorm_ref;
kvd_rope_fn kvd_rope_ref;
kvd_to_f16_fn kvd_to_f16_ref;
kvd_attention_fn kvd_attention_ref;
kvd_silu_mul_fn kvd_silu_mul_ref;
kvd_add_fn kvd_add_ref;

kvd_quantise_fn kvd_quantise_avx2;
kvd_matmul_fn kvd_matmul_q4_1_avx2;
kvd_matmul_fn kvd_matmul_q8_0_avx2;
kvd_rmsnorm_fn kvd_rmsnorm_avx2;
kvd_rope_fn kvd_rope_avx2;
kvd_to_f16_fn kvd_to_f16_avx2;
kvd_attention_fn kvd_attention_avx2;
kvd_silu_mul_fn kvd_silu_mul_avx2;
kvd_add_fn kvd_add_avx2;

#endif
