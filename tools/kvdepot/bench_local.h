/*
 * The measurements of `kvdepot bench local`, each beside its limit.
 */
#ifndef TOOLS_KVDEPOT_BENCH_LOCAL_H
#define TOOLS_KVDEPOT_BENCH_LOCAL_H

#include "proto/base/error.h"
#include "tools/kvdepot/bench_daemon.h"
#include "tools/kvdepot/bench_stats.h"

enum kvd_bench_kind {
    KVD_BENCH_RATIO,      /* limit / ours; more is better */
    KVD_BENCH_DIFFERENCE, /* ours - limit; less is better */
};

struct kvd_bench_result {
    const char *path;    /* what was measured */
    const char *against; /* its limit */
    enum kvd_bench_kind kind;
    double goal; /* a ratio, or seconds; 0: none, it is only told */
    struct kvd_bench_pairs pairs;
};

enum { KVD_BENCH_RESULTS_MAX = 8 };

struct kvd_bench_report {
    int n;
    struct kvd_bench_result results[KVD_BENCH_RESULTS_MAX];
};

/* Runs all of them, `rounds` pairs each, with the daemon that was created and not started. Says on
 * standard error what it is doing. -EINTR when SIGINT or SIGTERM is pending (they are blocked by
 * the caller). */
int kvd_bench_local(struct kvd_bench_daemon *daemon, int rounds, struct kvd_bench_report *report,
                    struct kvd_diag *diag);

#endif
