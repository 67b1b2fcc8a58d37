/*
 * A daemon of the benchmark's own, on a store of its own in a fresh folder that goes away with it.
 */
#ifndef TOOLS_KVDEPOT_BENCH_DAEMON_H
#define TOOLS_KVDEPOT_BENCH_DAEMON_H

#include <stdbool.h>

#include "proto/base/error.h"

struct kvd_bench_daemon;

/* Small enough to be filled in a moment: a pool that is full, and evicts, is what is measured. */
enum { KVD_BENCH_DRAM_BYTES = 512 << 20 };
#define KVD_BENCH_DRAM_CAP "--dram.cap=512MiB"

/* Makes a folder under `parent` for a store; `program` is kvdepotd. Both are copied. Starts
 * nothing. */
int kvd_bench_daemon_create(const char *program, const char *parent,
                            struct kvd_bench_daemon **ret_daemon, struct kvd_diag *diag);

/* Stops the daemon if it runs, and removes folder and pool. Accepts NULL and a pointer to NULL. */
void kvd_bench_daemon_destroy(struct kvd_bench_daemon **daemon);

/* Starts it and waits until it answers, at most 20 s. -KVD_E_UNAVAILABLE with the last lines of its
 * log. */
int kvd_bench_daemon_start(struct kvd_bench_daemon *daemon, bool drop_dram, struct kvd_diag *diag);

/* SIGTERM, then waits until it ended, at most 20 s; then SIGKILL, which is a failure. */
int kvd_bench_daemon_stop(struct kvd_bench_daemon *daemon, struct kvd_diag *diag);

const char *kvd_bench_daemon_socket(const struct kvd_bench_daemon *daemon);
const char *
kvd_bench_daemon_nvme(const struct kvd_bench_daemon *daemon); /* folder of its segments */

#endif
