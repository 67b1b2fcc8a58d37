/*
 * Inside of libkvdepot. Nobody outside client/src includes this.
 *
 * client  what a program opened: options, the present link, spaces, completions.
 * link    one connection to a daemon: socket, request area, mapping of the pool, calls in flight.
 *         It lives as long as somebody refers to it (leases, puts, calls), so that a mapping never
 *         goes while a copy reads it. A link that failed is never used again; the client gets a new
 *         one.
 * call    one request: waits for its reply (sync: a thread; async: kvd_drain). A call whose
 * deadline passed is abandoned: it keeps its range of the request area until the reply comes,
 * because the daemon may still write there.
 *
 * Locks. One: kvd_client.mtx, over everything here. It is not held while a thread waits, copies
 * payload or copies tokens. No threads of our own: whoever waits receives, for all
 * (kvd_link.receiving), and hands over when its own reply has come.
 */
#ifndef CLIENT_SRC_INTERNAL_H
#define CLIENT_SRC_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "kvdepot/kvdepot.h"
#include "proto/base/assert.h"
#include "proto/base/cleanup.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/list.h"
#include "proto/keys/keys.h"
#include "proto/wire/wire.h"

enum {
    KVD_CLIENT_MAGIC = 0x6b766463,
    KVD_SPACE_MAGIC = 0x6b766473,
    KVD_LEASE_MAGIC = 0x6b76646c,
    KVD_PUT_MAGIC = 0x6b766470,

    KVD_CLIENT_SPIN_US = 50,       /* see README.md for the measurement */
    KVD_CLIENT_RETRY_MS = 1000,    /* between attempts to reach a daemon */
    KVD_CLIENT_NOTES_MAX = 4096,   /* releases kept while the socket is full */
    KVD_CLIENT_PUT_BATCH = 4,      /* blocks, at most: see put.c */
    KVD_CLIENT_SCENARIO_MAX = 255, /* bytes of a scenario's name */
};

enum kvd_link_state { KVD_LINK_GREETING, KVD_LINK_LIVE, KVD_LINK_DEAD };

struct kvd_link {
    struct kvd_client *client;
    unsigned refs; /* lock: mtx */
    uint64_t serial;
    enum kvd_link_state state;
    int fd;
    bool receiving;         /* a thread receives, without the lock */
    uint8_t *packet;        /* owner: who receives */
    struct kvd_list calls;  /* in flight, abandoned ones too */
    struct kvd_list ranges; /* in use, by offset */
    struct kvd_list notes;  /* not sent yet, because the socket was full */
    unsigned n_notes;
    uint64_t next_id;
    uint64_t heard_ns; /* when the last packet came */
    bool stalled;      /* a call's deadline passed and nothing was heard since it was sent */
    bool probing;      /* a ping is out whose reply shows that the daemon goes on */
    /* constant once LIVE */
    uint8_t *area;
    uint64_t area_bytes;
    const uint8_t *pool;
    uint64_t pool_bytes;
};

/* A request without a reply: release of a lease, abort of a put. */
struct kvd_note {
    struct kvd_list link;
    bool is_put;
    uint64_t id; /* of the lease or put */
    bool has_stale;
    uint32_t stale_from;
};

enum kvd_call_op {
    KVD_CALL_HELLO,
    KVD_CALL_SPACE_OPEN,
    KVD_CALL_MATCH,
    KVD_CALL_LOAD,
    KVD_CALL_PUT_BEGIN,
    KVD_CALL_PUT_COMMIT,
    KVD_CALL_TOUCH,
    KVD_CALL_PING,
    KVD_CALL_ADMIN,
    KVD_CALL_VERIFY,
    KVD_CALL_DROP,
    KVD_CALL_PURGE,
};

enum kvd_call_state { KVD_CALL_NEW, KVD_CALL_WAITING, KVD_CALL_DONE, KVD_CALL_ABANDONED };

struct kvd_call {
    struct kvd_list link;  /* kvd_link.calls */
    struct kvd_list async; /* kvd_client.submitted or .done */
    struct kvd_list range; /* kvd_link.ranges */
    struct kvd_link *conn; /* a reference */
    enum kvd_call_op op;
    enum kvd_call_state state;
    bool submitted; /* belongs to kvd_drain */
    bool waited;    /* a thread sleeps on cond */
    uint64_t id;
    uint64_t sent_ns;
    uint64_t deadline_ns;
    pthread_cond_t cond;

    uint64_t offset; /* of the range in the request area */
    uint64_t bytes;
    uint64_t results_offset;
    uint32_t n_results;

    /* what it was about */
    struct kvd_space *space;
    struct kvd_lease *lease;
    struct kvd_put *put;
    uint32_t first;
    uint32_t n;
    uint32_t before; /* load: blocks that earlier parts copied */
    void *const *dest;
    const void **placed; /* place instead of load: where the pointers go */
    void *cookie;

    /* the reply */
    int status;
    char *text;      /* the daemon's words where status is an error, or NULL */
    uint64_t handle; /* lease or put */
    uint32_t count[3];
    struct kvd_purge_result purged;
    char *json;
    int report_fd; /* a report too long for a packet, or -1 */
    uint64_t report_bytes;
};

/* A space as one link knows it. */
struct kvd_space_reg {
    unsigned refs; /* lock: mtx */
    uint64_t serial;
    uint32_t handle;
    uint8_t *staging; /* NULL where the daemon had no room for one: nothing can be put */
    uint64_t staging_bytes;
    uint32_t staging_slots;
};

struct kvd_space {
    uint32_t magic;
    struct kvd_client *client;
    struct kvd_list link;
    struct kvd_space_desc desc; /* names are ours */
    /* lock: mtx */
    struct kvd_space_reg *reg; /* may belong to an older link: compare serials */
    uint64_t opening_serial;   /* link on which opening was sent */
    uint64_t refused_serial;   /* link on which it was refused, and how */
    int refused;
    bool putting; /* a kvd_put is under way: others wait for their turn at staging */
    pthread_cond_t turn;
};

/* A block in use where it lies. */
struct kvd_placed {
    const uint32_t *generation_at; /* in the mapping; NULL: the block is not placed */
    uint32_t generation;
};

struct kvd_lease {
    uint32_t magic;
    struct kvd_space *space;
    struct kvd_list link;
    struct kvd_link *conn; /* a reference */
    uint64_t id;
    bool has_stale;
    uint32_t stale_from;
    uint32_t hit_blocks;
    struct kvd_placed *placed; /* lock: mtx. A row a block, or NULL: none is */
    uint8_t tiers[];
};

struct kvd_put {
    uint32_t magic;
    struct kvd_space *space;
    struct kvd_list link;
    struct kvd_link *conn;     /* a reference */
    struct kvd_space_reg *reg; /* a reference */
    uint64_t id;               /* 0: nothing was granted */
    uint32_t n;
    uint32_t granted;
    uint8_t state[KVD_WIRE_STAGING_SLOTS];
    void *buffer[KVD_WIRE_STAGING_SLOTS];
};

struct kvd_client {
    uint32_t magic;
    char *path; /* NULL: an embedded daemon's socket, which is not reached again */
    char *program;
    uint64_t connect_ns;
    uint64_t match_ns;
    uint64_t io_ns;
    int epfd;    /* kvd_client_fd */
    int eventfd; /* completions wait in `done` */
    int timerfd; /* the earliest deadline of a submission */

    pthread_mutex_t mtx;
    /* lock: mtx, all below */
    pthread_cond_t room; /* a range of the request area was given back */
    struct kvd_link *conn;
    uint64_t next_serial;
    uint64_t next_attempt_ns;
    bool impatient;      /* a hello was not answered in time: do not wait for the next ones */
    struct kvd_diag why; /* there is no link */
    uint64_t timer_ns;   /* what timerfd is set to, or 0 */
    struct kvd_list spaces;
    struct kvd_list leases;
    struct kvd_list puts;
    struct kvd_list submitted;
    struct kvd_list done;
    struct kvd_stats stats;
};

/* ---- client.c */

/* Writes the calling thread's message. */
void kvd_client_say(struct kvd_client *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* The same; its value is err. A macro, so that analysers see that it is never 0. */
#define kvd_client_fail(c, err, ...) (kvd_client_say((c), __VA_ARGS__), (err))
void kvd_client_lock(struct kvd_client *c);
void kvd_client_unlock(struct kvd_client *c);
/* Like pthread_cond_timedwait, by the monotonic clock; false: the deadline has passed. */
bool kvd_client_wait_locked(struct kvd_client *c, pthread_cond_t *cond, uint64_t deadline_ns);
void kvd_cond_init(pthread_cond_t *cond);

/* ---- connect.c */

/* 0 when there is a live link; tries to get one, at most once a second. wait: for the daemon's
 * answer too, at most until deadline_ns. */
int kvd_client_ready_locked(struct kvd_client *c, bool wait, uint64_t deadline_ns);
int kvd_client_attach_locked(struct kvd_client *c, int fd); /* takes fd on success */
/* A hello's reply came: maps what it carries; takes the descriptors it uses (sets them to -1). */
int kvd_link_greeted_locked(struct kvd_link *conn, const Kvd__Wire__HelloReply *hello, int *fds,
                            unsigned n_fds, struct kvd_diag *diag);

/* ---- transport.c */
void kvd_link_unref_locked(struct kvd_link *conn);
/* Ends a link: all its calls are answered with KVD_UNAVAILABLE. why: for people. */
void kvd_link_fail_locked(struct kvd_link *conn, const char *why);
/* Takes all packets that are there, without waiting. */
void kvd_link_pump_locked(struct kvd_link *conn);
/* Sends a ping that nobody waits for, unless one is out. */
void kvd_link_probe_locked(struct kvd_link *conn);
void kvd_link_note_locked(struct kvd_link *conn, struct kvd_note note);

/* A new call on a link, with a range of `bytes` in the request area (0: none); waits for room until
 * the deadline where `wait`. */
int kvd_call_create_locked(struct kvd_link *conn, enum kvd_call_op op, uint64_t deadline_ns,
                           uint64_t bytes, bool wait, struct kvd_call **ret);
/* Sends a request; the call is WAITING then. Waits for room in the socket where `wait`. On failure
 * the call is still the caller's, NEW. */
int kvd_call_send_locked(struct kvd_call *call, Kvd__Wire__Request *req, bool wait);
/* Waits for the reply. 0: DONE, the caller's, look at status. Else the call is gone (KVD_DEADLINE).
 */
int kvd_call_wait_locked(struct kvd_call *call);
/* Its deadline has passed: from now on the call belongs to its link. */
void kvd_call_abandon_locked(struct kvd_call *call);
void kvd_call_free_locked(struct kvd_call **call);
/* Status of a DONE call, with the daemon's words as the thread's message. */
int kvd_call_status(struct kvd_call *call);
/* send, wait, status: for calls with nothing else to do between. Frees the call where it fails. */
int kvd_call_run_locked(struct kvd_call **call, Kvd__Wire__Request *req);

/* ---- space.c */

/* 0 when the space is registered on a live link. Not wait: KVD_UNAVAILABLE while it is not yet. */
int kvd_space_ready_locked(struct kvd_space *s, bool wait);
void kvd_space_opened_locked(struct kvd_call *call, const Kvd__Wire__SpaceOpenReply *msg, int *fds,
                             unsigned n_fds);
void kvd_space_reg_unref_locked(struct kvd_space_reg **reg);
void kvd_space_free_locked(struct kvd_space *s);

/* ---- match.c */
int kvd_prompt_check(struct kvd_space *s, const struct kvd_prompt *prompt);
/* A call with the prompt's first n_tokens in its range and n_results rows behind them; fills in
 * *ret_msg, whose tokens are *ret_tokens. The lock is let go for the copy. */
int kvd_prompt_call_locked(struct kvd_space *s, enum kvd_call_op op,
                           const struct kvd_prompt *prompt, uint32_t n_tokens, uint32_t n_results,
                           bool wait, uint64_t budget_ns, Kvd__Wire__Prompt *ret_msg,
                           Kvd__Wire__Range *ret_tokens, struct kvd_call **ret);
struct kvd_wire_block kvd_call_row(const struct kvd_call *call, uint32_t i);
int kvd_match_finish_locked(struct kvd_call *call, struct kvd_match_result *ret);
void kvd_lease_free_locked(struct kvd_lease *lease);

/* ---- load.c */

/* A part of a load: blocks [first, first + n) of the lease; `before` were copied by earlier parts.
 * placed: instead of being copied to dest. */
struct kvd_part {
    struct kvd_lease *lease;
    uint32_t first;
    uint32_t n;
    uint32_t before;
    void *const *dest;
    const void **placed;
    uint64_t deadline_ns;
};

/* Checks a range and connects, as far as can be told; then fills in the part, whose time begins. */
int kvd_load_begin(struct kvd_lease *lease, uint32_t first, uint32_t n, bool wait,
                   struct kvd_part *ret);
/* Sends a part. wait: until its reply has come, then *ret is the DONE call. Else it becomes
 * kvd_drain's. */
int kvd_load_start_locked(const struct kvd_part *part, bool wait, void *cookie,
                          struct kvd_call **ret);
/* A submission of a load into dest, or, where that is NULL, of a use in place. */
int kvd_load_submit(struct kvd_lease *lease, uint32_t first, uint32_t n, void *const *dest,
                    const void **placed, void *cookie);
/* Whether the daemon's row of a loaded block points into the pool. */
bool kvd_load_row_right(const struct kvd_link *conn, const struct kvd_wire_block *row,
                        uint64_t payload_bytes);
/* The daemon is told with the release: blocks from here on were hits to it, but not to the caller.
 */
void kvd_load_stale_locked(struct kvd_lease *lease, uint32_t from);
/* Copies what a DONE submission brought; without the lock. False: it goes on as another submission.
 */
bool kvd_load_finish(struct kvd_call *call, uint32_t *ret_good);
/* A submission ended without its blocks: the release of its lease will say so. */
void kvd_load_failed_locked(const struct kvd_call *call);

/* ---- place.c */

/* Takes what a DONE call placed. 0 and the number of good blocks. */
int kvd_place_finish_locked(struct kvd_call *call, uint32_t *ret_good);

/* ---- put.c */
int kvd_put_commit_finish_locked(struct kvd_call *call, struct kvd_put_result *ret);
void kvd_put_free_locked(struct kvd_put *put);

/* ---- report.c */

/* Sends a request that carries nothing but itself and waits for its reply. */
int kvd_simple_call_locked(struct kvd_client *c, enum kvd_call_op op, uint64_t budget_ns,
                           Kvd__Wire__Request *req, struct kvd_call **ret);

/* A report's reply came; takes the descriptor where the text lies in one (sets it to -1). */
void kvd_report_take_locked(struct kvd_call *call, const Kvd__Wire__AdminReply *msg, int *fds,
                            unsigned n_fds);

/* ---- submit.c */

/* Sends a submission: on success the call belongs to kvd_drain, else it is freed. */
int kvd_submit_send_locked(struct kvd_call *call, Kvd__Wire__Request *req, void *cookie);
void kvd_submit_done_locked(struct kvd_call *call); /* its reply came, or its link failed */

#endif
