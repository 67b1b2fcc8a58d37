#include "kills_node.h"

#include <fnmatch.h>
#include <ftw.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "kvd_test.h"
#include "proto/base/clock.h"

enum { SETTLE_S = 60, ANSWER_MS = 20000 };
#define ROOMY_SHM (UINT64_C(1) << 30)

/* On tmpfs, as in life, where there is enough of it. */
static void pool_path(struct kills_node *n)
{
    struct statvfs fs;
    bool shm = access("/dev/shm", W_OK) == 0 && statvfs("/dev/shm", &fs) == 0 &&
               (uint64_t)fs.f_blocks * fs.f_frsize >= ROOMY_SHM;
    const char *name = strrchr(n->folder, '/');
    (void)snprintf(n->pool, sizeof(n->pool), "%s%s.pool", shm ? "/dev/shm" : n->folder, name);
}

void kills_node_init(struct kills_node *n, const char *dram_cap, const char *nvme_cap)
{
    memset(n, 0, sizeof(*n));
    proc_folder(n->folder, sizeof(n->folder));
    (void)snprintf(n->socket, sizeof(n->socket), "%s/s", n->folder);
    (void)snprintf(n->store, sizeof(n->store), "%s/store", n->folder);
    (void)snprintf(n->nvme, sizeof(n->nvme), "%s/nvme", n->store);
    pool_path(n);
    n->dram_cap = dram_cap;
    n->nvme_cap = nvme_cap;
}

void kills_node_fini(struct kills_node *n)
{
    kvd_client_close(&n->asker);
    if (n->runs) {
        (void)proc_end(&n->daemon, SIGKILL);
    }
    (void)unlink(n->pool);
    proc_remove_folder(n->folder);
}

/* ---- life ---- */

void kills_node_start(struct kills_node *n, bool drop_dram)
{
    const char *const argv[] = {
        proc_program(n->faults ? "tests/crash/kvdepotd-faults" : "cachesvc/kvdepotd"),
        "--dir",
        n->store,
        "--socket",
        n->socket,
        "--dram.path",
        n->pool,
        "--dram.cap",
        n->dram_cap,
        "--nvme.cap",
        n->nvme_cap,
        drop_dram ? "--drop-dram" : NULL,
        NULL};
    if (n->faults) {
        assert_int_equal(setenv("KVD_FAULTS", n->faults, 1), 0);
    } else {
        (void)unsetenv("KVD_FAULTS");
    }
    proc_start(&n->daemon, argv);
    n->runs = true;
}

void kills_node_ready(struct kills_node *n)
{
    struct kvd_client_options options;
    proc_expect(&n->daemon, "ready");
    kvd_client_close(&n->asker);
    kvd_client_options_init(&options);
    options.socket_path = n->socket;
    options.program = "kills asker";
    options.connect_ms = options.match_ms = options.io_ms = ANSWER_MS;
    assert_int_equal(kvd_client_open(&options, &n->asker), 0);
    assert_true(kvd_client_connected(n->asker));
}

void kills_node_up(struct kills_node *n, bool drop_dram)
{
    kills_node_start(n, drop_dram);
    kills_node_ready(n);
}

bool kills_node_ended_in(struct kills_node *n, uint64_t ns)
{
    uint64_t deadline = kvd_mono_ns() + ns;
    struct pollfd pfd = {.fd = n->daemon.fd, .events = 0}; /* POLLHUP is always told */
    return poll(&pfd, 1, kvd_deadline_poll_ms(deadline)) > 0;
}

void kills_node_kill(struct kills_node *n)
{
    kvd_client_close(&n->asker);
    int status = proc_end(&n->daemon, SIGKILL);
    n->runs = false;
    if (status != 128 + SIGKILL) {
        fail_msg("the daemon ended by itself with %d: %s", status, n->daemon.output);
    }
}

void kills_node_stop(struct kills_node *n)
{
    kvd_client_close(&n->asker);
    int status = proc_end(&n->daemon, SIGTERM);
    n->runs = false;
    if (status != 0) {
        fail_msg("the daemon stopped with %d: %s", status, n->daemon.output);
    }
}

void kills_node_lose_index(struct kills_node *n)
{
    char path[320];
    (void)snprintf(path, sizeof(path), "%s/index", n->store);
    proc_remove_folder(path);
    assert_int_not_equal(access(path, F_OK), 0);
}

/* ---- reports ---- */

static json_t *report(struct kills_node *n, const char *what, const char *by, const char *window)
{
    char *text = NULL;
    int err = kvd_report(n->asker, what, by, window, &text);
    if (err) {
        /* it may have ended: then its output says why */
        fail_msg("report %s: %s", what, kvd_status_text(err));
    }
    json_t *root = json_loads(text, 0, NULL);
    free(text);
    assert_non_null(root);
    return root;
}

static uint64_t number(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    if (!json_is_integer(v) || json_integer_value(v) < 0) {
        fail_msg("%s is not a number of the report, or below 0", key);
    }
    return (uint64_t)json_integer_value(v);
}

static void tiers_of(const json_t *root, struct kills_status *ret)
{
    const json_t *dram = json_array_get(json_object_get(root, "tiers"), 0);
    const json_t *nvme = json_array_get(json_object_get(root, "tiers"), 1);
    ret->dram_cap = number(dram, "cap_bytes");
    ret->dram_used = number(dram, "used_bytes");
    ret->dram_staging = number(dram, "staging_bytes");
    ret->dram_blocks = number(dram, "blocks");
    ret->dram_pinned = number(dram, "pinned_bytes");
    ret->dram_evicted = number(dram, "evicted_blocks");
    ret->dram_warm = number(dram, "warm_blocks");
    ret->nvme_cap = number(nvme, "cap_bytes");
    ret->nvme_used = number(nvme, "used_bytes");
    ret->nvme_segments = number(nvme, "segments");
    ret->nvme_blocks = number(nvme, "blocks");
    ret->nvme_queue = number(nvme, "queue_bytes");
    ret->nvme_dropped = number(nvme, "dropped_blocks");
    ret->nvme_failed = number(nvme, "failed_writes");
}

/* Not what this machine may be like: a slow disk, a file system without direct I/O. */
static bool is_fault(const char *problem)
{
    return !strstr(problem, "were not written down below dram") &&
           strncmp(problem, "nvme: ok", 8) != 0;
}

void kills_node_status(struct kills_node *n, struct kills_status *ret)
{
    json_t *root = report(n, "status", NULL, NULL);
    size_t i;
    json_t *v;
    memset(ret, 0, sizeof(*ret));
    ret->clients = number(root, "clients");
    ret->leases = number(root, "leases");
    ret->corrupt = number(root, "corrupt");
    ret->index_queued = number(json_object_get(root, "index"), "queued");
    tiers_of(root, ret);
    json_array_foreach(json_object_get(root, "scenarios"), i, v)
    {
        ret->dram_by_scenario += number(v, "dram_bytes");
    }
    (void)snprintf(ret->health, sizeof(ret->health), "ok");
    json_array_foreach(json_object_get(root, "problems"), i, v)
    {
        if (is_fault(json_string_value(v))) {
            (void)snprintf(ret->health, sizeof(ret->health), "%s", json_string_value(v));
        }
    }
    json_decref(root);
}

uint64_t kills_node_scenario_bytes(struct kills_node *n, const char *name, const char *key)
{
    json_t *root = report(n, "status", NULL, NULL);
    uint64_t bytes = UINT64_MAX;
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(root, "scenarios"), i, v)
    {
        if (strcmp(json_string_value(json_object_get(v, "name")), name) == 0) {
            bytes = number(v, key);
        }
    }
    json_decref(root);
    return bytes;
}

void kills_node_settle(struct kills_node *n, bool alone, struct kills_status *ret)
{
    uint64_t deadline = kvd_mono_ns() + SETTLE_S * KVD_NS_PER_S;
    kills_node_status(n, ret);
    while (ret->nvme_queue || ret->index_queued || ret->dram_pinned ||
           (alone && (ret->clients > 1 || ret->leases || ret->dram_staging))) {
        if (kvd_mono_ns() > deadline) {
            fail_msg("after %d s still %llu bytes queued, %llu pinned, %llu in staging, %llu "
                     "changes queued, %llu clients, %llu leases",
                     SETTLE_S, (unsigned long long)ret->nvme_queue,
                     (unsigned long long)ret->dram_pinned, (unsigned long long)ret->dram_staging,
                     (unsigned long long)ret->index_queued, (unsigned long long)ret->clients,
                     (unsigned long long)ret->leases);
        }
        (void)sched_yield();
        kills_node_status(n, ret);
    }
}

/* ---- counters ---- */

enum { UNITS = 3 };
static const char *const units[UNITS] = {"tokens", "blocks", "bytes"};

struct sums {
    uint64_t lookups;
    uint64_t asked[UNITS];
    uint64_t parts[UNITS];
};

static void add_parts(const json_t *parts, struct sums *to)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)parts, key, v)
    {
        for (int u = 0; u < UNITS; u++) {
            to->parts[u] += number(v, units[u]);
        }
    }
}

/* One row, checked, added to the sums of its table. */
static void add_row(const json_t *row, const char *by, const char *window, struct sums *table)
{
    struct sums s = {.lookups = number(row, "lookups")};
    add_parts(json_object_get(row, "hit"), &s);
    add_parts(json_object_get(row, "missed"), &s);
    for (int u = 0; u < UNITS; u++) {
        s.asked[u] = number(json_object_get(row, "asked"), units[u]);
        if (s.asked[u] != s.parts[u]) {
            fail_msg("hitrate by '%s' in %s, row '%s': %llu %s asked, %llu hit and missed", by,
                     window, json_string_value(json_object_get(row, "name")),
                     (unsigned long long)s.asked[u], units[u], (unsigned long long)s.parts[u]);
        }
        table->asked[u] += s.asked[u];
        table->parts[u] += s.parts[u];
    }
    table->lookups += s.lookups;
}

static struct sums table_sums(struct kills_node *n, const char *by, const char *window)
{
    struct sums table = {0};
    json_t *root = report(n, "hitrate", by, window);
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(root, "rows"), i, row)
    {
        add_row(row, by, window, &table);
    }
    json_decref(root);
    return table;
}

uint64_t kills_node_check_counts(struct kills_node *n, bool idle)
{
    static const char *const windows[] = {"10s", "1m", "5m", "1h", "24h", "ever"};
    static const char *const tables[] = {"scenario", "space", "tenant"};
    uint64_t lookups = 0;
    for (size_t w = 0; w < sizeof(windows) / sizeof(windows[0]); w++) {
        struct sums all = table_sums(n, "", windows[w]);
        lookups = all.lookups;
        /* a window of seconds may move between two questions */
        bool same = idle && w + 1 == sizeof(windows) / sizeof(windows[0]);
        for (size_t t = 0; t < sizeof(tables) / sizeof(tables[0]); t++) {
            struct sums sums = table_sums(n, tables[t], windows[w]);
            if (same && memcmp(&sums, &all, sizeof(all)) != 0) {
                fail_msg("hitrate by %s: the rows add up to %llu look-ups and %llu tokens, all to "
                         "%llu and %llu",
                         tables[t], (unsigned long long)sums.lookups,
                         (unsigned long long)sums.asked[0], (unsigned long long)all.lookups,
                         (unsigned long long)all.asked[0]);
            }
        }
    }
    return lookups;
}

/* ---- files ---- */

static struct kills_files walked; /* nftw takes no pointer of ours */

static int walk_file(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    const char *name = path + ftw->base;
    if (flag != FTW_F) {
        return 0;
    }
    if (fnmatch("*.seg", name, 0) == 0) {
        uint64_t blocks = (uint64_t)st->st_blocks * 512;
        walked.segments++;
        walked.bytes += (uint64_t)st->st_size > blocks ? (uint64_t)st->st_size : blocks;
    } else if (fnmatch("IDENTITY*", name, 0) != 0 && strcmp(name, "LOCK") != 0) {
        walked.others++;
    }
    return 0;
}

void kills_node_files(const struct kills_node *n, struct kills_files *ret)
{
    memset(&walked, 0, sizeof(walked));
    (void)nftw(n->nvme, walk_file, 16, FTW_PHYS); /* not there before the first start: nothing */
    *ret = walked;
}
