/*
 * Figures of a benchmark: pairs of one measurement and its limit, taken in turns, so that a machine
 * that changes speed changes both. The result is the median of the pairs' ratios, never one
 * absolute number.
 */
#ifndef TOOLS_KVDEPOT_BENCH_STATS_H
#define TOOLS_KVDEPOT_BENCH_STATS_H

enum { KVD_BENCH_PAIRS_MAX = 101 };

struct kvd_bench_pairs {
    int n;
    double ours[KVD_BENCH_PAIRS_MAX];  /* seconds */
    double limit[KVD_BENCH_PAIRS_MAX]; /* seconds; the same work without a cache in the way */
};

/* Adds a pair; a full set drops it. */
void kvd_bench_pairs_add(struct kvd_bench_pairs *pairs, double ours, double limit);

double kvd_bench_median(const double *values, int n); /* n from 1 to KVD_BENCH_PAIRS_MAX */

/* Median of limit / ours: 1.0 is as fast as the limit. */
double kvd_bench_ratio(const struct kvd_bench_pairs *pairs);

/* Median of ours - limit, in seconds. */
double kvd_bench_difference(const struct kvd_bench_pairs *pairs);

#endif
