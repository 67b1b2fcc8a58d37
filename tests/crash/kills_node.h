/*
 * A real daemon on a store of its own, which can be killed and started again, and everything that
 * can be asked of it and of its files: `status` and `hitrate` through a client, segments on disk.
 */
#ifndef TESTS_CRASH_KILLS_NODE_H
#define TESTS_CRASH_KILLS_NODE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include <kvdepot/kvdepot.h>

#include "proc.h"

struct kills_node {
    char folder[256];
    char socket[300];
    char store[300];
    char nvme[320];
    char pool[512];
    const char *faults; /* of the next start: see fault_io.h. NULL: the daemon as it is shipped */
    const char *dram_cap;
    const char *nvme_cap;
    struct proc daemon;
    bool runs;
    struct kvd_client *asker; /* for reports */
};

void kills_node_init(struct kills_node *n, const char *dram_cap, const char *nvme_cap);
void kills_node_fini(struct kills_node *n); /* removes everything */

/* Starts the daemon; does not wait. */
void kills_node_start(struct kills_node *n, bool drop_dram);
/* Waits until it is ready, and connects for reports. */
void kills_node_ready(struct kills_node *n);
void kills_node_up(struct kills_node *n, bool drop_dram); /* both */
/* Waits for its end, some time; true: it has ended, by itself. */
bool kills_node_ended_in(struct kills_node *n, uint64_t ns);
void kills_node_kill(struct kills_node *n); /* SIGKILL, now, or it has killed itself */
void kills_node_stop(struct kills_node *n); /* SIGTERM; asserts that it ends well */

void kills_node_lose_index(struct kills_node *n); /* removes its folder; the daemon doesn't run */

/* ---- what it says ---- */

struct kills_status {
    uint64_t clients, leases;
    uint64_t dram_cap, dram_used, dram_staging, dram_blocks, dram_pinned, dram_evicted, dram_warm;
    uint64_t dram_by_scenario; /* sum */
    uint64_t nvme_cap, nvme_used, nvme_segments, nvme_blocks, nvme_queue, nvme_dropped, nvme_failed;
    uint64_t index_queued, corrupt;
    char health[256]; /* "ok", or a problem */
};
void kills_node_status(struct kills_node *n, struct kills_status *ret);
/* "dram_bytes" or "nvme_bytes" of a retention class. */
uint64_t kills_node_scenario_bytes(struct kills_node *n, const char *name, const char *key);
/* Waits until nothing is queued or pinned; alone: and all other clients are gone, with what they
 * held. */
void kills_node_settle(struct kills_node *n, bool alone, struct kills_status *ret);

/* Checks that asked = hit + missed in tokens, blocks and bytes, in every row and window, and, where
 * nobody looks up meanwhile, that the rows of each kind add up to all. Returns the look-ups ever.
 */
uint64_t kills_node_check_counts(struct kills_node *n, bool idle);

/* ---- its files ---- */

struct kills_files {
    uint64_t bytes;    /* each file's larger of size and blocks */
    uint32_t segments; /* files named as segments */
    uint32_t others;   /* files that should not be there */
};
void kills_node_files(const struct kills_node *n, struct kills_files *ret);

#endif
