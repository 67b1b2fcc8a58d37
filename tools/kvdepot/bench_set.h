/*
 * What a measurement works on: a client with one space, and chains of random-looking tokens whose
 * blocks have made-up payloads.
 */
#ifndef TOOLS_KVDEPOT_BENCH_SET_H
#define TOOLS_KVDEPOT_BENCH_SET_H

#include <stdint.h>

#include "kvdepot/kvdepot.h"
#include "proto/base/error.h"

enum { KVD_BENCH_BLOCK_TOKENS = 64 };

struct kvd_bench_set {
    struct kvd_client *client;
    struct kvd_space *space;
    uint32_t n_blocks; /* of a chain */
    uint64_t block_bytes;
    uint32_t *tokens; /* of the chain chosen last: n_blocks blocks and one token more */
    struct kvd_prompt prompt;
    void **source; /* payload of each block, all in source_bytes */
    void **dest;   /* where loads go, all in dest_bytes */
    void *source_bytes;
    void *dest_bytes;
};

/* Geometry of a space that is used here: 2 x layers x heads x dim x 2 bytes a token. */
struct kvd_bench_geometry {
    const char *name;
    uint32_t layers;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t n_blocks; /* of a chain */
};

/* Connects and opens a space. On failure there is nothing to close. */
int kvd_bench_set_open(const char *socket_path, const struct kvd_bench_geometry *geometry,
                       struct kvd_bench_set *ret_set, struct kvd_diag *diag);
void kvd_bench_set_close(struct kvd_bench_set *set);

/* Chooses the chain that `number` names: set->prompt. */
void kvd_bench_set_chain(struct kvd_bench_set *set, uint32_t number);

/* Puts all blocks of the chain; a block that is not stored at the end is an error. */
int kvd_bench_set_put(struct kvd_bench_set *set, struct kvd_diag *diag);

/* Match, load into dest, release; all blocks must come from `tier`. */
int kvd_bench_set_load(struct kvd_bench_set *set, enum kvd_tier tier, struct kvd_diag *diag);

/* Match, use in place, check, release: nothing is copied. */
int kvd_bench_set_place(struct kvd_bench_set *set, struct kvd_diag *diag);

/* Whether dest holds what was put. */
int kvd_bench_set_verify(const struct kvd_bench_set *set, struct kvd_diag *diag);

/* memcpy of as many bytes, from source to dest. */
void kvd_bench_set_copy(struct kvd_bench_set *set);

/* Waits until nothing waits to be written down any more, at most 60 s. */
int kvd_bench_set_settle(struct kvd_bench_set *set, struct kvd_diag *diag);

#endif
