/*
 * Speed of each version, best of several runs, on shapes of SmolLM2-135M. Sums of products in GMAC
 * a second; bytes of weights or KV read in GB a second. Beside them what the core can do at most:
 * reading the same bytes, and fma on registers.
 */
#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "proto/base/clock.h"

enum { REPEATS = 9 };

typedef void bench_fn(const struct kvd_kernels *k, void *user);

/* Seconds of the fastest run. */
static double best(const struct kvd_kernels *k, bench_fn *fn, void *user)
{
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < REPEATS; i++) {
        const uint64_t start = kvd_mono_ns();
        fn(k, user);
        const uint64_t took = kvd_mono_ns() - start;
        least = took < least ? took : least;
    }
    return (double)least * 1e-9;
}

struct product {
    struct check_matrix w;
    struct kvd_qrows q;
    float *out;
    uint32_t n;
};

static void run_product(const struct kvd_kernels *k, void *user)
{
    const struct product *p = user;
    k->matmul[p->w.m.type](&p->w.m, 0, p->w.m.panels, &p->q, p->n, p->out, p->w.m.rows);
}

static void bench_product(const struct kvd_kernels *k, enum kvd_weight_type type, uint32_t rows,
                          uint32_t cols, uint32_t n)
{
    struct check_rng rng = {1};
    struct product p = {.n = n, .q = check_qrows(n, cols)};
    check_matrix_make(&rng, type, rows, cols, false, &p.w);
    float *x = check_alloc((size_t)n * cols * sizeof(float));
    check_fill(&rng, CHECK_NORMAL, x, (size_t)n * cols);
    check_quantise(k, x, n, &p.q);
    p.out = check_alloc((size_t)n * rows * sizeof(float));
    const double s = best(k, run_product, &p);
    (void)printf("%-5s %s %5u x %4u, %3u rows: %8.1f GMAC/s %7.2f GB/s\n", k->name,
                 type == KVD_WEIGHT_Q4_1 ? "q4_1" : "q8_0", rows, cols, n,
                 (double)rows * cols * n / s * 1e-9, (double)kvd_matrix_bytes(&p.w.m) / s * 1e-9);
    check_qrows_free(&p.q);
    check_matrix_free(&p.w);
    free(x);
    free(p.out);
}

static void run_attention(const struct kvd_kernels *k, void *user)
{
    k->attention(user);
}

static void bench_attention(const struct kvd_kernels *k, uint32_t rows, uint32_t position)
{
    struct check_rng rng = {2};
    const struct check_attention_size size = {64, 64, 3, rows, position};
    struct check_attention c;
    check_attention_make(&rng, size, 1.0f, &c);
    const double s = best(k, run_attention, &c.a);
    const double keys = (double)position + (double)(rows + 1) / 2;
    (void)printf("%-5s attention of 3 heads, %2u rows at %4u: %8.1f GMAC/s %7.2f GB/s\n", k->name,
                 rows, position, keys * 64 * 2 * 3 * rows / s * 1e-9, keys * 256 / s * 1e-9);
    check_attention_free(&c);
}

struct row {
    float *x;
    float *y;
    struct kvd_qrows q;
};

static void run_quantise(const struct kvd_kernels *k, void *user)
{
    const struct row *r = user;
    k->quantise(r->x, &r->q);
}

static void run_silu(const struct kvd_kernels *k, void *user)
{
    const struct row *r = user;
    k->silu_mul(r->x, r->y, r->q.cols);
}

static void run_norm(const struct kvd_kernels *k, void *user)
{
    const struct row *r = user;
    k->rmsnorm(r->x, r->y, r->q.cols, 1e-5f, r->x);
}

static void bench_rows(const struct kvd_kernels *k)
{
    enum { N = 1536 };
    struct check_rng rng = {3};
    struct row r = {check_alloc(N * sizeof(float)), check_alloc(N * sizeof(float)),
                    check_qrows(1, N)};
    const struct {
        const char *name;
        bench_fn *fn;
    } ops[] = {{"quantise", run_quantise}, {"silu_mul", run_silu}, {"rmsnorm", run_norm}};
    check_fill(&rng, CHECK_NORMAL, r.y, N);
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        check_fill(&rng, CHECK_NORMAL, r.x, N);
        (void)printf("%-5s %s of %d: %8.2f G elements/s\n", k->name, ops[i].name, N,
                     N / best(k, ops[i].fn, &r) * 1e-9);
    }
    free(r.x);
    free(r.y);
    check_qrows_free(&r.q);
}

int check_bench(void)
{
    for (const char *const *name = kvd_kernels_names(); *name; name++) {
        struct kvd_kernels k;
        if (kvd_kernels_select(*name, &k) < 0) {
            continue;
        }
        bench_product(&k, KVD_WEIGHT_Q4_1, 576, 576, 1);
        bench_product(&k, KVD_WEIGHT_Q4_1, 1536, 576, 1);
        bench_product(&k, KVD_WEIGHT_Q4_1, 1536, 576, 4);
        bench_product(&k, KVD_WEIGHT_Q4_1, 1536, 576, 64);
        bench_product(&k, KVD_WEIGHT_Q4_1, 576, 1536, 64);
        bench_product(&k, KVD_WEIGHT_Q8_0, 8192, 576, 1);
        bench_product(&k, KVD_WEIGHT_Q8_0, 8192, 576, 4);
        bench_attention(&k, 1, 1023);
        bench_attention(&k, 16, 1008);
        bench_rows(&k);
    }
    return 0;
}
