/*
 * For tests of the service: a real store in a temporary folder, opened and closed at will, and a
 * client that puts, matches and loads through the service's own interface, comparing every byte.
 * Payloads are made from the tokens they stand for, so that a wrong block can't look right.
 */
#ifndef TESTS_UNIT_CORE_SERVICE_RIG_H
#define TESTS_UNIT_CORE_SERVICE_RIG_H

#include "cachesvc/config/config.h"
#include "cachesvc/core/service.h"

enum { RIG_BLOCK_TOKENS = 16, RIG_LAYERS = 2, RIG_HEADS = 2, RIG_DIM = 128, RIG_BLOCKS_MAX = 512 };

struct rig {
    char folder[256];
    struct kvd_config config;
    struct kvd_service *service;
    struct kvd_session *session;
    struct kvd_space_opened space;
    uint8_t *staging;
    const uint8_t *pool;
    uint64_t pool_bytes;
    struct kvd_wire_block results[RIG_BLOCKS_MAX];
    struct kvd_match_out match;
    uint32_t rank;                  /* of the prompts that follow; in the payloads too */
    const struct kvd_digest *extra; /* of the prompts that follow, or NULL */
    struct kvd_diag said;
};

void rig_init(struct rig *rig, const char *dram_cap, const char *nvme_cap);
void rig_fini(struct rig *rig); /* closes, removes the folder */

void rig_open(struct rig *rig, bool drop_dram); /* service, and a client with the usual space */
void rig_close(struct rig *rig);
void rig_connect(struct rig *rig,
                 uint8_t weights); /* another client in the place of the one there was */
void rig_connect_space(struct rig *rig, const struct kvd_space_desc *desc); /* of any space */
void rig_disconnect(struct rig *rig);

struct kvd_space_desc rig_space(uint8_t weights);
uint64_t rig_block_bytes(void);

/* n tokens drawn from a seed. */
void rig_tokens(uint32_t seed, uint32_t n, uint32_t *ret);

/* Puts blocks [0, n) of a prompt; returns how many were committed or stored already. */
uint32_t rig_put(struct rig *rig, const char *tenant, const char *scenario, const uint32_t *tokens,
                 uint32_t n);

/* Blocks [first, first + n). */
uint32_t rig_put_range(struct rig *rig, const char *tenant, const char *scenario,
                       const uint32_t *tokens, uint32_t first, uint32_t n);

/* The same, without waiting for room in the queue of what is written below. */
uint32_t rig_put_unwritten(struct rig *rig, const char *tenant, const char *scenario,
                           const uint32_t *tokens, uint32_t n);

/* Matches; returns the hit blocks, with rig->match and rig->results filled in. */
uint32_t rig_match(struct rig *rig, const char *tenant, const char *scenario,
                   const uint32_t *tokens, uint32_t n_tokens);

/* Loads all that the last match found, piece by piece, compares every byte, releases. Returns the
 * good blocks, whose rows are in rig->results. */
uint32_t rig_load(struct rig *rig, const uint32_t *tokens);

/* Begins to load all that the last match found, and doesn't wait; the lease stays. */
struct rig_answer;
struct rig_answer *rig_load_begin(struct rig *rig, uint64_t deadline_ns);
/* Waits for its answer. Returns the result, and the good blocks where that is 0. */
int rig_load_end(struct rig_answer **answer, uint32_t *ret_good);

/* Purges and waits: 0 with what went, or the error, whose text goes to rig->said. */
int rig_purge(struct rig *rig, const struct kvd_purge_ask *ask, struct kvd_purge_out *ret);
int rig_purge_tenant(struct rig *rig, const char *tenant);
/* Drops blocks [first, first + n): how many were stored, or the error. */
int rig_drop(struct rig *rig, const char *tenant, const uint32_t *tokens, uint32_t first,
             uint32_t n);
/* Commits a begun put: the number of committed blocks, or a negative error. */
int rig_commit(struct kvd_session *session, uint64_t put);
void rig_abort(struct kvd_session *session, uint64_t put);

/* Match and load. */
uint32_t rig_hit(struct rig *rig, const char *tenant, const uint32_t *tokens, uint32_t n_tokens);

/* Waits until all that was put is written below dram and indexed. */
void rig_settle(struct rig *rig);

/* A number out of a report, by a path such as "tiers.1.used_bytes" or
 * "rows.0.missed.evicted.tokens". */
uint64_t rig_number(struct rig *rig, const char *what, const char *by, const char *path);

/* Waits until status says degraded, and this among its problems. */
void rig_expect_problem(struct rig *rig, const char *text);

/* Sum of hits and misses of the first row in tokens less asked: 0 always. */
void rig_assert_adds_up(struct rig *rig);

#endif
