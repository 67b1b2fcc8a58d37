/*
 * Every version of every kernel against the C reference, bit for bit, on random and extreme input;
 * the reference against double precision (accuracy.c); what the numerics family promises (a row's
 * result doesn't depend on its company). With --bench, the speed of each version instead.
 */
#include <math.h>

#include "check.h"
#include "kvd_test.h"
#include "proto/base/error.h"

enum { CANARY = 0x5a };

/* Calls fn for every version that this machine runs, beside the reference. */
typedef void version_fn(const struct kvd_kernels *ref, const struct kvd_kernels *k);

static void for_versions(version_fn *fn)
{
    struct kvd_kernels ref;
    assert_int_equal(kvd_kernels_select("ref", &ref), 0);
    uint32_t run = 0;
    for (const char *const *name = kvd_kernels_names(); *name; name++) {
        struct kvd_kernels k;
        const int r = kvd_kernels_select(*name, &k);
        if (r == -KVD_E_UNAVAILABLE || strcmp(*name, "ref") == 0) {
            continue;
        }
        assert_int_equal(r, 0);
        assert_string_equal(k.name, *name);
        fn(&ref, &k);
        run++;
    }
    if (run == 0) {
        KVD_SKIP("avx2", "this CPU runs the reference kernels only");
    }
}

static void assert_same_rows(const struct kvd_qrows *a, const struct kvd_qrows *b)
{
    const size_t bytes = a->cols / KVD_QUANT_COLS * sizeof(float);
    assert_memory_equal(a->q, b->q, a->cols);
    assert_memory_equal(a->scale, b->scale, bytes);
    assert_memory_equal(a->offset, b->offset, bytes);
    assert_memory_equal(a->sum, b->sum, bytes);
}

static void same_quantise(const struct kvd_kernels *ref, const struct kvd_kernels *k)
{
    enum { N = 20 * KVD_QUANT_COLS };
    struct check_rng rng = {11};
    struct kvd_qrows a = check_qrows(1, N);
    struct kvd_qrows b = check_qrows(1, N);
    float x[N + 1];
    for (int kind = 0; kind < CHECK_FILLS; kind++) {
        check_fill(&rng, (enum check_fill)kind, x, N + 1);
        if (kind == CHECK_MIXED) {
            x[1] = INFINITY;
            x[1 + KVD_QUANT_COLS] = NAN;
        }
        /* x + 1: no alignment is asked for. */
        ref->quantise(x + 1, &a);
        k->quantise(x + 1, &b);
        assert_same_rows(&a, &b);
    }
    /* Around the smallest block that counts, and exact powers of two. */
    for (uint32_t i = 0; i < N; i++) {
        x[i] = i % 2 ? ldexpf(check_unit(&rng), -(int)(i / 4)) : 1e-30f * check_unit(&rng);
    }
    ref->quantise(x, &a);
    k->quantise(x, &b);
    assert_same_rows(&a, &b);
    check_qrows_free(&a);
    check_qrows_free(&b);
}

/* Rows at the ends of int8, in runs that add up as far as they can. */
static void extreme_rows(struct check_rng *rng, struct kvd_qrows *q, uint32_t rows)
{
    for (uint32_t i = 0; i < rows * q->cols; i++) {
        const bool low = check_below(rng, 8) == 0;
        q->q[i] = (i / q->cols) % 2 == (low ? 0 : 1) ? -127 : 127;
    }
    for (uint32_t i = 0; i < rows * (q->cols / KVD_QUANT_COLS); i++) {
        q->scale[i] = check_unit(rng);
        q->offset[i] = check_unit(rng) * 100.0f;
        q->sum[i] = check_unit(rng) * 4064.0f;
    }
}

static void same_product(const struct kvd_kernels *ref, const struct kvd_kernels *k,
                         const struct check_matrix *w, const struct kvd_qrows *q, uint32_t n)
{
    const size_t stride = w->m.rows + 3;
    const size_t bytes = n * stride * sizeof(float);
    float *a = check_alloc(bytes);
    float *b = check_alloc(bytes);
    memset(a, CANARY, bytes);
    memset(b, CANARY, bytes);
    ref->matmul[w->m.type](&w->m, 0, w->m.panels, q, n, a, stride);
    k->matmul[w->m.type](&w->m, 0, w->m.panels, q, n, b, stride);
    assert_memory_equal(a, b, bytes);
    free(a);
    free(b);
}

static void same_matmul(const struct kvd_kernels *ref, const struct kvd_kernels *k)
{
    const uint32_t rows[] = {1, 7, 8, 9, 40};
    const uint32_t cols[] = {32, 96, 576};
    const uint32_t n[] = {1, 2, 3, 4, 5, 11, 35};
    struct check_rng rng = {12};
    for (uint32_t i = 0; i < 5 * 3 * 7 * 4; i++) {
        const bool extreme = i % 2;
        const enum kvd_weight_type type = i / 2 % 2 ? KVD_WEIGHT_Q8_0 : KVD_WEIGHT_Q4_1;
        const uint32_t c = cols[i / 4 % 3];
        const uint32_t r = n[i / 12 % 7];
        struct check_matrix w;
        check_matrix_make(&rng, type, rows[i / 84], c, extreme, &w);
        struct kvd_qrows q = check_qrows(r, c);
        if (extreme) {
            extreme_rows(&rng, &q, r);
        } else {
            float *x = check_alloc((size_t)r * c * sizeof(float));
            check_fill(&rng, CHECK_NORMAL, x, (size_t)r * c);
            check_quantise(ref, x, r, &q);
            free(x);
        }
        same_product(ref, k, &w, &q, r);
        check_qrows_free(&q);
        check_matrix_free(&w);
    }
}

static void same_norm(const struct kvd_kernels *ref, const struct kvd_kernels *k)
{
    enum { N = 584 };
    struct check_rng rng = {13};
    float x[N];
    float weight[N];
    float a[N];
    float b[N];
    const enum check_fill kinds[] = {CHECK_NORMAL, CHECK_ZERO, CHECK_DENORMAL, CHECK_HALVES};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        check_fill(&rng, kinds[i], x, N);
        check_fill(&rng, CHECK_NORMAL, weight, N);
        for (uint32_t n = 8; n <= N; n += 64) {
            ref->rmsnorm(x, weight, n, 1e-5f, a);
            k->rmsnorm(x, weight, n, 1e-5f, b);
            assert_memory_equal(a, b, n * sizeof(float));
        }
    }
}

static void same_rope(const struct kvd_kernels *ref, const struct kvd_kernels *k)
{
    enum { DIM = 64, HEADS = 9 };
    struct check_rng rng = {14};
    float a[HEADS * DIM];
    float b[HEADS * DIM];
    float table[DIM];
    double freq[DIM / 2];
    kvd_rope_freq(100000.0, DIM, freq);
    for (uint32_t position = 0; position < KVD_ROPE_POSITION_MAX; position = position * 3 + 1) {
        kvd_rope_row(freq, DIM, position, table);
        check_fill(&rng, position % 2 ? CHECK_MIXED : CHECK_NORMAL, a, (size_t)HEADS * DIM);
        memcpy(b, a, sizeof(a));
        ref->rope(a, HEADS, DIM, table);
        k->rope(b, HEADS, DIM, table);
        assert_memory_equal(a, b, sizeof(a));
    }
}

static void same_to_f16(const struct kvd_kernels *ref, const struct kvd_kernels *k)
{
    enum { N = 1 << 16 };
    struct check_rng rng = {15};
    float *x = check_alloc(N * sizeof(float));
    uint16_t *a = check_alloc(N * sizeof(uint16_t));
    uint16_t *b = check_alloc(N * sizeof(uint16_t));
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t exponent = 100 + check_below(&rng, 48); /* below the halves to above them */
        const uint32_t fraction = check_below(&rng, 1 << 23) & (i % 2 ? ~0u : ~0xfffu);
        x[i] = kvd_f32_of_bits((uint32_t)(check_u64(&rng) << 31) | exponent << 23 | fraction);
    }
    x[0] = INFINITY;
    x[1] = -0.0f;
    for (uint32_t n = N - 9; n <= N; n++) {
        ref->to_f16(x, n, a);
        k->to_f16(x, n, b);
        assert_memory_equal(a, b, n * sizeof(uint16_t));
    }
    free(x);
    free(a);
    free(b);
}

static void same_elementwise(const struct kvd_kernels *ref, const struct kvd_kernels *k)
{
    enum { N = 1 << 14 };
    struct check_rng rng = {16};
    float *a = check_alloc(N * sizeof(float));
    float *b = check_alloc(N * sizeof(float));
    float *y = check_alloc(N * sizeof(float));
    for (int kind = 0; kind < CHECK_FILLS; kind++) {
        check_fill(&rng, (enum check_fill)kind, a, N);
        check_fill(&rng, CHECK_NORMAL, y, N);
        memcpy(b, a, N * sizeof(float));
        ref->silu_mul(a, y, N);
        k->silu_mul(b, y, N);
        assert_memory_equal(a, b, N * sizeof(float));
        check_fill(&rng, (enum check_fill)kind, a, N);
        memcpy(b, a, N * sizeof(float));
        ref->add(a, y, N);
        k->add(b, y, N);
        assert_memory_equal(a, b, N * sizeof(float));
    }
    free(a);
    free(b);
    free(y);
}

static void same_attention(const struct kvd_kernels *ref, const struct kvd_kernels *k)
{
    const struct check_attention_size sizes[] = {
        {64, 64, 3, 1, 0},   {64, 64, 3, 1, 63},  {64, 64, 3, 1, 64},  {64, 64, 3, 16, 0},
        {64, 64, 3, 16, 57}, {64, 64, 3, 7, 200}, {64, 64, 1, 5, 130}, {64, 64, 4, 16, 100},
        {64, 64, 8, 3, 511}, {16, 64, 2, 9, 70},  {8, 8, 1, 4, 17},    {40, 24, 3, 16, 45},
        {128, 64, 7, 2, 90}, {256, 32, 16, 3, 9}, {32, 40, 5, 16, 33},
    };
    struct check_rng rng = {17};
    for (size_t i = 0; i < 3 * sizeof(sizes) / sizeof(sizes[0]); i++) {
        const float spreads[] = {1.0f, 40.0f, 0.0f}; /* flat, one key takes all, all keys alike */
        struct check_attention c;
        check_attention_make(&rng, sizes[i / 3], spreads[i % 3], &c);
        const size_t bytes = sizes[i / 3].rows * c.a.stride * sizeof(float);
        float *want = check_alloc(bytes);
        ref->attention(&c.a);
        memcpy(want, c.out, bytes);
        memset(c.out, CANARY, bytes);
        k->attention(&c.a);
        assert_memory_equal(c.out, want, bytes);
        assert_true(isfinite(want[0]));
        free(want);
        check_attention_free(&c);
    }
}

#define SAME(op)                                                                                   \
    static void op##_is_the_same_in_every_version(void **state)                                    \
    {                                                                                              \
        (void)state;                                                                               \
        for_versions(same_##op);                                                                   \
    }
SAME(quantise)
SAME(matmul)
SAME(norm)
SAME(rope)
SAME(to_f16)
SAME(elementwise)
SAME(attention)

/* Rows together or one by one, panels together or in parts. */
static void matmul_rows_stand_alone(void **state)
{
    (void)state;
    enum { ROWS = 24, COLS = 64, N = 13 };
    struct kvd_kernels k;
    assert_int_equal(kvd_kernels_select(NULL, &k), 0);
    struct check_rng rng = {18};
    for (int type = 0; type < KVD_WEIGHT_TYPES; type++) {
        struct check_matrix w;
        check_matrix_make(&rng, (enum kvd_weight_type)type, ROWS, COLS, false, &w);
        struct kvd_qrows q = check_qrows(N, COLS);
        extreme_rows(&rng, &q, N);
        float all[N * ROWS];
        float alone[N * ROWS];
        k.matmul[type](&w.m, 0, 3, &q, N, all, ROWS);
        for (uint32_t r = 0; r < N; r++) {
            const struct kvd_qrows one = kvd_qrows_from(&q, r);
            k.matmul[type](&w.m, 2, 3, &one, 1, alone + (size_t)r * ROWS, ROWS);
            k.matmul[type](&w.m, 0, 2, &one, 1, alone + (size_t)r * ROWS, ROWS);
        }
        assert_memory_equal(all, alone, sizeof(all));
        check_qrows_free(&q);
        check_matrix_free(&w);
    }
}

static void attention_rows_stand_alone(void **state)
{
    (void)state;
    struct kvd_kernels k;
    assert_int_equal(kvd_kernels_select(NULL, &k), 0);
    struct check_rng rng = {19};
    const struct check_attention_size size = {64, 64, 3, 16, 120};
    struct check_attention c;
    check_attention_make(&rng, size, 2.0f, &c);
    k.attention(&c.a);
    const size_t row = c.a.stride;
    float *alone = check_alloc(row * sizeof(float));
    for (uint32_t r = 0; r < size.rows; r++) {
        struct kvd_attention one = c.a;
        one.rows = 1;
        one.position = size.position + r;
        one.q = c.q + r * row;
        one.out = alone;
        k.attention(&one);
        assert_memory_equal(c.out + r * row, alone, row * sizeof(float));
    }
    free(alone);
    check_attention_free(&c);
}

static void unknown_kernels_are_refused(void **state)
{
    (void)state;
    struct kvd_kernels k = {.name = "untouched"};
    assert_int_equal(kvd_kernels_select("sse9", &k), -KVD_E_NOT_FOUND);
    assert_string_equal(k.name, "untouched");
    assert_int_equal(kvd_kernels_select("auto", &k), 0);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--bench") == 0) {
        return check_bench();
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_f16_every_half),
        cmocka_unit_test(check_f16_rounding),
        cmocka_unit_test(check_exp_error),
        cmocka_unit_test(check_kmath_error),
        cmocka_unit_test(check_quantise_error),
        cmocka_unit_test(check_quantise_edges),
        cmocka_unit_test(check_matmul_error),
        cmocka_unit_test(check_norm_error),
        cmocka_unit_test(check_rope_error),
        cmocka_unit_test(check_silu_error),
        cmocka_unit_test(check_attention_error),
        cmocka_unit_test(check_dequant),
        cmocka_unit_test(quantise_is_the_same_in_every_version),
        cmocka_unit_test(matmul_is_the_same_in_every_version),
        cmocka_unit_test(norm_is_the_same_in_every_version),
        cmocka_unit_test(rope_is_the_same_in_every_version),
        cmocka_unit_test(to_f16_is_the_same_in_every_version),
        cmocka_unit_test(elementwise_is_the_same_in_every_version),
        cmocka_unit_test(attention_is_the_same_in_every_version),
        cmocka_unit_test(matmul_rows_stand_alone),
        cmocka_unit_test(attention_rows_stand_alone),
        cmocka_unit_test(unknown_kernels_are_refused),
    };
    const int total = (int)(sizeof(tests) / sizeof(tests[0]));
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)printf("%d passed, %d failed, %d skipped\n", total - failed - kvd_test_skipped, failed,
                 kvd_test_skipped);
    return failed ? 1 : 0;
}
