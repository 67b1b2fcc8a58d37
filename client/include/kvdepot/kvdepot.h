/*
 * libkvdepot: the client library of the KV cache daemon kvdepotd.
 *
 * What it does. An inference engine asks for the longest prefix of a prompt whose KV blocks are
 * stored (match), copies them into its own memory (load), computes the rest, and gives every full
 * block it computed to the store (put).
 *
 *     kvd_client_open → kvd_space_open → per request: kvd_match → kvd_load → … compute … → kvd_put
 *
 * Words. block: a fixed number of consecutive tokens of one prompt (space.block_tokens) and their
 * KV of all layers. space: one exact geometry of KV, by content; blocks of different spaces never
 * meet. tenant: whose blocks; another tenant's are never found. scenario: a named retention class
 * ("chat", "agent"). lease: what keeps matched blocks from being thrown away between match and
 * load.
 *
 * Errors. Functions return 0 or a negative number: one of enum kvd_status, or a negated errno where
 * said. Outputs ret_* are written only on success. kvd_client_message() says in words what the
 * calling thread's last failed call on that client met.
 *
 * Deadlines. Every call returns within its deadline (struct kvd_client_options). A daemon that is
 * absent, stopped or dead costs one deadline once; from then on calls answer KVD_UNAVAILABLE at
 * once, and the library tries to reach the daemon again at most once a second, by itself, inside
 * calls. The call that finds it back also connects and registers its space, which may take
 * connect_ms and io_ms longer; a submission never waits: it answers KVD_UNAVAILABLE until that is
 * done. An engine treats every failure as a miss.
 *
 * Threads. A client may be used by many threads; so may a space. A lease or put belongs to one
 * thread at a time. After fork() a child must not use its parent's client.
 *
 * Both ways. Each call exists as submission (kvd_submit_*, returns at once; kvd_drain reports the
 * completion; kvd_client_fd becomes readable when kvd_drain has something to do) and as a
 * synchronous call on top of that.
 */
#ifndef KVDEPOT_KVDEPOT_H
#define KVDEPOT_KVDEPOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KVD_API __attribute__((visibility("default")))
#else
#define KVD_API
#endif

#define KVD_VERSION_MAJOR 0
#define KVD_VERSION_MINOR 1

enum kvd_status {
    KVD_OK = 0,
    KVD_NOT_FOUND = -1001,
    KVD_STALE = -1002, /* the lease has ended, or the daemon was restarted since */
    KVD_CORRUPT = -1003,
    KVD_OVER_QUOTA = -1004,  /* too many leases or bytes pinned by this client */
    KVD_FULL = -1005,        /* no room within the cap: the put was refused */
    KVD_BAD_REQUEST = -1006, /* an argument is out of range; see kvd_client_message() */
    KVD_CONTRADICTION =
        -1007, /* space: the same model name and weights were registered with another geometry */
    KVD_UNAVAILABLE = -1008, /* no daemon; tried again at most once a second */
    KVD_DEADLINE = -1009,
    KVD_IO = -1015,
    KVD_UNKNOWN_SCENARIO = -1016,
    KVD_BUSY = -1017,
    KVD_TOO_LONG = -1019,
    KVD_INTERNAL = -1020,
};

/* Text of a status. Never NULL. */
KVD_API const char *kvd_status_text(int status);

/* ---- client
 * -------------------------------------------------------------------------------------------------
 */

struct kvd_client;

struct kvd_client_options {
    size_t size;             /* sizeof(struct kvd_client_options) */
    const char *socket_path; /* borrowed for the call; at most 107 bytes; NULL if fd is given */
    int fd;              /* a connected socket to an embedded daemon (taken on success), or -1 */
    const char *program; /* name shown to administrators; borrowed for the call; may be NULL */
    uint32_t connect_ms; /* 0 means 200 */
    uint32_t match_ms;   /* 0 means 20: match, touch, release */
    uint32_t io_ms;      /* 0 means 2000: load, put */
};

/* Fills in the defaults; options->fd is -1. */
KVD_API void kvd_client_options_init(struct kvd_client_options *options);

/* Opens a client. Succeeds also when no daemon answers: see kvd_client_connected.
 * KVD_BAD_REQUEST (socket path too long, neither path nor fd), -ENOMEM, -EMFILE. May wait
 * connect_ms. */
KVD_API int kvd_client_open(const struct kvd_client_options *options,
                            struct kvd_client **ret_client);

/* Closes a client with its spaces, leases and puts, all of which become invalid. Accepts NULL and a
 * pointer to NULL; sets *client to NULL. */
KVD_API void kvd_client_close(struct kvd_client **client);

/* Whether the daemon answered last time. Does not wait. */
KVD_API bool kvd_client_connected(struct kvd_client *client);

/* What the calling thread's last failed call met, in words: what, where, what to do. Valid until
 * its next call. client is NULL for a kvd_client_open that failed. */
KVD_API const char *kvd_client_message(struct kvd_client *client);

/* Round trip to the daemon and back. Waits at most match_ms. KVD_UNAVAILABLE, KVD_DEADLINE. */
KVD_API int kvd_ping(struct kvd_client *client);

/* ---- space
 * --------------------------------------------------------------------------------------------------
 */

struct kvd_space;

enum kvd_dtype { KVD_DTYPE_F16 = 1, KVD_DTYPE_BF16 = 2, KVD_DTYPE_F32 = 3, KVD_DTYPE_FP8_E4M3 = 4 };

enum kvd_layout {
    KVD_LAYOUT_HEADS = 1,  /* [layer][K, V][kv head][token][dim] */
    KVD_LAYOUT_LATENT = 2, /* [layer][token][latent + rope], MLA */
};

/* Everything that makes KV bytes what they are. Two engines share blocks only where every field
 * agrees. */
struct kvd_space_config {
    size_t size;         /* sizeof(struct kvd_space_config) */
    const char *model;   /* name, 1 to 255 bytes */
    uint8_t weights[32]; /* fingerprint over every tensor: names, types, shapes, bytes */
    enum kvd_dtype dtype;
    enum kvd_layout layout;
    uint32_t layers;
    uint32_t kv_heads;        /* KVD_LAYOUT_HEADS */
    uint32_t head_dim;        /* KVD_LAYOUT_HEADS */
    uint32_t latent_dim;      /* KVD_LAYOUT_LATENT */
    uint32_t latent_rope_dim; /* KVD_LAYOUT_LATENT */
    uint32_t block_tokens;    /* 1 to 1024; 64 is usual */
    double rope_base;
    double rope_scale;    /* 1.0 for none */
    uint8_t adapter[32];  /* digest of the adapter's content, zero for none */
    const char *numerics; /* numerics family, 1 to 255 bytes: same family, same bytes */
    uint32_t ranks;       /* parallel ranks, at least 1 */
};

/* Opens a space; registers it with the daemon, now or when the daemon is reached again. The
 * configuration is copied. The space lives until kvd_client_close. Where the daemon has no room for
 * this client's staging area (too many clients, or blocks too large for its dram.cap), the space
 * can be matched and loaded, and every put answers `refused` for what is not stored already. Waits
 * at most connect_ms and io_ms. KVD_BAD_REQUEST, KVD_CONTRADICTION, KVD_OVER_QUOTA (256 spaces a
 * daemon), -ENOMEM. */
KVD_API int kvd_space_open(struct kvd_client *client, const struct kvd_space_config *config,
                           struct kvd_space **ret_space);

/* Bytes of one block's payload of one rank. */
KVD_API uint64_t kvd_space_block_bytes(const struct kvd_space *space);

/* ---- prompts
 * ------------------------------------------------------------------------------------------------
 */

/* A prompt, or its beginning. All pointers are borrowed for the call. */
struct kvd_prompt {
    const char *scenario; /* retention class; an unknown one is KVD_UNKNOWN_SCENARIO */
    const char *tenant;   /* user's id, at most 512 bytes; NULL or "" is the default tenant */
    const uint8_t *extra; /* NULL, or a digest of 32 bytes over images and other content that tokens
                             don't show */
    const uint32_t *tokens; /* ids from the very first token of the prompt */
    uint32_t n_tokens;      /* at most 524,288 */
    uint32_t rank;          /* below space.ranks */
};

enum kvd_tier {
    KVD_IN_NONE = 0,
    KVD_IN_HBM = 1,
    KVD_IN_DRAM = 2,
    KVD_IN_NVME = 3,
    KVD_IN_REMOTE = 4,
    KVD_IN_SHARED = 5,
};

struct kvd_lease;

struct kvd_match_result {
    uint32_t
        asked_blocks; /* (n_tokens - 1) / block_tokens: the last token is always left to compute */
    uint32_t hit_blocks;     /* stored without a gap from the first block on */
    struct kvd_lease *lease; /* owned by the caller: kvd_lease_release. NULL when hit_blocks is 0 */
};

/* Longest stored prefix of a prompt. Counted as one look-up. Reads nothing from a device. Waits at
 * most match_ms. KVD_UNAVAILABLE, KVD_DEADLINE, KVD_BAD_REQUEST, KVD_UNKNOWN_SCENARIO,
 * KVD_OVER_QUOTA, KVD_TOO_LONG (blocks are so small that the answer would not fit). */
KVD_API int kvd_match(struct kvd_space *space, const struct kvd_prompt *prompt,
                      struct kvd_match_result *ret_result);

/* Tier that block `index` (from 0, below hit_blocks) was found in. */
KVD_API enum kvd_tier kvd_lease_tier(const struct kvd_lease *lease, uint32_t index);

/* Ends a lease. Accepts NULL and a pointer to NULL; sets *lease to NULL. Does not wait. */
KVD_API void kvd_lease_release(struct kvd_lease **lease);

/* Copies payloads of blocks [first, first + n) of a lease into dest[0..n), each
 * kvd_space_block_bytes() long. Blocks that lie below dram are read and verified first. *ret_good
 * is the number of blocks, without a gap from `first`, whose bytes in dest are right; the content
 * of the other destinations is undefined. Success with *ret_good < n means that a block could not
 * be read or verified: compute from there on. Waits at most io_ms. KVD_STALE, KVD_UNAVAILABLE,
 * KVD_DEADLINE, KVD_BAD_REQUEST. */
KVD_API int kvd_load(struct kvd_lease *lease, uint32_t first, uint32_t n, void *const *dest,
                     uint32_t *ret_good);

/* ---- in place
 * ----------------------------------------------------------------------------------------------
 *
 * For attention or a GPU that reads KV where the daemon keeps it, without a copy:
 *
 *     kvd_match → kvd_place → compute with the pointers → kvd_place_check → kvd_lease_release
 *
 * A lease with placed blocks has no deadline: the daemon keeps their bytes as they are until the
 * lease is released or this process ends, since there is no copy that could be found late. Held for
 * longer than client.copy-lease it is an alarm in the daemon's log and status, and takes room from
 * everybody until it ends. So place what is used now, and release it at once.
 *
 * What may go wrong, and what to do:
 * - The daemon died, was restarted, or cut this client off while the blocks were in use. The
 *   mapping stays and can be read, but a daemon that runs on with the same pool may fill it anew at
 *   any moment. kvd_place_check then says KVD_STALE: throw away everything that was computed since
 *   the last check that was good, and compute without these blocks.
 * - Fewer blocks than asked for: a block could not be read or verified, or a limit is reached (one
 *   client may hold at most client.pin-share of dram, all together 80 %). What is refused for a
 *   limit is still stored, but a kvd_load needs room within the same limit: when some of what is
 *   placed was released, or of what others hold.
 * - Somebody shortens the pool file, which no daemon does: reading beyond its end is SIGBUS, as
 * with every mapped file.
 * - A forked child doesn't have the mapping.
 */

/* Makes blocks [first, first + n) of a lease usable where they lie: ret_blocks[i] is the payload of
 * block first + i, kvd_space_block_bytes() long, read-only, aligned to 4,096 bytes, for i below
 * *ret_good; the others are NULL. Blocks that lie below dram are read and verified first. The
 * pointers are valid until the lease is released or the client closed, by whichever comes first;
 * their bytes are right if a kvd_place_check after the use says so. A lease may place several
 * ranges, one call at a time. Waits at most io_ms. KVD_STALE, KVD_UNAVAILABLE, KVD_DEADLINE,
 * KVD_BAD_REQUEST, KVD_BUSY (another load or place of the lease is under way), KVD_INTERNAL (the
 * daemon is too old to hold blocks in place), -ENOMEM. */
KVD_API int kvd_place(struct kvd_lease *lease, uint32_t first, uint32_t n, const void **ret_blocks,
                      uint32_t *ret_good);

/* Whether all that was read of the lease's placed blocks until now was right. Call it when the use
 * is over (a GPU: when its work has completed, not when it was queued), and act on what was
 * computed only then; a longer use may be checked in between. 0, also where nothing is placed, and
 * where the daemon has gone but nobody has filled the blocks anew. KVD_STALE: the bytes changed at
 * some moment since kvd_place: what was computed from any of them is worthless. Does not ask the
 * daemon and does not wait. */
KVD_API int kvd_place_check(struct kvd_lease *lease);

/* ---- put
 * ----------------------------------------------------------------------------------------------------
 */

struct kvd_put;

struct kvd_put_result {
    uint32_t stored_already; /* blocks that needed no copy */
    uint32_t committed;      /* blocks that this put stored; they are in dram */
    uint32_t refused;        /* no room, or another put of the same block is under way */
    uint32_t
        not_written_down; /* of committed: kept in dram only, because the tier below was behind */
};

/* Stores blocks [first, first + n) of a prompt whose tokens reach at least through the last of
 * them; src[i] is the payload of block first + i. Blocks that are stored already are not copied.
 * Waits at most io_ms for other kvd_puts of the space, and twice that for each 4 blocks
 * (begin, commit). ret_result may be NULL. Success also when some were
 * refused. After a block that found no room the rest is not tried: it could not be found without
 * it. KVD_UNAVAILABLE, KVD_DEADLINE, KVD_BAD_REQUEST, KVD_UNKNOWN_SCENARIO, KVD_STALE. */
KVD_API int kvd_put(struct kvd_space *space, const struct kvd_prompt *prompt, uint32_t first,
                    uint32_t n, const void *const *src, struct kvd_put_result *ret_result);

/* The same in two steps, without a copy of the caller's own: begin grants up to 16 blocks (n is at
 * most 16), the caller writes each payload to kvd_put_buffer(), commit publishes. Nobody finds any
 * of it before the daemon has taken the commit. *ret_put is the caller's, who ends it with commit
 * or abort; for client.put-pending it keeps others from putting the same blocks. It is NULL when
 * nothing was granted (see ret_result, which may be NULL). Waits at most io_ms. Errors as kvd_put.
 */
KVD_API int kvd_put_begin(struct kvd_space *space, const struct kvd_prompt *prompt, uint32_t first,
                          uint32_t n, struct kvd_put **ret_put, struct kvd_put_result *ret_result);

/* Where block first + nth goes, or NULL where it was not granted (stored already, or refused). */
KVD_API void *kvd_put_buffer(struct kvd_put *put, uint32_t nth);

/* Ends the put in every case and sets *put to NULL. ret_result may be NULL. Waits at most io_ms.
 * KVD_STALE (begun on a connection that has ended since), KVD_UNAVAILABLE, KVD_DEADLINE
 * (the blocks may have been stored). */
KVD_API int kvd_put_commit(struct kvd_put **put, struct kvd_put_result *ret_result);

/* Gives a begun put up; sets *put to NULL. Accepts NULL and a pointer to NULL. Does not wait. */
KVD_API void kvd_put_abort(struct kvd_put **put);

/* Marks the first n blocks of a prompt as used now, under the prompt's scenario. Waits at most
 * match_ms. KVD_UNAVAILABLE, KVD_DEADLINE, KVD_BAD_REQUEST, KVD_UNKNOWN_SCENARIO. */
KVD_API int kvd_touch(struct kvd_space *space, const struct kvd_prompt *prompt, uint32_t n);

/* ---- throwing away
 * ------------------------------------------------------------------------------------------------
 *
 * What is thrown away is found by no kvd_match and brought by no kvd_load that begins after the
 * call has returned, whatever happens to the daemon then: restarts, power cuts, a lost index. What
 * is put afterwards is a new block. A lease that was given before keeps its pins until it ends, so
 * a copy that is under way may still be finished; a kvd_load that begins later gets nothing of it.
 * Room in dram comes back at once, room below with the segments of what was thrown away.
 *
 * Whoever may open the daemon's socket may throw away what is any tenant's: clients of a daemon
 * trust each other, and the socket's permissions say who is one.
 *
 * Synchronous only. A daemon that is older than these calls answers KVD_BAD_REQUEST. A call that
 * failed by KVD_UNAVAILABLE or KVD_DEADLINE may have been done: it does no harm to do it again.
 *
 *     uint32_t dropped;
 *     kvd_drop(space, &prompt, 3, 1, &dropped);           // block 3 of a prompt
 *     struct kvd_purge_scope alice = {.tenant = "alice"};
 *     kvd_purge(client, &alice, NULL);                    // all that alice has, in all spaces
 */

/* Drops blocks [first, first + n) of a prompt whose tokens reach at least through the last of them.
 * Blocks behind them stay stored, but can't be found until these are put again: a prefix has no
 * holes. The scenario says nothing here, but must be one. *ret_dropped (may be NULL) is how many of
 * the blocks were stored. Waits at most io_ms. KVD_UNAVAILABLE, KVD_DEADLINE, KVD_BAD_REQUEST,
 * KVD_UNKNOWN_SCENARIO, KVD_TOO_LONG, KVD_FULL (too many drops are remembered: purge the tenant
 * instead), KVD_IO or KVD_INTERNAL (the daemon could not write it down; nothing was dropped). */
KVD_API int kvd_drop(struct kvd_space *space, const struct kvd_prompt *prompt, uint32_t first,
                     uint32_t n, uint32_t *ret_dropped);

/* Whose blocks. Either everything, alone, or a tenant, a space, or both: then the blocks that the
 * tenant has in the space. All pointers are borrowed for the call. */
struct kvd_purge_scope {
    bool everything;
    const char *tenant; /* user's id, at most 512 bytes; "" is the default tenant; NULL: all */
    const char *space;  /* the first 8 to 64 hexadecimal digits of its digest, as `kvdepot hitrate
                           --by space` shows them behind the @; MODEL@DIGITS is taken too; NULL: all.
                           Fewer than 64 must name one space that the daemon knows of */
};

struct kvd_purge_result {
    uint64_t dram_blocks; /* removed from dram */
    uint64_t dram_bytes;
};

/* Purges a scope. ret_result may be NULL. Waits at most io_ms. KVD_UNAVAILABLE, KVD_DEADLINE,
 * KVD_BAD_REQUEST, KVD_NOT_FOUND (no such space), KVD_FULL, KVD_IO or KVD_INTERNAL (the daemon
 * could not write it down; nothing was purged). */
KVD_API int kvd_purge(struct kvd_client *client, const struct kvd_purge_scope *scope,
                      struct kvd_purge_result *ret_result);

/* ---- submissions
 * -------------------------------------------------------------------------------------------- */

enum kvd_op {
    KVD_OP_MATCH = 1,
    KVD_OP_LOAD = 2,
    KVD_OP_PUT_COMMIT = 3,
    KVD_OP_TOUCH = 4,
    KVD_OP_PLACE = 5,
};

struct kvd_completion {
    enum kvd_op op;
    int status;                    /* what the synchronous call would have returned */
    void *cookie;                  /* as submitted */
    struct kvd_match_result match; /* KVD_OP_MATCH */
    uint32_t good;                 /* KVD_OP_LOAD, KVD_OP_PLACE */
    struct kvd_put_result put;     /* KVD_OP_PUT_COMMIT */
};

/* Each returns at once: 0, or what stopped it from being sent (KVD_BUSY: too many under way); then
 * there is no completion.
 * `prompt` is borrowed only for the call; `dest` and what it points to until the completion, as are
 * `ret_blocks`, which is written then, and the lease. kvd_submit_put_commit takes the put. The
 * deadline is the synchronous call's. */
KVD_API int kvd_submit_match(struct kvd_space *space, const struct kvd_prompt *prompt,
                             void *cookie);
KVD_API int kvd_submit_load(struct kvd_lease *lease, uint32_t first, uint32_t n, void *const *dest,
                            void *cookie);
KVD_API int kvd_submit_place(struct kvd_lease *lease, uint32_t first, uint32_t n,
                             const void **ret_blocks, void *cookie);
KVD_API int kvd_submit_put_commit(struct kvd_put **put, void *cookie);
KVD_API int kvd_submit_touch(struct kvd_space *space, const struct kvd_prompt *prompt, uint32_t n,
                             void *cookie);

/* A descriptor that is readable when kvd_drain has something to do, answers or deadlines. The
 * client's; do not read or close it. */
KVD_API int kvd_client_fd(struct kvd_client *client);

/* Takes up to max completions of submissions; copies of loads are made here, in the calling thread.
 * Returns their number, 0 when there is none now. Does not wait. */
KVD_API int kvd_drain(struct kvd_client *client, struct kvd_completion *ret_completions, int max);

/* ---- figures
 * ------------------------------------------------------------------------------------------------
 */

struct kvd_stats {
    size_t size; /* sizeof(struct kvd_stats), set by the caller */
    uint64_t matches;
    uint64_t asked_blocks;
    uint64_t hit_blocks;
    uint64_t loaded_blocks; /* copied or placed */
    uint64_t failed_blocks; /* matched, but not loaded: unreadable, unverified, or stale */
    uint64_t put_blocks;    /* committed */
    uint64_t refused_blocks;
    uint64_t deadlines; /* calls that ended by their deadline */
    uint64_t reconnects;
};

/* Counts of this client since it was opened. Does not ask the daemon. */
KVD_API void kvd_stats(struct kvd_client *client, struct kvd_stats *ret_stats);

/* Lets the daemon read over again all that it stores, or one tier ("dram", "nvme"; NULL or "":
 * all), at most rate_bytes_per_s (0: no limit). Does not wait for the reading, only for the number
 * of the round, at most io_ms: its course, and what is bad, are in the report "verify". A round
 * that somebody asked for and that is under way is joined, at its own rate. KVD_UNAVAILABLE,
 * KVD_DEADLINE, KVD_BAD_REQUEST (no such tier). */
KVD_API int kvd_verify(struct kvd_client *client, const char *tier, uint64_t rate_bytes_per_s,
                       uint64_t *ret_round);

/* Asks the daemon for a report as JSON text: what is "status", "hitrate" (by and window as of
 * `kvdepot hitrate`), "verify", "options", "identity" (the store's id, and the seed of its keys),
 * or "block" (what is stored of one block, by its address "KEY/RANK/INDEX/GROUP/SPACE/TENANT", key
 * and group in hex; not counted as a look-up). by and window: NULL or "" where a report takes none.
 * The text is the caller's: free(). Waits at most io_ms. KVD_UNAVAILABLE, KVD_DEADLINE,
 * KVD_BAD_REQUEST, KVD_IO (the index can't be read), KVD_INTERNAL, -ENOMEM. */
KVD_API int kvd_report(struct kvd_client *client, const char *what, const char *by,
                       const char *window, char **ret_json);

#ifdef __cplusplus
}
#endif

#endif
