/*
 * The kernels: a table of typed functions, filled with the C reference and then overridden by what
 * the CPU can do. Every version gives the same bits as the reference for finite input; each op's
 * header defines the order of its sums. Pure functions; safe from any thread. They need the default
 * rounding mode and denormals on.
 */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/f16.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/quantise.h"
#include "kernels/rope.h"

struct kvd_kernels {
    const char *name;
    kvd_quantise_fn *quantise;
    kvd_matmul_fn *matmul[KVD_WEIGHT_TYPES];
    kvd_rmsnorm_fn *rmsnorm;
    kvd_rope_fn *rope;
    kvd_to_f16_fn *to_f16;
    kvd_attention_fn *attention;
    kvd_silu_mul_fn *silu_mul;
    kvd_add_fn *add;
};

/*
 * Fills the table. name: NULL or "auto" (the best that this CPU runs), "ref", "avx2". Returns 0,
 * -KVD_E_NOT_FOUND (no such name), -KVD_E_UNAVAILABLE (this CPU or this build has it not).
 */
int kvd_kernels_select(const char *name, struct kvd_kernels *ret);

/* Names of all versions there are, best first, ended by NULL. */
const char *const *kvd_kernels_names(void);

#endif
