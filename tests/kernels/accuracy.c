/* The reference against the same computation in double precision, done in the plainest way. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "check.h"
#include "kernels/dequant.h"
#include "kernels/exp.h"
#include "kernels/kmath.h"

static struct kvd_kernels reference(void)
{
    struct kvd_kernels k;
    assert_int_equal(kvd_kernels_select("ref", &k), 0);
    return k;
}

void check_f16_every_half(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float f = kvd_f16_to_f32((uint16_t)h);
        const uint32_t exponent = h >> 10 & 31;
        const uint32_t fraction = h & 0x3ff;
        if (exponent == 31 && fraction) {
            assert_true(isnan(f));
            continue;
        }
        const double magnitude = exponent == 31  ? INFINITY
                                 : exponent == 0 ? ldexp(fraction, -24)
                                                 : ldexp(1024 + fraction, (int)exponent - 25);
        assert_true((double)f == (h & 0x8000 ? -magnitude : magnitude));
        assert_int_equal(kvd_f32_to_f16(f), h);
    }
}

/* Between two neighbouring halves: nearest, and the even one from the middle. */
void check_f16_rounding(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        const float low = kvd_f16_to_f32((uint16_t)h);
        const float high = h + 1 < 0x7c00 ? kvd_f16_to_f32((uint16_t)(h + 1)) : 65536.0f;
        const float middle = (low + high) * 0.5f; /* exact */
        assert_int_equal(kvd_f32_to_f16(middle), h + (h & 1));
        assert_int_equal(kvd_f32_to_f16(nextafterf(middle, 0.0f)), h);
        assert_int_equal(kvd_f32_to_f16(nextafterf(middle, INFINITY)), h + 1);
        assert_int_equal(kvd_f32_to_f16(-middle), 0x8000 + h + (h & 1));
    }
    assert_int_equal(kvd_f32_to_f16(3.4e38f), 0x7c00);
    assert_int_equal(kvd_f32_to_f16(1e-45f), 0);
}

void check_exp_error(void **state)
{
    (void)state;
    double worst = 0.0;
    for (int i = -87 * 731; i <= 88 * 731; i++) {
        const float x = (float)i / 731.0f;
        const double want = exp((double)x);
        worst = fmax(worst, fabs((double)kvd_expf(x) - want) / want);
    }
    assert_true(worst < 2e-7);
    assert_true(kvd_expf(0.0f) == 1.0f);
    assert_true(kvd_expf(-0.0f) == 1.0f);
    assert_true(kvd_expf(-87.1f) == 0.0f);
    assert_true(kvd_expf(-INFINITY) == 0.0f);
    assert_true(kvd_expf(NAN) == 0.0f);
    assert_true(kvd_expf(INFINITY) == kvd_expf(88.0f));
}

void check_kmath_error(void **state)
{
    (void)state;
    struct check_rng rng = {1};
    for (int i = 0; i < 200000; i++) {
        const double x = (double)check_unit(&rng);
        const double big = x * (1 << (i % 22));
        double s;
        double c;
        kvd_math_sincos(big, &s, &c);
        assert_true(fabs(s - sin(big)) < 4e-16);
        assert_true(fabs(c - cos(big)) < 4e-16);
        const double e = exp(x * 600.0);
        assert_true(fabs(kvd_math_exp(x * 600.0) - e) < 1e-13 * e);
        assert_true(fabs(kvd_math_log(e) - x * 600.0) < 2e-13);
    }
    assert_true(kvd_math_exp(-INFINITY) == 0.0);
    assert_true(kvd_math_exp(0.0) == 1.0);
}

void check_quantise_error(void **state)
{
    (void)state;
    enum { N = 64 * KVD_QUANT_COLS };
    const struct kvd_kernels k = reference();
    struct check_rng rng = {2};
    float x[N];
    struct kvd_qrows q = check_qrows(1, N);
    const enum check_fill kinds[] = {CHECK_NORMAL, CHECK_HUGE, CHECK_MIXED, CHECK_HALVES,
                                     CHECK_NARROW};
    for (size_t kind = 0; kind < sizeof(kinds) / sizeof(kinds[0]); kind++) {
        check_fill(&rng, kinds[kind], x, N);
        k.quantise(x, &q);
        for (uint32_t i = 0; i < N; i++) {
            const double step = (double)q.scale[i / KVD_QUANT_COLS];
            const double offset = (double)q.offset[i / KVD_QUANT_COLS];
            assert_true(q.q[i] >= -127);
            /* Half a step, and the rounding of the offset and of the steps. */
            const double limit = step * 0.5001 + fabs(offset) * 2e-7;
            assert_true(fabs(q.q[i] * step + offset - (double)x[i]) <= limit);
        }
    }
    check_qrows_free(&q);
}

/* A block with infinity or NaN says so; a block of next to nothing is nothing. */
void check_quantise_edges(void **state)
{
    (void)state;
    enum { N = 4 * KVD_QUANT_COLS };
    const struct kvd_kernels k = reference();
    struct check_rng rng = {9};
    float x[N];
    struct kvd_qrows q = check_qrows(1, N);
    check_fill(&rng, CHECK_NORMAL, x, N);
    x[0] = INFINITY;
    x[KVD_QUANT_COLS + 31] = -NAN;
    check_fill(&rng, CHECK_DENORMAL, x + (size_t)2 * KVD_QUANT_COLS, KVD_QUANT_COLS);
    for (uint32_t i = 3 * KVD_QUANT_COLS; i < N; i++) {
        x[i] = 5.0f;
    }
    k.quantise(x, &q);
    assert_true(isnan(q.scale[0]) && isnan(q.offset[0]) && isnan(q.sum[0]) && isnan(q.scale[1]));
    assert_true(q.scale[2] == 0.0f && fabs((double)q.offset[2]) < 1e-37);
    assert_true(q.scale[3] == 0.0f && q.offset[3] == 5.0f && q.sum[3] == 160.0f);
    check_qrows_free(&q);
}

static void matmul_error(enum kvd_weight_type type)
{
    enum { ROWS = 50, COLS = 576, N = 3 };
    const struct kvd_kernels k = reference();
    struct check_rng rng = {3};
    struct check_matrix w;
    check_matrix_make(&rng, type, ROWS, COLS, false, &w);
    float x[N * COLS];
    check_fill(&rng, CHECK_NORMAL, x, (size_t)N * COLS);
    struct kvd_qrows q = check_qrows(N, COLS);
    check_quantise(&k, x, N, &q);
    float out[N * ROWS];
    double want[N * ROWS];
    double quantised[N * ROWS];
    k.matmul[type](&w.m, 0, w.m.panels, &q, N, out, ROWS);
    for (uint32_t r = 0; r < N; r++) {
        for (uint32_t o = 0; o < ROWS; o++) {
            double sum = 0.0;
            double of_quantised = 0.0;
            for (uint32_t c = 0; c < COLS; c++) {
                const uint32_t at = r * COLS + c;
                sum += check_weight(&w, o, c) * (double)x[at];
                of_quantised +=
                    check_weight(&w, o, c) * (q.q[at] * (double)q.scale[at / KVD_QUANT_COLS] +
                                              (double)q.offset[at / KVD_QUANT_COLS]);
            }
            want[r * ROWS + o] = sum;
            quantised[r * ROWS + o] = of_quantised;
        }
    }
    assert_true(check_nmse(out, want, (size_t)N * ROWS) < 1e-4);
    assert_true(check_nmse(out, quantised, (size_t)N * ROWS) < 1e-11);
    check_qrows_free(&q);
    check_matrix_free(&w);
}

void check_matmul_error(void **state)
{
    (void)state;
    matmul_error(KVD_WEIGHT_Q4_1);
    matmul_error(KVD_WEIGHT_Q8_0);
}

void check_norm_error(void **state)
{
    (void)state;
    enum { N = 576 };
    const struct kvd_kernels k = reference();
    struct check_rng rng = {4};
    float x[N];
    float weight[N];
    float out[N];
    double want[N];
    check_fill(&rng, CHECK_NORMAL, x, N);
    check_fill(&rng, CHECK_NORMAL, weight, N);
    double ss = 0.0;
    for (uint32_t i = 0; i < N; i++) {
        ss += (double)x[i] * (double)x[i];
    }
    for (uint32_t i = 0; i < N; i++) {
        want[i] = (double)x[i] / sqrt(ss / N + 1e-5) * (double)weight[i];
    }
    k.rmsnorm(x, weight, N, 1e-5f, out);
    assert_true(check_nmse(out, want, N) < 1e-13);
}

/* Against libm, at positions up to the largest there can be. */
void check_rope_error(void **state)
{
    (void)state;
    enum { DIM = 64 };
    const struct kvd_kernels k = reference();
    const uint32_t positions[] = {0, 1, 63, 8191, 131071, KVD_ROPE_POSITION_MAX - 1};
    struct check_rng rng = {5};
    double freq[DIM / 2];
    kvd_rope_freq(100000.0, DIM, freq);
    for (size_t p = 0; p < sizeof(positions) / sizeof(positions[0]); p++) {
        float table[DIM];
        float x[DIM];
        double want[DIM];
        check_fill(&rng, CHECK_NORMAL, x, DIM);
        for (uint32_t i = 0; i < DIM / 2; i++) {
            const double angle = positions[p] * pow(100000.0, -2.0 * i / DIM);
            want[2 * i] = (double)x[2 * i] * cos(angle) - (double)x[2 * i + 1] * sin(angle);
            want[2 * i + 1] = (double)x[2 * i + 1] * cos(angle) + (double)x[2 * i] * sin(angle);
        }
        kvd_rope_row(freq, DIM, positions[p], table);
        k.rope(x, 1, DIM, table);
        assert_true(check_nmse(x, want, DIM) < 1e-13);
    }
}

void check_silu_error(void **state)
{
    (void)state;
    enum { N = 4096 };
    const struct kvd_kernels k = reference();
    struct check_rng rng = {6};
    float gate[N];
    float up[N];
    double want[N];
    for (uint32_t i = 0; i < N; i++) {
        gate[i] = check_unit(&rng) * 100.0f;
        up[i] = check_normal(&rng);
        want[i] = (double)gate[i] / (1.0 + exp(-(double)gate[i])) * (double)up[i];
    }
    k.silu_mul(gate, up, N);
    assert_true(check_nmse(gate, want, N) < 1e-13);
}

/* One query's softmax over all keys at once. */
static void attend_double(const struct check_attention *c, uint32_t row, uint32_t g, double *out)
{
    const struct kvd_attention *a = &c->a;
    const uint32_t keys = a->position + row + 1;
    const float *q = c->q + row * a->stride + (size_t)g * a->head_dim;
    double total = 0.0;
    memset(out, 0, a->head_dim * sizeof(*out));
    for (uint32_t i = 0; i < keys; i++) {
        const uint16_t *k = (const uint16_t *)(const void *)c->pages[i / a->tile_tokens] +
                            (size_t)(i % a->tile_tokens) * a->head_dim;
        const uint16_t *v = k + a->v_offset / 2;
        double score = 0.0;
        for (uint32_t d = 0; d < a->head_dim; d++) {
            score += (double)q[d] * (double)kvd_f16_to_f32(k[d]) / sqrt(a->head_dim);
        }
        const double w = exp(score);
        total += w;
        for (uint32_t d = 0; d < a->head_dim; d++) {
            out[d] += w * (double)kvd_f16_to_f32(v[d]);
        }
    }
    for (uint32_t d = 0; d < a->head_dim; d++) {
        out[d] /= total;
    }
}

void check_attention_error(void **state)
{
    (void)state;
    const struct kvd_kernels k = reference();
    struct check_rng rng = {7};
    const struct check_attention_size size = {64, 64, 3, 5, 300};
    struct check_attention c;
    check_attention_make(&rng, size, 3.0f, &c);
    k.attention(&c.a);
    double want[64];
    for (uint32_t r = 0; r < size.rows; r++) {
        for (uint32_t g = 0; g < size.group; g++) {
            attend_double(&c, r, g, want);
            const float *got = c.out + r * c.a.stride + (size_t)g * size.dim;
            assert_true(check_nmse(got, want, size.dim) < 1e-11);
        }
    }
    check_attention_free(&c);
}

void check_dequant(void **state)
{
    (void)state;
    struct check_rng rng = {8};
    for (int type = 0; type < KVD_WEIGHT_TYPES; type++) {
        enum { COLS = 96 };
        struct check_matrix w;
        float got[COLS];
        check_matrix_make(&rng, (enum kvd_weight_type)type, 1, COLS, false, &w);
        if (type == KVD_WEIGHT_Q4_1) {
            kvd_dequant_q4_1(w.blocks, COLS, got);
        } else {
            kvd_dequant_q8_0(w.blocks, COLS, got);
        }
        for (uint32_t i = 0; i < COLS; i++) {
            const double want = check_weight(&w, 0, i);
            assert_true(fabs((double)got[i] - want) <= 2e-7 * (fabs(want) + 0.1));
        }
        check_matrix_free(&w);
    }
}
