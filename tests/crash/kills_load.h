/*
 * The load of the kill tests: clients (one a thread) that put, match, load, touch, release, give up
 * and go away, over a fixed set of conversations. What a block's payload must be follows from its
 * space, tenant and tokens, so every loaded byte is compared, whoever stored it and when.
 *
 * A conversation knows how many of its blocks a daemon has acknowledged. Four conversations make a
 * family: same space, same tenant, same first blocks. Some conversations are begun and filled with
 * garbage again and again, and never committed: nobody may ever find them.
 *
 * Threads: the workers', and the test's own. Fields say who may touch them. Workers never fail a
 * test themselves; they note what they saw, and the test asks (kills_load_check).
 */
#ifndef TESTS_CRASH_KILLS_LOAD_H
#define TESTS_CRASH_KILLS_LOAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <kvdepot/kvdepot.h>

enum {
    KILLS_SPACES = 3,
    KILLS_TENANTS = 3,
    KILLS_FAMILY = 4, /* conversations that begin alike */
    KILLS_SHARED = 3, /* blocks of that beginning */
    KILLS_CONVS = 48,
    KILLS_NEVER = 6, /* further ones, never committed */
    KILLS_BLOCKS = 8,
    KILLS_TOKENS_MAX = 8 * KILLS_BLOCKS + 1,
    KILLS_WORKERS = 4,
    KILLS_LOOKUPS_MAX = 1 << 18,
};

struct kills_conv {
    uint32_t number;
    uint32_t space;
    uint32_t tenant;
    const char *scenario;
    bool below; /* its class is written down */
    bool never; /* never committed */
    uint32_t tokens[KILLS_TOKENS_MAX];
    uint64_t digest[KILLS_BLOCKS];   /* of each block's chain: what its payload is made of */
    atomic_uint acked;               /* blocks from the first on that a daemon said it has */
    uint32_t durable;                /* of those, written below dram for sure; the test's */
    atomic_uint_fast64_t kept_above; /* blocks that were acknowledged as kept in dram only */
};

/* Look-ups since the daemon's start. */
struct kills_lookups {
    atomic_uint_fast64_t attempted;
    atomic_uint_fast64_t answered;
    _Atomic uint64_t at_ns[KILLS_LOOKUPS_MAX]; /* when the answer came; 0: not yet noted */
};

struct kills_client {
    struct kvd_client *client;
    struct kvd_space *spaces[KILLS_SPACES];
    uint8_t *memory[KILLS_BLOCKS]; /* of the largest block */
};

struct kills_load;

struct kills_worker {
    pthread_t thread;
    bool runs;
    struct kills_load *load;
    uint64_t random; /* owner: the worker */
    struct kills_client client;
    atomic_uint_fast64_t done; /* operations that a daemon answered, since resume */
};

enum kills_state { KILLS_PAUSED, KILLS_RUNNING, KILLS_ENDING };

struct kills_load {
    const char *socket;
    struct kills_conv convs[KILLS_CONVS + KILLS_NEVER];
    struct kills_worker workers[KILLS_WORKERS];
    struct kills_lookups lookups;
    atomic_uint limit; /* blocks a conversation may have now */
    bool gaps_allowed; /* blocks may be thrown away: acked means nothing */
    pthread_mutex_t mtx;
    pthread_cond_t changed;
    enum kills_state state; /* lock: mtx */
    uint32_t paused;        /* lock: mtx. Workers that wait */
    char failure[512];      /* lock: mtx. The first; empty: none */
};

uint64_t kills_random(uint64_t *state);

/* Conversations from a seed, in zeroed memory. socket is borrowed. */
void kills_load_init(struct kills_load *load, const char *socket, uint64_t seed);
/* Other conversations, from another seed; no worker runs. */
void kills_load_talk(struct kills_load *load, uint64_t seed);
/* Starts the workers, paused. */
void kills_load_start(struct kills_load *load, uint64_t seed);
void kills_load_fini(struct kills_load *load); /* workers have ended */

/* Lets the workers run; from a pause on no worker has an operation under way. */
void kills_load_resume(struct kills_load *load);
void kills_load_pause(struct kills_load *load);
void kills_load_end(struct kills_load *load); /* and closes their clients */

/* Waits until every worker has had an answer since resume, or a worker failed; 60 s at most. */
void kills_load_all_answered(struct kills_load *load);
/* Waits some time, or until a worker fails. */
void kills_load_run_for(struct kills_load *load, uint64_t ns);
/* Fails the test with what a worker saw. */
void kills_load_check(struct kills_load *load);

/* A client with all spaces; false: none answers. */
bool kills_client_open(struct kills_client *c, const char *socket);
void kills_client_close(struct kills_client *c);

uint64_t kills_block_bytes(uint32_t space);
uint32_t kills_block_tokens(uint32_t space);
struct kvd_prompt kills_prompt(const struct kills_conv *conv, uint32_t blocks, bool one_more);
/* Whether payload is that of the block; *ret_at is the first byte that isn't. */
bool kills_payload_right(const struct kills_conv *conv, uint32_t block, const uint8_t *payload,
                         uint64_t *ret_at);
void kills_payload_make(const struct kills_conv *conv, uint32_t block, uint8_t *payload);
/* One look-up, counted. */
int kills_match(struct kills_load *load, struct kills_client *c, const struct kills_conv *conv,
                uint32_t blocks, struct kvd_match_result *ret);
/* Puts blocks [first, n). Where none is refused they are acknowledged. */
int kills_put(struct kills_client *c, struct kills_conv *conv, uint32_t first, uint32_t n,
              struct kvd_put_result *ret);
/* Loads the first n blocks of a lease and compares; *ret_good. 0, a client error, or 1: a wrong
 * byte, noted as the load's failure. */
int kills_load_blocks(struct kills_load *load, struct kills_client *c,
                      const struct kills_conv *conv, struct kvd_lease *lease, uint32_t n,
                      uint32_t *ret_good);

#endif
