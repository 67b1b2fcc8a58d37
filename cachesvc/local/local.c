/*
 * The door thread: accepts, receives, looks at deadlines; and starting and stopping it.
 *
 * Stopping: the socket file goes first, nothing more is read, what is under way is finished and
 * sent (within LOCAL_STOP_MS), then all sessions end and the thread returns.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cachesvc/local/door.h"
#include "proto/base/cleanup.h"
#include "proto/base/protect.h"

enum { EVENTS_A_WAKEUP = 64, ACCEPTS_A_WAKEUP = 16, CONTROL_FDS_MAX = 253, FREE_WAIT_S = 60 };

/* ---- receiving */

/* Closes whatever descriptors came: a client has none to send. */
static void control_drop(struct msghdr *msg)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
            (void)close(fd);
        }
    }
}

enum received { RECEIVED_PACKET, RECEIVED_NOTHING, RECEIVED_END, RECEIVED_TOO_LONG };

static enum received packet_receive(struct local_conn *conn, size_t *ret_n)
{
    union {
        char buf[CMSG_SPACE(sizeof(int) * CONTROL_FDS_MAX)];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = conn->local->packet, .iov_len = KVD_WIRE_PACKET_MAX};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.buf,
                         .msg_controllen = sizeof(control.buf)};
    ssize_t n = recvmsg(conn->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0) {
        return errno == EAGAIN || errno == EINTR ? RECEIVED_NOTHING : RECEIVED_END;
    }
    control_drop(&msg);
    if (n == 0) {
        return RECEIVED_END; /* an empty packet looks the same, and is no request either */
    }
    *ret_n = (size_t)n;
    return msg.msg_flags & MSG_TRUNC ? RECEIVED_TOO_LONG : RECEIVED_PACKET;
}

static void conn_end(struct local_conn *conn, const char *why)
{
    const char *broken = local_conn_broken(conn);
    why = broken ? broken : why;
    local_conn_close(conn, why && why[0] ? why : NULL);
}

static void conn_read(struct local_conn *conn)
{
    for (int i = 0; i < LOCAL_PACKETS_A_WAKEUP; i++) {
        size_t n = 0;
        switch (packet_receive(conn, &n)) {
        case RECEIVED_NOTHING:
            return;
        case RECEIVED_END:
            if (KVD_PROTECT(SOCKET_END_FREES)) {
                conn_end(conn, NULL);
            }
            return;
        case RECEIVED_TOO_LONG:
            conn_end(conn, "sent a packet longer than 64 KiB");
            return;
        case RECEIVED_PACKET:
            break;
        }
        const char *why = local_packet_handle(conn, conn->local->packet, n);
        if (why || local_conn_broken(conn)) {
            conn_end(conn, why);
            return;
        }
        /* replies that wait for room: its next requests wait too, see interest_update_locked */
        if (local_conn_send_waits(conn)) {
            return;
        }
    }
}

static void socket_event(struct local_conn *conn, uint32_t events)
{
    if (events & EPOLLOUT) {
        local_conn_flush(conn);
    }
    bool over = local_conn_broken(conn) || !(events & (EPOLLIN | EPOLLOUT));
    if (over) {
        conn_end(conn, NULL);
    } else if (events & EPOLLIN) {
        conn_read(conn); /* what came before a hang-up is served; then comes the end */
    }
}

/* ---- accepting */

static void listener_watch(struct kvd_local *local, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = &local->listen_source};
    (void)epoll_ctl(local->epfd, EPOLL_CTL_MOD, local->listener.fd, &ev);
}

static void conn_add(struct kvd_local *local, struct local_conn *conn)
{
    local->n_ungreeted++;
    kvd_list_push_back(&local->conns, &conn->link);
    if (local->n_ungreeted > LOCAL_UNGREETED_MAX) {
        local_conn_close(conn, "too many connections that have not said hello");
    } else if (local_conn_register(conn)) {
        local_conn_close(conn, "no memory to watch another connection");
    }
}

static void accept_some(struct kvd_local *local)
{
    for (int i = 0; i < ACCEPTS_A_WAKEUP; i++) {
        struct local_conn *conn = NULL;
        KVD_AUTOCLOSE int fd =
            accept4(local->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
                /* it stays readable: look away for a tick instead of spinning */
                kvd_log_warn(local->log, "accepting a client: %s", kvd_strerror(-errno));
                local->accept_paused = true;
                listener_watch(local, 0);
            }
            return;
        }
        int err = local_conn_create(local, fd, &conn);
        if (err) {
            kvd_log_warn(local->log, "a client could not be accepted: %s", kvd_strerror(err));
            continue;
        }
        (void)kvd_take_fd(&fd);
        conn_add(local, conn);
    }
}

static void adopt_all(struct kvd_local *local)
{
    (void)pthread_mutex_lock(&local->mtx);
    while (!kvd_list_empty(&local->adopting)) {
        struct kvd_list *link = kvd_list_pop_front(&local->adopting);
        (void)pthread_mutex_unlock(&local->mtx);
        conn_add(local, KVD_CONTAINER_OF(link, struct local_conn, link));
        (void)pthread_mutex_lock(&local->mtx);
    }
    (void)pthread_mutex_unlock(&local->mtx);
}

/* ---- the loop */

static void tick(struct kvd_local *local, uint64_t now_ns)
{
    local->next_tick_ns = now_ns + (uint64_t)LOCAL_TICK_MS * KVD_NS_PER_MS;
    if (local->accept_paused) {
        local->accept_paused = false;
        listener_watch(local, EPOLLIN);
    }
    kvd_list_foreach_safe (it, &local->conns) {
        struct local_conn *conn = KVD_CONTAINER_OF(it, struct local_conn, link);
        if (KVD_PROTECT(HELLO_IN_TIME) && !conn->greeted && now_ns > conn->hello_deadline_ns) {
            conn_end(conn, "did not say hello in time");
        } else if (KVD_PROTECT(UNREAD_REPLIES_END) && local_conn_send_overdue(conn, now_ns)) {
            conn_end(conn, "does not read its replies");
        }
    }
}

static bool has_deadlines(struct kvd_local *local)
{
    return local->n_ungreeted > 0 || local->accept_paused || atomic_load(&local->n_queued) > 0 ||
           atomic_load(&local->stopping);
}

/* Waits for events: first spinning for a little, where something happened just before (a wake-up
 * costs a client's round trip tens of microseconds). */
static int wait_events(struct kvd_local *local, struct epoll_event *events, bool spin)
{
    uint64_t until = spin ? kvd_mono_ns() + LOCAL_SPIN_US * UINT64_C(1000) : 0;
    while (spin) {
        int n = epoll_wait(local->epfd, events, EVENTS_A_WAKEUP, 0);
        if (n != 0) {
            return n;
        }
        spin = kvd_mono_ns() < until;
    }
    return epoll_wait(local->epfd, events, EVENTS_A_WAKEUP,
                      has_deadlines(local) ? LOCAL_TICK_MS : LOCAL_IDLE_MS);
}

static void event_handle(struct kvd_local *local, const struct epoll_event *ev)
{
    struct local_source *source = ev->data.ptr;
    eventfd_t ignored;
    switch (source->kind) {
    case LOCAL_LISTEN:
        accept_some(local);
        break;
    case LOCAL_WAKE:
        (void)eventfd_read(local->wakefd, &ignored);
        adopt_all(local);
        break;
    case LOCAL_SOCKET:
        if (source->conn->fd >= 0) {
            socket_event(source->conn, ev->events);
        }
        break;
    case LOCAL_PROCESS:
        if (source->conn->fd >= 0) {
            conn_end(source->conn, NULL); /* its process has ended, whoever holds the socket */
        }
        break;
    }
}

static void closed_unref(struct kvd_local *local)
{
    struct kvd_list *link;
    while ((link = kvd_list_pop_front(&local->closed))) {
        local_conn_unref(KVD_CONTAINER_OF(link, struct local_conn, link));
    }
}

/* Takes no more; true when everything under way is done or its time is over. */
static bool stopping_done(struct kvd_local *local)
{
    if (!atomic_load(&local->stopping)) {
        return false;
    }
    uint64_t now = kvd_mono_ns();
    if (local->stop_deadline_ns == 0) {
        local->stop_deadline_ns = now + (uint64_t)LOCAL_STOP_MS * KVD_NS_PER_MS;
        local_listener_close(&local->listener);
        kvd_list_foreach (it, &local->conns) {
            local_conn_flush(KVD_CONTAINER_OF(it, struct local_conn, link));
        }
    }
    kvd_list_foreach (it, &local->conns) {
        if (local_conn_busy(KVD_CONTAINER_OF(it, struct local_conn, link))) {
            return now > local->stop_deadline_ns;
        }
    }
    return true;
}

static void *door_thread(void *arg)
{
    struct kvd_local *local = arg;
    struct epoll_event events[EVENTS_A_WAKEUP];
    bool spin = false;
    while (!stopping_done(local)) {
        int n = wait_events(local, events, spin);
        KVD_ASSERT(n >= 0 || errno == EINTR);
        for (int i = 0; i < n; i++) {
            event_handle(local, &events[i]);
        }
        closed_unref(local);
        spin = n > 0;
        uint64_t now = has_deadlines(local) ? kvd_mono_ns() : 0;
        if (now > local->next_tick_ns) {
            tick(local, now);
            closed_unref(local);
        }
    }
    adopt_all(local); /* so that they are closed too */
    kvd_list_foreach_safe (it, &local->conns) {
        conn_end(KVD_CONTAINER_OF(it, struct local_conn, link), NULL);
    }
    closed_unref(local);
    return NULL;
}

/* ---- start and stop */

static int watch(struct kvd_local *local, int fd, struct local_source *source)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = source};
    return epoll_ctl(local->epfd, EPOLL_CTL_ADD, fd, &ev) < 0 ? -errno : 0;
}

static void local_free(struct kvd_local **localp)
{
    struct kvd_local *local = *localp;
    if (!local) {
        return;
    }
    local_listener_close(&local->listener);
    kvd_close_fd(&local->epfd);
    kvd_close_fd(&local->wakefd);
    free(local->packet);
    free(local->tokens.bytes);
    free(local->rows.bytes);
    (void)pthread_mutex_destroy(&local->mtx);
    (void)pthread_cond_destroy(&local->idle);
    KVD_MAGIC_CLEAR(local);
    free(local);
    *localp = NULL;
}

static int local_create(struct kvd_service *service, struct kvd_log *log, struct kvd_local **ret)
{
    struct kvd_local *local = calloc(1, sizeof(*local));
    if (!local) {
        return -ENOMEM;
    }
    KVD_MAGIC_SET(local, LOCAL_MAGIC);
    local->service = service;
    local->log = log;
    local->listener = (struct local_listener){.fd = -1, .lock_fd = -1};
    local->listen_source.kind = LOCAL_LISTEN;
    local->wake_source.kind = LOCAL_WAKE;
    atomic_init(&local->stopping, false);
    atomic_init(&local->n_queued, 0);
    kvd_list_init(&local->conns);
    kvd_list_init(&local->closed);
    kvd_list_init(&local->adopting);
    (void)pthread_mutex_init(&local->mtx, NULL);
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&local->idle, &attr);
    (void)pthread_condattr_destroy(&attr);
    local->epfd = epoll_create1(EPOLL_CLOEXEC);
    local->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    local->packet = malloc(KVD_WIRE_PACKET_MAX);
    *ret = local;
    return local->epfd < 0 || local->wakefd < 0 ? -errno : local->packet ? 0 : -ENOMEM;
}

/* Signals are for the program's main thread. */
static int thread_start(struct kvd_local *local)
{
    sigset_t all;
    sigset_t was;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &was);
    int err = pthread_create(&local->thread, NULL, door_thread, local);
    (void)pthread_sigmask(SIG_SETMASK, &was, NULL);
    return -err;
}

int kvd_local_start(struct kvd_service *service, const struct kvd_local_options *options,
                    struct kvd_diag *diag, struct kvd_local **ret)
{
    KVD_CLEANUP(local_free) struct kvd_local *local = NULL;
    int err = local_create(service, options->log, &local);
    err = err ? err : watch(local, local->wakefd, &local->wake_source);
    if (!err && options->socket_path) {
        err =
            local_listener_open(&local->listener, options->socket_path, options->socket_mode, diag);
        if (err) {
            return err;
        }
        err = watch(local, local->listener.fd, &local->listen_source);
    }
    err = err ? err : thread_start(local);
    if (err) {
        return kvd_fail(diag, err, "clients' door: %s", kvd_strerror(err));
    }
    *ret = KVD_TAKE(local);
    return 0;
}

int kvd_local_adopt(struct kvd_local *local, int fd)
{
    KVD_MAGIC_CHECK(local, LOCAL_MAGIC);
    struct local_conn *conn;
    int err = local_conn_create(local, fd, &conn);
    if (err) {
        return err;
    }
    (void)pthread_mutex_lock(&local->mtx);
    kvd_list_push_back(&local->adopting, &conn->link);
    (void)pthread_mutex_unlock(&local->mtx);
    local_wake(local);
    return 0;
}

/* Whether all connections' memory is free, which callbacks of the service may still hold. */
static bool wait_all_freed(struct kvd_local *local)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += FREE_WAIT_S;
    int err = 0;
    (void)pthread_mutex_lock(&local->mtx);
    while (local->n_conns > 0 && err != ETIMEDOUT) {
        err = pthread_cond_timedwait(&local->idle, &local->mtx, &until);
    }
    bool freed = local->n_conns == 0;
    (void)pthread_mutex_unlock(&local->mtx);
    return freed;
}

void kvd_local_stop(struct kvd_local **localp)
{
    struct kvd_local *local = localp ? *localp : NULL;
    if (!local) {
        return;
    }
    KVD_MAGIC_CHECK(local, LOCAL_MAGIC);
    *localp = NULL;
    atomic_store(&local->stopping, true);
    local_wake(local);
    (void)pthread_join(local->thread, NULL);
    if (!wait_all_freed(local)) {
        /* a worker may still call back: its memory must stay */
        kvd_log_error(local->log, "stopping: a load or commit did not end within %d s",
                      FREE_WAIT_S);
        return;
    }
    local_free(&local);
}
