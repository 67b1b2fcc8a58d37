/*
 * The service: what the daemon does, without sockets. It owns one of each: identity, index, pool,
 * tiers, I/O engine, counting, workers. local/ calls it for each client's message.
 *
 * A session stands for one connected client: its leases, its puts, its staging areas. Ending a
 * session releases all.
 *
 * Threads. match, put_begin, release, touch: any thread, short, no device I/O. load, put_commit,
 * drop and purge are queued to workers; their callback runs on a worker thread (or on the caller's,
 * when there is nothing to wait for), exactly once, also when the session has ended meanwhile. One
 * session's calls may come from one thread only, the door's.
 */
#ifndef CACHESVC_CORE_SERVICE_H
#define CACHESVC_CORE_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/format/segment.h"
#include "proto/keys/keys.h"
#include "proto/wire/wire.h"

struct kvd_config;
struct kvd_service;
struct kvd_session;

/* Opens the store of a configuration: identity, index, pool, tiers; recovers. drop_dram: start with
 * an empty pool. */
int kvd_service_open(const struct kvd_config *config, bool drop_dram, struct kvd_log *log,
                     struct kvd_diag *diag, struct kvd_service **ret);

/* Writes down what is queued, flushes, closes. All sessions have ended.
 * -KVD_E_DEADLINE: a device has not answered within stop.patience. Then the service stays, half
 * closed and good for nothing: end the process, without its exit handlers, or close again. Accepts
 * a pointer to NULL. */
int kvd_service_close(struct kvd_service **service);

struct kvd_store_id kvd_service_store_id(const struct kvd_service *service);
int kvd_service_pool_fd(struct kvd_service *service); /* read-only; the service's */
uint64_t kvd_service_pool_bytes(struct kvd_service *service);

/* -KVD_E_OVER_QUOTA: client.max reached. */
int kvd_session_open(struct kvd_service *service, struct kvd_session **ret);
/* Who it is, for people: named in alarms. */
void kvd_session_name(struct kvd_session *session, const char *name);
void kvd_session_end(struct kvd_session **session); /* accepts NULL and a pointer to NULL */

struct kvd_space_opened {
    uint32_t handle; /* within the session */
    struct kvd_digest space;
    int staging_fd; /* the session's: sealed memfd, read-write; -1 where there is no room for it */
    uint64_t staging_bytes;
    uint32_t staging_slots;
    uint64_t slot_bytes;
};
/* Registers a space (checked already) and makes its staging area. -KVD_E_CONTRADICTION,
 * -KVD_E_OVER_QUOTA, -ENOMEM. Opening the
 * same space again returns the same handle. */
int kvd_service_space_open(struct kvd_session *session, const struct kvd_space_desc *desc,
                           struct kvd_diag *diag, struct kvd_space_opened *ret);

/* Whose blocks. tokens are the service's own copy already: the door copies them out of the request
 * area first. */
struct kvd_prompt_ref {
    uint32_t space_handle;
    uint32_t rank;
    const char *tenant; /* not terminated */
    uint32_t tenant_bytes;
    const struct kvd_digest *extra; /* or NULL */
    const char *scenario;
    const uint32_t *tokens;
    uint32_t n_tokens;
};

struct kvd_match_out {
    uint64_t lease; /* 0: nothing matched */
    uint32_t asked_blocks;
    uint32_t hit_blocks;
};
/* results has (n_tokens - 1) / block_tokens rows (private memory of the caller). */
int kvd_service_match(struct kvd_session *session, const struct kvd_prompt_ref *prompt,
                      struct kvd_diag *diag, struct kvd_wire_block *ret_results,
                      uint32_t results_cap, struct kvd_match_out *ret);

/* What a load is asked for. place: the client uses the blocks where they lie, so their pins hold
 * until the lease is released or its client ends, never by deadline. */
struct kvd_load_ask {
    uint64_t lease;
    uint32_t first;
    uint32_t n;
    uint64_t deadline_ns;
    bool place;
};
/* n rows of results and the number of good blocks. result: 0, -KVD_E_STALE, -KVD_E_BAD_REQUEST,
 * -KVD_E_BUSY (another load of the lease is under way), -KVD_E_DEADLINE. */
typedef void kvd_load_done_fn(int result, const struct kvd_wire_block *results, uint32_t n,
                              uint32_t good, void *user);
void kvd_service_load(struct kvd_session *session, const struct kvd_load_ask *ask,
                      kvd_load_done_fn *done, void *user);

/* Ends a lease; an unknown one is no error. stale_from: blocks of the chain from here on that the
 * client copied but found overwritten (counted as failed), or UINT32_MAX. */
void kvd_service_release(struct kvd_session *session, uint64_t lease, uint32_t stale_from);

struct kvd_put_out {
    uint64_t put; /* 0: nothing granted */
    uint32_t granted_blocks;
    uint32_t stored_blocks;
};
/* n at most KVD_WIRE_STAGING_SLOTS; results has n rows. */
int kvd_service_put_begin(struct kvd_session *session, const struct kvd_prompt_ref *prompt,
                          uint32_t first, uint32_t n, struct kvd_diag *diag,
                          struct kvd_wire_block *ret_results, struct kvd_put_out *ret);

typedef void kvd_put_done_fn(int result, uint32_t committed, uint32_t not_written_down, void *user);
void kvd_service_put_commit(struct kvd_session *session, uint64_t put, bool abort,
                            kvd_put_done_fn *done, void *user);

int kvd_service_touch(struct kvd_session *session, const struct kvd_prompt_ref *prompt, uint32_t n,
                      struct kvd_diag *diag);

/* What is to be purged: everything, or what a tenant, a space, or a tenant in a space has. */
struct kvd_purge_ask {
    bool all; /* alone */
    const char
        *tenant; /* user's name, not terminated; "" is the default tenant; NULL: all tenants */
    uint32_t tenant_bytes;
    const char *space; /* its digest in hex, the first 8 digits or more of it, or NAME@DIGITS; NULL:
                          all spaces. The first digits must name one space that is known here */
};

struct kvd_purge_out {
    uint64_t dram_blocks; /* that were removed; what leases pin goes with their end */
    uint64_t dram_bytes;
};

/* Purges: on success it is durable, and no look-up or load that begins later finds anything of it
 * that was put before. diag says why not: -KVD_E_BAD_REQUEST, -KVD_E_NOT_FOUND (no such space),
 * -KVD_E_FULL, errno of the device. */
typedef void kvd_purge_done_fn(int result, const struct kvd_diag *diag,
                               const struct kvd_purge_out *out, void *user);
void kvd_service_purge(struct kvd_session *session, const struct kvd_purge_ask *ask,
                       kvd_purge_done_fn *done, void *user);

/* The same for blocks [first, first + n) of a prompt; dropped: how many of them were stored. */
typedef void kvd_drop_done_fn(int result, const struct kvd_diag *diag, uint32_t dropped,
                              void *user);
void kvd_service_drop(struct kvd_session *session, const struct kvd_prompt_ref *prompt,
                      uint32_t first, uint32_t n, kvd_drop_done_fn *done, void *user);

/* Begins to read over again all that is stored, or one tier ("dram", "nvme"; "": all) of it, at
 * most `rate` bytes a second (0: no limit). Returns at once, with the round's number; its course is
 * in the report "verify". -KVD_E_BAD_REQUEST. */
int kvd_service_verify(struct kvd_service *service, const char *tier, uint64_t rate,
                       struct kvd_diag *diag, uint64_t *ret_round);

/* Report as JSON text (caller frees): what is "status", "hitrate", "verify", "options", "identity"
 * or "block" (by: "KEY/RANK/INDEX/GROUP/SPACE/TENANT"). -KVD_E_BAD_REQUEST names the argument. */
int kvd_service_report(struct kvd_service *service, const char *what, const char *by,
                       const char *window, struct kvd_diag *diag, char **ret_json);

#endif
