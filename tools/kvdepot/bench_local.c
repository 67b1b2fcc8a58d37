/* The measurements of `kvdepot bench local`: see bench_local.h. */
#include "tools/kvdepot/bench_local.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>

#include "proto/base/cleanup.h"
#include "proto/base/clock.h"
#include "tools/kvdepot/bench_disk.h"
#include "tools/kvdepot/bench_set.h"

enum {
    BATCH = 64,          /* records of a batch */
    MATCH_BLOCKS = 1024, /* of the long look-up */
    MATCH_PAIRS = 51,    /* it is short, so there are more of them */
    DISK_DEPTH = 16,
    RECORD_HEADER = 4096,
};

/* 30 x 2 x 3 x 64 x f16 x 64 tokens = 1,474,560 B, the small model of the demo; and 1 MiB. */
static const struct kvd_bench_geometry model_records = {"bench-model", 30, 3, 64, BATCH};
static const struct kvd_bench_geometry mib_records = {"bench-1mib", 16, 4, 64, BATCH};
static const struct kvd_bench_geometry small_records = {"bench-small", 1, 1, 8, MATCH_BLOCKS};

struct bench {
    struct kvd_bench_daemon *daemon;
    int rounds;
    struct kvd_bench_report *report;
    struct kvd_diag *diag;
};

static double seconds_since(uint64_t start)
{
    return (double)(kvd_mono_ns() - start) / (double)KVD_NS_PER_S;
}

static bool stop_is_wanted(void)
{
    sigset_t pending;
    return sigpending(&pending) == 0 &&
           (sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1);
}

static struct kvd_bench_result *result_add(struct bench *bench, const char *path,
                                           const char *against, enum kvd_bench_kind kind,
                                           double goal)
{
    struct kvd_bench_result *result = &bench->report->results[bench->report->n++];
    *result =
        (struct kvd_bench_result){.path = path, .against = against, .kind = kind, .goal = goal};
    (void)fprintf(stderr, "measuring: %s\n", path);
    return result;
}

/* Takes one pair: `ours` and `limit` in turns, which of them first changes from pair to pair. */
static int pair_take(struct kvd_bench_result *result, int round, int (*ours)(void *),
                     int (*limit)(void *), void *user)
{
    double took[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        int which = (round + i) % 2;
        uint64_t start = kvd_mono_ns();
        int err = which == 0 ? ours(user) : limit(user);
        took[which] = seconds_since(start);
        if (err) {
            return err;
        }
    }
    kvd_bench_pairs_add(&result->pairs, took[0], took[1]);
    return stop_is_wanted() ? -EINTR : 0;
}

struct memory_work {
    struct kvd_bench_set *set;
    struct kvd_diag *diag;
};

static int work_hit(void *user)
{
    struct memory_work *work = user;
    return kvd_bench_set_load(work->set, KVD_IN_DRAM, work->diag);
}

static int work_place(void *user)
{
    struct memory_work *work = user;
    return kvd_bench_set_place(work->set, work->diag);
}

static int work_put(void *user)
{
    struct memory_work *work = user;
    return kvd_bench_set_put(work->set, work->diag);
}

static int work_copy(void *user)
{
    struct memory_work *work = user;
    kvd_bench_set_copy(work->set);
    return 0;
}

/* A hit of BATCH records in dram, against memcpy of as many bytes. */
static int measure_hit(struct bench *bench, struct kvd_bench_set *set, const char *path)
{
    struct memory_work work = {set, bench->diag};
    struct kvd_bench_result *result = result_add(bench, path, "memcpy", KVD_BENCH_RATIO, 0.9);
    kvd_bench_set_chain(set, 1);
    int err = kvd_bench_set_put(set, bench->diag);
    err = err ? err : kvd_bench_set_settle(set, bench->diag);
    err = err ? err : work_hit(&work); /* not counted: the first one maps the pool's pages */
    err = err ? err : kvd_bench_set_verify(set, bench->diag);
    for (int round = 0; round < bench->rounds && !err; round++) {
        err = pair_take(result, round, work_hit, work_copy, &work);
    }
    return err;
}

/* The same hit without the copy: what a caller gains that can read the pool itself. It has no goal
 * of its own. Comes after measure_hit, whose chain it takes. */
static int measure_place(struct bench *bench, struct kvd_bench_set *set, const char *path)
{
    struct memory_work work = {set, bench->diag};
    struct kvd_bench_result *result = result_add(bench, path, "memcpy", KVD_BENCH_RATIO, 0);
    int err = work_place(&work);
    for (int round = 0; round < bench->rounds && !err; round++) {
        err = pair_take(result, round, work_place, work_copy, &work);
    }
    return err;
}

/* Fills the pool with chains from `number` on that nobody asks for again: from then on it evicts,
 * and its pages have been touched before. */
static int pool_fill(struct bench *bench, struct kvd_bench_set *set, uint32_t number)
{
    uint64_t chain_bytes = set->n_blocks * set->block_bytes;
    int err = 0;
    for (uint64_t filled = 0; filled <= KVD_BENCH_DRAM_BYTES && !err; filled += chain_bytes) {
        kvd_bench_set_chain(set, number++);
        err = kvd_bench_set_put(set, bench->diag);
        err = err ? err : kvd_bench_set_settle(set, bench->diag);
    }
    return err;
}

/* Puts of BATCH new records, against memcpy. Writing down goes on behind; the next pair waits until
 * it is done, so that every pair starts alike. */
static int measure_put(struct bench *bench, struct kvd_bench_set *set, const char *path)
{
    struct memory_work work = {set, bench->diag};
    struct kvd_bench_result *result = result_add(bench, path, "memcpy", KVD_BENCH_RATIO, 0.6);
    int err = pool_fill(bench, set, 1000);
    for (int round = 0; round < bench->rounds && !err; round++) {
        kvd_bench_set_chain(set, 101 + (uint32_t)round);
        err = kvd_bench_set_settle(set, bench->diag);
        err = err ? err : pair_take(result, round, work_put, work_copy, &work);
    }
    return err ? err : kvd_bench_set_settle(set, bench->diag);
}

static int measure_memory(struct bench *bench, const struct kvd_bench_geometry *geometry,
                          const char *hit_path, const char *place_path, const char *put_path)
{
    struct kvd_bench_set set;
    int err =
        kvd_bench_set_open(kvd_bench_daemon_socket(bench->daemon), geometry, &set, bench->diag);
    if (err) {
        return err;
    }
    err = measure_hit(bench, &set, hit_path);
    err = err ? err : measure_place(bench, &set, place_path);
    err = err ? err : measure_put(bench, &set, put_path);
    kvd_bench_set_close(&set);
    return err;
}

static int work_match(void *user)
{
    struct memory_work *work = user;
    struct kvd_match_result match = {0};
    int err = kvd_match(work->set->space, &work->set->prompt, &match);
    kvd_lease_release(&match.lease);
    if (err) {
        return kvd_fail(work->diag, err, "match: %s", kvd_client_message(work->set->client));
    }
    if (match.hit_blocks != MATCH_BLOCKS) {
        return kvd_fail(work->diag, -KVD_E_NOT_FOUND, "match: the daemon has %u of %u blocks",
                        match.hit_blocks, MATCH_BLOCKS);
    }
    return 0;
}

static int work_ping(void *user)
{
    struct memory_work *work = user;
    int err = kvd_ping(work->set->client);
    return err ? kvd_fail(work->diag, err, "ping: %s", kvd_client_message(work->set->client)) : 0;
}

/* The longest look-up that matters, all resident, against one round trip. */
static int measure_match(struct bench *bench)
{
    struct kvd_bench_set set;
    int err = kvd_bench_set_open(kvd_bench_daemon_socket(bench->daemon), &small_records, &set,
                                 bench->diag);
    if (err) {
        return err;
    }
    struct memory_work work = {&set, bench->diag};
    struct kvd_bench_result *result =
        result_add(bench, "match of 1,024 blocks in dram", "ping", KVD_BENCH_DIFFERENCE, 150e-6);
    kvd_bench_set_chain(&set, 1);
    err = kvd_bench_set_put(&set, bench->diag);
    err = err ? err : kvd_bench_set_settle(&set, bench->diag);
    err = err ? err : work_match(&work);
    for (int round = 0; round < MATCH_PAIRS && !err; round++) {
        err = pair_take(result, round, work_match, work_ping, &work);
    }
    kvd_bench_set_close(&set);
    return err;
}

/* One pair of the disk: the daemon's hit, and the disk's own reading of as many bytes. */
static int disk_pair(struct bench *bench, struct kvd_bench_set *set, const char *file, bool fio,
                     struct kvd_bench_result *result)
{
    double limit = 0;
    uint64_t record = set->block_bytes + RECORD_HEADER;
    int err = fio ? kvd_bench_disk_fio(file, record, BATCH, DISK_DEPTH, &limit, bench->diag)
                  : kvd_bench_disk_read(file, record, BATCH, DISK_DEPTH, &limit, bench->diag);
    if (err) {
        return err;
    }
    uint64_t start = kvd_mono_ns();
    err = kvd_bench_set_load(set, KVD_IN_NVME, bench->diag);
    if (err) {
        return err;
    }
    kvd_bench_pairs_add(&result->pairs, seconds_since(start), limit);
    return stop_is_wanted() ? -EINTR : kvd_bench_set_verify(set, bench->diag);
}

static int disk_fill(struct bench *bench, struct kvd_bench_set *set)
{
    int err = 0;
    for (int round = 0; round < bench->rounds && !err; round++) {
        kvd_bench_set_chain(set, 500 + (uint32_t)round);
        err = kvd_bench_set_put(set, bench->diag);
        err = err ? err : kvd_bench_set_settle(set, bench->diag);
    }
    return err;
}

/* Hits of records that are on disk only: each chain is read once, because a hit brings it up. */
static int measure_nvme(struct bench *bench)
{
    bool fio = kvd_bench_disk_has_fio();
    struct kvd_bench_set set;
    const char *socket_path = kvd_bench_daemon_socket(bench->daemon);
    struct kvd_bench_result *result =
        result_add(bench, "nvme hit, 64 records of 1.4 MiB",
                   fio ? "fio, same bytes, depth 16" : "O_DIRECT reads, same bytes, 16 threads",
                   KVD_BENCH_RATIO, 0.9);
    int err = kvd_bench_set_open(socket_path, &model_records, &set, bench->diag);
    if (err) {
        return err;
    }
    err = disk_fill(bench, &set);
    kvd_bench_set_close(&set);
    err = err ? err : kvd_bench_daemon_stop(bench->daemon, bench->diag);
    err = err ? err : kvd_bench_daemon_start(bench->daemon, true, bench->diag);
    err = err ? err : kvd_bench_set_open(socket_path, &model_records, &set, bench->diag);
    if (err) {
        return err;
    }
    KVD_AUTOFREE char *file = NULL;
    err = kvd_bench_disk_largest(kvd_bench_daemon_nvme(bench->daemon), &file);
    if (err) {
        (void)kvd_fail(bench->diag, err, "the daemon wrote no segment");
    }
    err = err ? err : pool_fill(bench, &set, 2000);
    for (int round = 0; round < bench->rounds && !err; round++) {
        kvd_bench_set_chain(&set, 500 + (uint32_t)round);
        err = disk_pair(bench, &set, file, fio, result);
    }
    kvd_bench_set_close(&set);
    return err;
}

int kvd_bench_local(struct kvd_bench_daemon *daemon, int rounds, struct kvd_bench_report *report,
                    struct kvd_diag *diag)
{
    struct bench bench = {daemon, rounds, report, diag};
    int err = kvd_bench_daemon_start(daemon, false, diag);
    err = err ? err
              : measure_memory(&bench, &model_records, "dram hit, 64 records of 1.4 MiB",
                               "the same in place, without the copy", "put, 64 records of 1.4 MiB");
    err = err ? err
              : measure_memory(&bench, &mib_records, "dram hit, 64 records of 1 MiB",
                               "the same in place, without the copy", "put, 64 records of 1 MiB");
    err = err ? err : measure_match(&bench);
    err = err ? err : measure_nvme(&bench);
    return err ? err : kvd_bench_daemon_stop(daemon, diag);
}
