/* Figures of a benchmark: see bench_stats.h. */
#include "tools/kvdepot/bench_stats.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/assert.h"

void kvd_bench_pairs_add(struct kvd_bench_pairs *pairs, double ours, double limit)
{
    if (pairs->n < KVD_BENCH_PAIRS_MAX) {
        pairs->ours[pairs->n] = ours;
        pairs->limit[pairs->n] = limit;
        pairs->n++;
    }
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

double kvd_bench_median(const double *values, int n)
{
    double sorted[KVD_BENCH_PAIRS_MAX];
    KVD_ASSERT(n > 0 && n <= KVD_BENCH_PAIRS_MAX);
    memcpy(sorted, values, (size_t)n * sizeof(*values));
    qsort(sorted, (size_t)n, sizeof(*sorted), compare);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

double kvd_bench_ratio(const struct kvd_bench_pairs *pairs)
{
    double ratios[KVD_BENCH_PAIRS_MAX];
    for (int i = 0; i < pairs->n; i++) {
        ratios[i] = pairs->limit[i] / pairs->ours[i];
    }
    return kvd_bench_median(ratios, pairs->n);
}

double kvd_bench_difference(const struct kvd_bench_pairs *pairs)
{
    double differences[KVD_BENCH_PAIRS_MAX];
    for (int i = 0; i < pairs->n; i++) {
        differences[i] = pairs->ours[i] - pairs->limit[i];
    }
    return kvd_bench_median(differences, pairs->n);
}
