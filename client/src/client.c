/*
 * A client's life, its lock, its messages. The message of a thread's last failed call is kept in
 * the thread, so that threads do not overwrite each other's.
 */
#include "client/src/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

_Static_assert(KVD_NOT_FOUND == -KVD_E_NOT_FOUND, "public errors are the common ones");
_Static_assert(KVD_STALE == -KVD_E_STALE, "public errors are the common ones");
_Static_assert(KVD_CORRUPT == -KVD_E_CORRUPT, "public errors are the common ones");
_Static_assert(KVD_OVER_QUOTA == -KVD_E_OVER_QUOTA, "public errors are the common ones");
_Static_assert(KVD_FULL == -KVD_E_FULL, "public errors are the common ones");
_Static_assert(KVD_BAD_REQUEST == -KVD_E_BAD_REQUEST, "public errors are the common ones");
_Static_assert(KVD_CONTRADICTION == -KVD_E_CONTRADICTION, "public errors are the common ones");
_Static_assert(KVD_UNAVAILABLE == -KVD_E_UNAVAILABLE, "public errors are the common ones");
_Static_assert(KVD_DEADLINE == -KVD_E_DEADLINE, "public errors are the common ones");
_Static_assert(KVD_IO == -KVD_E_IO, "public errors are the common ones");
_Static_assert(KVD_UNKNOWN_SCENARIO == -KVD_E_UNKNOWN_SCENARIO,
               "public errors are the common ones");
_Static_assert(KVD_BUSY == -KVD_E_BUSY, "public errors are the common ones");
_Static_assert(KVD_TOO_LONG == -KVD_E_TOO_LONG, "public errors are the common ones");
_Static_assert(KVD_INTERNAL == -KVD_E_INTERNAL, "public errors are the common ones");

enum { SOCKET_PATH_MAX = 107, PROGRAM_MAX = 63, CONNECT_MS = 200, MATCH_MS = 20, IO_MS = 2000 };

/* Constant but for the owner: one thread's last message. */
static _Thread_local struct {
    const struct kvd_client *client;
    struct kvd_diag diag;
} last_message;

void kvd_client_say(struct kvd_client *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(last_message.diag.text, sizeof(last_message.diag.text), fmt, ap);
    va_end(ap);
    last_message.client = c;
}

const char *kvd_client_message(struct kvd_client *client)
{
    return last_message.client == client ? last_message.diag.text : "";
}

const char *kvd_status_text(int status)
{
    return kvd_strerror(status);
}

/* ---- lock */

void kvd_client_lock(struct kvd_client *c)
{
    (void)pthread_mutex_lock(&c->mtx);
}

void kvd_client_unlock(struct kvd_client *c)
{
    (void)pthread_mutex_unlock(&c->mtx);
}

void kvd_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(cond, &attr);
    (void)pthread_condattr_destroy(&attr);
}

bool kvd_client_wait_locked(struct kvd_client *c, pthread_cond_t *cond, uint64_t deadline_ns)
{
    struct timespec ts = {.tv_sec = (time_t)(deadline_ns / KVD_NS_PER_S),
                          .tv_nsec = (long)(deadline_ns % KVD_NS_PER_S)};
    return pthread_cond_timedwait(cond, &c->mtx, &ts) == 0;
}

/* ---- life */

void kvd_client_options_init(struct kvd_client_options *options)
{
    *options = (struct kvd_client_options){
        .size = sizeof(*options),
        .fd = -1,
        .connect_ms = CONNECT_MS,
        .match_ms = MATCH_MS,
        .io_ms = IO_MS,
    };
}

static int options_check(const struct kvd_client_options *o)
{
    if (o->size != sizeof(*o)) {
        return kvd_client_fail(NULL, KVD_BAD_REQUEST,
                               "options.size is %zu, must be %zu: call kvd_client_options_init",
                               o->size, sizeof(*o));
    }
    if (!o->socket_path && o->fd < 0) {
        return kvd_client_fail(NULL, KVD_BAD_REQUEST, "neither a socket path nor a descriptor");
    }
    size_t n = o->socket_path ? strlen(o->socket_path) : 1;
    if (o->fd < 0 && (n < 1 || n > SOCKET_PATH_MAX)) {
        return kvd_client_fail(NULL, KVD_BAD_REQUEST,
                               "the socket path has %zu bytes, must have 1 to %d", n,
                               SOCKET_PATH_MAX);
    }
    return 0;
}

static uint64_t option_ns(uint32_t ms, uint32_t def)
{
    return (uint64_t)(ms ? ms : def) * KVD_NS_PER_MS;
}

static int watch(struct kvd_client *c, int fd)
{
    struct epoll_event ev = {.events = EPOLLIN};
    return epoll_ctl(c->epfd, EPOLL_CTL_ADD, fd, &ev) < 0 ? -errno : 0;
}

static int descriptors_open(struct kvd_client *c)
{
    c->epfd = epoll_create1(EPOLL_CLOEXEC);
    c->eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->timerfd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (c->epfd < 0 || c->eventfd < 0 || c->timerfd < 0) {
        return -errno;
    }
    int err = watch(c, c->eventfd);
    return err ? err : watch(c, c->timerfd);
}

static int client_create(const struct kvd_client_options *o, struct kvd_client **ret)
{
    struct kvd_client *c = calloc(1, sizeof(*c));
    if (!c) {
        return -ENOMEM;
    }
    KVD_MAGIC_SET(c, KVD_CLIENT_MAGIC);
    c->epfd = c->eventfd = c->timerfd = -1;
    (void)pthread_mutex_init(&c->mtx, NULL);
    kvd_cond_init(&c->room);
    kvd_list_init(&c->spaces);
    kvd_list_init(&c->leases);
    kvd_list_init(&c->puts);
    kvd_list_init(&c->submitted);
    kvd_list_init(&c->done);
    c->connect_ns = option_ns(o->connect_ms, CONNECT_MS);
    c->match_ns = option_ns(o->match_ms, MATCH_MS);
    c->io_ns = option_ns(o->io_ms, IO_MS);
    c->next_serial = 1;
    c->stats.size = sizeof(c->stats);
    c->path = o->fd < 0 ? strdup(o->socket_path) : NULL;
    c->program = o->program ? strndup(o->program, PROGRAM_MAX) : strdup("");
    *ret = c;
    return (o->fd < 0 && !c->path) || !c->program ? -ENOMEM : descriptors_open(c);
}

int kvd_client_open(const struct kvd_client_options *options, struct kvd_client **ret_client)
{
    KVD_CLEANUP(kvd_client_close) struct kvd_client *c = NULL;
    int err = options_check(options);
    err = err ? err : client_create(options, &c);
    if (err) {
        return err;
    }
    kvd_client_lock(c);
    if (options->fd >= 0) {
        err = kvd_client_attach_locked(c, options->fd);
    }
    if (!err) {
        /* no daemon is no error: it is tried again inside calls */
        (void)kvd_client_ready_locked(c, true, kvd_mono_ns() + c->connect_ns);
    }
    kvd_client_unlock(c);
    if (err) {
        return err;
    }
    *ret_client = KVD_TAKE(c);
    return 0;
}

static void objects_free_locked(struct kvd_client *c)
{
    while (!kvd_list_empty(&c->done)) {
        struct kvd_call *call = KVD_CONTAINER_OF(c->done.next, struct kvd_call, async);
        kvd_call_free_locked(&call);
    }
    while (!kvd_list_empty(&c->leases)) {
        kvd_lease_free_locked(KVD_CONTAINER_OF(c->leases.next, struct kvd_lease, link));
    }
    while (!kvd_list_empty(&c->puts)) {
        kvd_put_free_locked(KVD_CONTAINER_OF(c->puts.next, struct kvd_put, link));
    }
    while (!kvd_list_empty(&c->spaces)) {
        kvd_space_free_locked(KVD_CONTAINER_OF(c->spaces.next, struct kvd_space, link));
    }
}

void kvd_client_close(struct kvd_client **client)
{
    struct kvd_client *c = client ? *client : NULL;
    if (!c) {
        return;
    }
    KVD_MAGIC_CHECK(c, KVD_CLIENT_MAGIC);
    *client = NULL;
    kvd_client_lock(c);
    if (c->conn) {
        kvd_link_fail_locked(c->conn, "the client was closed");
    }
    objects_free_locked(c);
    kvd_client_unlock(c);
    kvd_close_fd(&c->epfd);
    kvd_close_fd(&c->eventfd);
    kvd_close_fd(&c->timerfd);
    (void)pthread_cond_destroy(&c->room);
    (void)pthread_mutex_destroy(&c->mtx);
    free(c->path);
    free(c->program);
    if (last_message.client == c) {
        last_message.client = NULL;
    }
    KVD_MAGIC_CLEAR(c);
    free(c);
}

bool kvd_client_connected(struct kvd_client *client)
{
    KVD_MAGIC_CHECK(client, KVD_CLIENT_MAGIC);
    kvd_client_lock(client);
    if (client->conn) {
        kvd_link_pump_locked(client->conn);
    }
    const struct kvd_link *conn = client->conn;
    bool connected = conn && conn->state == KVD_LINK_LIVE && !conn->stalled;
    kvd_client_unlock(client);
    return connected;
}

int kvd_client_fd(struct kvd_client *client)
{
    KVD_MAGIC_CHECK(client, KVD_CLIENT_MAGIC);
    return client->epfd;
}
