/*
 * Inside of the clients' door: one struct for the door, one for a connection. Nobody outside
 * cachesvc/local includes this.
 *
 * Threads. The door thread accepts, receives, calls the service and ends sessions. Worker threads
 * of the service send the replies of loads and commits. Fields say who may touch them.
 *
 * Locks. kvd_local.mtx before local_conn.mtx; neither is held while the service is called.
 */
#ifndef CACHESVC_LOCAL_DOOR_H
#define CACHESVC_LOCAL_DOOR_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/socket.h>

#include "cachesvc/local/local.h"
#include "proto/base/assert.h"
#include "proto/base/clock.h"
#include "proto/base/list.h"

enum {
    LOCAL_MAGIC = 0x6c6f6331,
    LOCAL_CONN_MAGIC = 0x636f6e31,
    LOCAL_PACKETS_A_WAKEUP = 8,    /* of one client, before the others have their turn */
    LOCAL_UNGREETED_MAX = 64,      /* connections that have not said hello */
    LOCAL_UNDERWAY_MAX = 256,      /* loads and commits of one client; more is BUSY */
    LOCAL_QUEUE_BYTES = 512 << 10, /* replies kept for a client that does not read */
    LOCAL_HELLO_MS = 5000,
    LOCAL_SEND_MS =
        2000,            /* a client that reads nothing for so long while replies wait is cut off */
    LOCAL_TICK_MS = 100, /* how often deadlines are looked at while there are any */
    LOCAL_IDLE_MS = 10000,
    LOCAL_STOP_MS = 10000,
    LOCAL_SPIN_US = 50, /* see README.md for the measurement */
};

/* What an epoll event belongs to. */
enum local_source_kind { LOCAL_LISTEN, LOCAL_WAKE, LOCAL_SOCKET, LOCAL_PROCESS };
struct local_source {
    enum local_source_kind kind;
    struct local_conn *conn;
};

struct local_listener {
    int fd; /* -1: none */
    int lock_fd;
    char path[108];
    char lock_path[116];
    uint64_t dev; /* of the socket file, so that only our own is removed */
    uint64_t ino;
};

/* Memory of the door thread for a request's copies; grows, is kept. */
struct local_scratch {
    void *bytes;
    size_t size;
};

struct kvd_local {
    uint32_t magic;
    struct kvd_service *service;
    struct kvd_log *log;
    struct local_listener listener;
    int epfd;
    int wakefd;
    pthread_t thread;
    atomic_bool stopping;

    /* owner: door thread */
    struct kvd_list conns;
    struct kvd_list closed; /* unreferenced after the events of this wake-up */
    unsigned n_ungreeted;
    bool accept_paused;
    uint64_t next_tick_ns;
    uint64_t stop_deadline_ns;
    uint8_t *packet; /* KVD_WIRE_PACKET_MAX bytes */
    struct local_scratch tokens;
    struct local_scratch rows;
    struct local_source listen_source;
    struct local_source wake_source;

    atomic_uint n_queued; /* connections with replies waiting */

    pthread_mutex_t mtx;
    pthread_cond_t idle;      /* n_conns became 0 */
    unsigned n_conns;         /* lock: mtx. All that have memory */
    struct kvd_list adopting; /* lock: mtx. Connections that the door thread has not seen yet */
};

struct local_conn {
    uint32_t magic;
    atomic_uint refs; /* the door's, and one for each load or commit under way */
    struct kvd_local *local;
    struct kvd_list link; /* kvd_local.adopting (its lock), then conns or closed (door thread) */
    struct local_source socket_source;
    struct local_source process_source;
    pid_t pid;
    uid_t uid;

    /* owner: door thread */
    int pidfd; /* -1: none */
    bool greeted;
    uint64_t hello_deadline_ns;
    char program[64];
    struct kvd_session *session;
    uint8_t *area; /* constant from hello to the last reference */

    pthread_mutex_t mtx;
    /* lock: mtx */
    int fd;             /* -1 once closed */
    const char *broken; /* why it must be closed, or NULL */
    struct kvd_list queue;
    size_t queued_bytes;
    uint64_t queued_since_ns; /* since when the first of the queue waits */
    unsigned underway;
    uint32_t interest; /* epoll events asked for */
};

/* ---- listen.c: the socket file */
int local_listener_open(struct local_listener *l, const char *path, mode_t mode,
                        struct kvd_diag *diag);
void local_listener_close(struct local_listener *l);

/* ---- conn.c: life of a connection, and sending */
int local_conn_create(struct kvd_local *local, int fd, struct local_conn **ret);
int local_conn_register(struct local_conn *conn); /* puts it into epoll; door thread */
void local_conn_ref(struct local_conn *conn);
void local_conn_unref(struct local_conn *conn);
void local_conn_close(struct local_conn *conn, const char *why); /* door thread; NULL: no fault */

/* Makes the door close it soon; any thread. why: constant text. */
void local_conn_break(struct local_conn *conn, const char *why);
const char *local_conn_broken(struct local_conn *conn);

/* Packs and sends a reply, or keeps it until the client reads; descriptors are borrowed. Any
 * thread. Nothing is sent for id 0, or on a closed connection. */
void local_conn_reply(struct local_conn *conn, Kvd__Wire__Reply *reply, const int *fds,
                      unsigned n_fds);
void local_conn_reply_error(struct local_conn *conn, uint64_t id, int err,
                            const struct kvd_diag *diag);
void local_conn_flush(struct local_conn *conn); /* the socket has room again; door thread */
bool local_conn_send_overdue(struct local_conn *conn, uint64_t now_ns);
bool local_conn_send_waits(struct local_conn *conn); /* replies wait for room */
bool local_conn_busy(struct local_conn *conn);       /* something under way or waiting to be sent */
bool local_conn_begin_work(struct local_conn *conn); /* takes a reference; false: too many */
void local_conn_end_work(struct local_conn *conn);
void local_wake(struct kvd_local *local);

/* ---- request.c, work.c: what packets ask for; door thread. NULL, or why the connection must be
 * closed. */
const char *local_packet_handle(struct local_conn *conn, const uint8_t *bytes, size_t n);
void local_load_handle(struct local_conn *conn, uint64_t id, const Kvd__Wire__LoadRequest *msg);
void local_put_commit_handle(struct local_conn *conn, uint64_t id,
                             const Kvd__Wire__PutCommitRequest *msg);
void local_purge_handle(struct local_conn *conn, uint64_t id, const Kvd__Wire__PurgeRequest *msg);
/* prompt: copied out of the request area. */
void local_drop_handle(struct local_conn *conn, uint64_t id, const struct kvd_prompt_ref *prompt,
                       const Kvd__Wire__DropRequest *msg);

/* ---- area.c: memory shared with the client */
int local_area_create(int *ret_fd, uint8_t **ret_map);
void local_area_unmap(uint8_t **map);
/* A sealed memory with n bytes of text, for a reply that fits no packet; n at least 1. */
int local_text_create(const char *text, size_t n, int *ret_fd);
/* Checks a range that a client chose: inside the area, aligned, of whole elements, 1 to max of
 * them. */
int local_range_check(const Kvd__Wire__Range *range, size_t element_bytes, uint64_t max,
                      const char *what, struct kvd_diag *diag, uint32_t *ret_n);
int local_scratch_room(struct local_scratch *s, size_t bytes);

#endif
