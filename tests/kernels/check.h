/* What the kernels' tests share: numbers from a seed, matrices and pages of random content, and the
 * lists of tests of each file. */
#ifndef TESTS_KERNELS_CHECK_H
#define TESTS_KERNELS_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

struct check_rng {
    uint64_t state;
};
uint64_t check_u64(struct check_rng *rng);
uint32_t check_below(struct check_rng *rng, uint32_t n);
float check_unit(struct check_rng *rng);   /* -1 .. 1 */
float check_normal(struct check_rng *rng); /* about normal, sigma 1 */

/* Memory aligned to 64, or the test ends. */
void *check_alloc(size_t bytes);

/* Kinds of rows: ordinary values first, then those that break careless code. */
enum check_fill {
    CHECK_NORMAL,
    CHECK_ZERO,
    CHECK_DENORMAL,
    CHECK_HUGE,
    CHECK_MIXED,  /* magnitudes from 1e-20 to 1e20 side by side */
    CHECK_NARROW, /* nearly constant, far from zero */
    CHECK_HALVES, /* multiples of one half up to 127: ties of rounding */
    CHECK_FILLS
};
void check_fill(struct check_rng *rng, enum check_fill kind, float *x, size_t n);

/* A matrix packed from random file blocks, which are kept. extreme: all weights at the ends of
 * their range. */
struct check_matrix {
    struct kvd_matrix m;
    uint8_t *blocks;
};
void check_matrix_make(struct check_rng *rng, enum kvd_weight_type type, uint32_t rows,
                       uint32_t cols, bool extreme, struct check_matrix *ret);
void check_matrix_free(struct check_matrix *m);
/* Weight [row][col] as the file's format defines it. */
double check_weight(const struct check_matrix *m, uint32_t row, uint32_t col);

struct kvd_qrows check_qrows(uint32_t rows, uint32_t cols);
void check_qrows_free(struct kvd_qrows *q);
/* Quantises n rows of x. */
void check_quantise(const struct kvd_kernels *k, const float *x, uint32_t n,
                    const struct kvd_qrows *q);

/* Pages of keys and values for one head, with queries. */
struct check_attention {
    struct kvd_attention a;
    uint8_t **pages;
    uint32_t n_pages;
    float *q;
    float *out;
};
struct check_attention_size {
    uint32_t dim, tile, group, rows, position;
};
/* Everything behind the last row's position is NaN. */
void check_attention_make(struct check_rng *rng, struct check_attention_size size, float spread,
                          struct check_attention *ret);
void check_attention_free(struct check_attention *c);

/* Sum of squared differences over sum of squares. */
double check_nmse(const float *got, const double *want, size_t n);

/* Tests of accuracy.c. */
void check_f16_every_half(void **state);
void check_f16_rounding(void **state);
void check_exp_error(void **state);
void check_kmath_error(void **state);
void check_quantise_error(void **state);
void check_quantise_edges(void **state);
void check_matmul_error(void **state);
void check_norm_error(void **state);
void check_rope_error(void **state);
void check_silu_error(void **state);
void check_attention_error(void **state);
void check_dequant(void **state);

/* bench.c: prints what each version does a second. Returns the program's exit status. */
int check_bench(void);

#endif
