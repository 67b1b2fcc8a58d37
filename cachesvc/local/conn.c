/*
 * One client's connection: its two descriptors (socket, and the process itself), and sending.
 *
 * A reply is sent at once where the socket has room. Where it has none it waits in a bounded queue
 * and nothing more is read from that client; a client that reads nothing for LOCAL_SEND_MS, or lets
 * the queue grow beyond its bound, is cut off. So one stuck client costs the others nothing.
 *
 * States: adopted -> registered (in epoll) -> greeted (has a session) -> closed -> freed with the
 * last reference. Only the door thread closes; others call local_conn_break.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cachesvc/local/door.h"
#include "proto/base/cleanup.h"
#include "proto/base/protect.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5; younger than Debian 12's headers */
#endif

enum { REPLY_ON_STACK_BYTES = 2048, REPLY_FDS_MAX = 2 };

/* A reply that waits for room; bytes follow. */
struct queued {
    struct kvd_list link;
    unsigned n_fds;
    int fds[REPLY_FDS_MAX]; /* duplicates, ours */
    size_t n;
    uint8_t bytes[];
};

/* ---- life */

/* A descriptor that becomes readable when the client's process ends, or -1: then only the socket's
 * end shows it. -ESRCH: it has ended already. */
static int process_watch(int fd, pid_t pid)
{
    int pidfd = -1;
    socklen_t n = sizeof(pidfd);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &n) == 0) {
        return pidfd;
    }
    if (errno == ESRCH) {
        return -ESRCH;
    }
    pidfd = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
    return pidfd >= 0 ? pidfd : errno == ESRCH && pid > 0 ? -ESRCH : -1;
}

int local_conn_create(struct kvd_local *local, int fd, struct local_conn **ret)
{
    struct ucred cred;
    socklen_t n = sizeof(cred);
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
        fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) < 0) {
        return -errno;
    }
    struct local_conn *conn = calloc(1, sizeof(*conn));
    if (!conn) {
        return -ENOMEM;
    }
    /* our own process at the other end (an embedded daemon): no end to wait for */
    const bool other = cred.pid != getpid() && KVD_PROTECT(PROCESS_END_FREES);
    conn->pidfd = other ? process_watch(fd, cred.pid) : -1;
    if (conn->pidfd == -ESRCH) {
        free(conn);
        return -ESRCH;
    }
    KVD_MAGIC_SET(conn, LOCAL_CONN_MAGIC);
    atomic_init(&conn->refs, 1);
    conn->local = local;
    conn->fd = fd;
    conn->pid = cred.pid;
    conn->uid = cred.uid;
    conn->socket_source = (struct local_source){.kind = LOCAL_SOCKET, .conn = conn};
    conn->process_source = (struct local_source){.kind = LOCAL_PROCESS, .conn = conn};
    conn->hello_deadline_ns = kvd_mono_ns() + (uint64_t)LOCAL_HELLO_MS * KVD_NS_PER_MS;
    kvd_list_init(&conn->link);
    kvd_list_init(&conn->queue);
    (void)pthread_mutex_init(&conn->mtx, NULL);
    (void)pthread_mutex_lock(&local->mtx);
    local->n_conns++;
    (void)pthread_mutex_unlock(&local->mtx);
    *ret = conn;
    return 0;
}

int local_conn_register(struct local_conn *conn)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &conn->socket_source};
    if (epoll_ctl(conn->local->epfd, EPOLL_CTL_ADD, conn->fd, &ev) < 0) {
        return -errno;
    }
    conn->interest = EPOLLIN;
    ev.data.ptr = &conn->process_source;
    if (conn->pidfd >= 0 && epoll_ctl(conn->local->epfd, EPOLL_CTL_ADD, conn->pidfd, &ev) < 0) {
        return -errno;
    }
    return 0;
}

void local_conn_ref(struct local_conn *conn)
{
    KVD_MAGIC_CHECK(conn, LOCAL_CONN_MAGIC);
    (void)atomic_fetch_add(&conn->refs, 1);
}

static void queued_free(struct queued *q)
{
    for (unsigned i = 0; i < q->n_fds; i++) {
        kvd_close_fd(&q->fds[i]);
    }
    free(q);
}

static void queue_clear_locked(struct local_conn *conn)
{
    struct kvd_list *link;
    if (!kvd_list_empty(&conn->queue)) {
        (void)atomic_fetch_sub(&conn->local->n_queued, 1);
    }
    while ((link = kvd_list_pop_front(&conn->queue))) {
        queued_free(KVD_CONTAINER_OF(link, struct queued, link));
    }
    conn->queued_bytes = 0;
}

void local_conn_unref(struct local_conn *conn)
{
    KVD_MAGIC_CHECK(conn, LOCAL_CONN_MAGIC);
    if (atomic_fetch_sub(&conn->refs, 1) != 1) {
        return;
    }
    struct kvd_local *local = conn->local;
    KVD_ASSERT(!conn->session);
    kvd_close_fd(&conn->fd);
    kvd_close_fd(&conn->pidfd);
    queue_clear_locked(conn);
    local_area_unmap(&conn->area);
    (void)pthread_mutex_destroy(&conn->mtx);
    KVD_MAGIC_CLEAR(conn);
    free(conn);
    (void)pthread_mutex_lock(&local->mtx);
    if (--local->n_conns == 0) {
        (void)pthread_cond_broadcast(&local->idle);
    }
    (void)pthread_mutex_unlock(&local->mtx);
}

void local_conn_close(struct local_conn *conn, const char *why)
{
    struct kvd_local *local = conn->local;
    if (why) {
        kvd_log_warn(local->log, "client %s (pid %d, uid %u): closed: %s",
                     conn->program[0] ? conn->program : "without a name", (int)conn->pid,
                     (unsigned)conn->uid, why);
    } else if (conn->greeted) {
        kvd_log_info(local->log, "client %s (pid %d): has left", conn->program, (int)conn->pid);
    }
    if (!conn->greeted) {
        local->n_ungreeted--;
    }
    /* closing alone would leave the watch in place where a forked child holds the socket too */
    (void)pthread_mutex_lock(&conn->mtx);
    (void)epoll_ctl(local->epfd, EPOLL_CTL_DEL, conn->fd, NULL);
    kvd_close_fd(&conn->fd);
    queue_clear_locked(conn);
    (void)pthread_mutex_unlock(&conn->mtx);
    if (conn->pidfd >= 0) {
        (void)epoll_ctl(local->epfd, EPOLL_CTL_DEL, conn->pidfd, NULL);
        kvd_close_fd(&conn->pidfd);
    }
    kvd_session_end(&conn->session);
    kvd_list_remove(&conn->link);
    kvd_list_push_back(&local->closed, &conn->link);
}

/* ---- sending */

static void break_locked(struct local_conn *conn, const char *why)
{
    if (!conn->broken && conn->fd >= 0) {
        conn->broken = why;
        (void)shutdown(conn->fd, SHUT_RDWR); /* wakes the door by EPOLLHUP */
    }
}

void local_conn_break(struct local_conn *conn, const char *why)
{
    (void)pthread_mutex_lock(&conn->mtx);
    break_locked(conn, why);
    (void)pthread_mutex_unlock(&conn->mtx);
}

const char *local_conn_broken(struct local_conn *conn)
{
    (void)pthread_mutex_lock(&conn->mtx);
    const char *why = conn->broken;
    (void)pthread_mutex_unlock(&conn->mtx);
    return why;
}

static void interest_update_locked(struct local_conn *conn)
{
    bool waiting = !kvd_list_empty(&conn->queue);
    uint32_t want = waiting ? EPOLLOUT : atomic_load(&conn->local->stopping) ? 0 : EPOLLIN;
    if (want != conn->interest && conn->fd >= 0) {
        struct epoll_event ev = {.events = want, .data.ptr = &conn->socket_source};
        (void)epoll_ctl(conn->local->epfd, EPOLL_CTL_MOD, conn->fd, &ev);
        conn->interest = want;
    }
}

/* 0, or -errno. */
static int send_now(int fd, const void *bytes, size_t n, const int *fds, unsigned n_fds)
{
    union {
        char buf[CMSG_SPACE(sizeof(int) * REPLY_FDS_MAX)];
        struct cmsghdr align;
    } control = {0};
    struct iovec iov = {.iov_base = (void *)bytes, .iov_len = n};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n_fds) {
        msg.msg_control = control.buf;
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
    }
    ssize_t sent;
    do {
        sent = sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    return sent < 0 ? -errno : 0;
}

static struct queued *queued_create(const void *bytes, size_t n, const int *fds, unsigned n_fds)
{
    struct queued *q = malloc(sizeof(*q) + n);
    if (!q) {
        return NULL;
    }
    q->n = n;
    q->n_fds = 0;
    kvd_list_init(&q->link);
    memcpy(q->bytes, bytes, n);
    for (unsigned i = 0; i < n_fds; i++) {
        q->fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
        if (q->fds[i] < 0) {
            queued_free(q);
            return NULL;
        }
        q->n_fds++;
    }
    return q;
}

static void queue_push_locked(struct local_conn *conn, const void *bytes, size_t n, const int *fds,
                              unsigned n_fds)
{
    if (conn->queued_bytes + n > LOCAL_QUEUE_BYTES) {
        break_locked(conn, "does not read its replies");
        return;
    }
    struct queued *q = queued_create(bytes, n, fds, n_fds);
    if (!q) {
        break_locked(conn, "no memory or descriptors to keep a reply");
        return;
    }
    if (kvd_list_empty(&conn->queue)) {
        conn->queued_since_ns = kvd_mono_ns();
        (void)atomic_fetch_add(&conn->local->n_queued, 1);
        local_wake(conn->local); /* so that it looks at deadlines from now on */
    }
    kvd_list_push_back(&conn->queue, &q->link);
    conn->queued_bytes += n;
    interest_update_locked(conn);
}

static void send_or_queue(struct local_conn *conn, const void *bytes, size_t n, const int *fds,
                          unsigned n_fds)
{
    (void)pthread_mutex_lock(&conn->mtx);
    if (conn->fd >= 0 && !conn->broken) {
        int err = kvd_list_empty(&conn->queue) ? send_now(conn->fd, bytes, n, fds, n_fds) : -EAGAIN;
        if (err == -EAGAIN) {
            queue_push_locked(conn, bytes, n, fds, n_fds);
        } else if (err == -EPIPE || err == -ECONNRESET) {
            break_locked(conn, ""); /* it has left: the door finds that out by itself */
        } else if (err) {
            break_locked(conn, "sending a reply failed");
        }
    }
    (void)pthread_mutex_unlock(&conn->mtx);
}

void local_conn_reply(struct local_conn *conn, Kvd__Wire__Reply *reply, const int *fds,
                      unsigned n_fds)
{
    if (reply->id == 0) {
        return;
    }
    uint8_t small[REPLY_ON_STACK_BYTES];
    KVD_AUTOFREE uint8_t *large = NULL;
    size_t n = kvd__wire__reply__get_packed_size(reply);
    KVD_ASSERT(n <= KVD_WIRE_PACKET_MAX);
    if (n > sizeof(small)) {
        large = malloc(n);
        if (!large) {
            local_conn_break(conn, "no memory for a reply");
            return;
        }
    }
    uint8_t *bytes = large ? large : small;
    n = kvd__wire__reply__pack(reply, bytes);
    send_or_queue(conn, bytes, n, fds, n_fds);
}

void local_conn_reply_error(struct local_conn *conn, uint64_t id, int err,
                            const struct kvd_diag *diag)
{
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    reply.id = id;
    reply.error = kvd_error_to_wire(err);
    reply.error_text = (char *)(diag && diag->text[0] ? diag->text : kvd_strerror(err));
    local_conn_reply(conn, &reply, NULL, 0);
}

void local_conn_flush(struct local_conn *conn)
{
    (void)pthread_mutex_lock(&conn->mtx);
    while (!kvd_list_empty(&conn->queue) && conn->fd >= 0 && !conn->broken) {
        struct queued *q = KVD_CONTAINER_OF(conn->queue.next, struct queued, link);
        int err = send_now(conn->fd, q->bytes, q->n, q->fds, q->n_fds);
        if (err == -EAGAIN) {
            break;
        }
        if (err) {
            break_locked(conn, "");
            break;
        }
        kvd_list_remove(&q->link);
        conn->queued_bytes -= q->n;
        conn->queued_since_ns = kvd_mono_ns();
        queued_free(q);
        if (kvd_list_empty(&conn->queue)) {
            (void)atomic_fetch_sub(&conn->local->n_queued, 1);
        }
    }
    interest_update_locked(conn);
    (void)pthread_mutex_unlock(&conn->mtx);
}

bool local_conn_send_overdue(struct local_conn *conn, uint64_t now_ns)
{
    (void)pthread_mutex_lock(&conn->mtx);
    bool overdue = !kvd_list_empty(&conn->queue) &&
                   now_ns > conn->queued_since_ns + (uint64_t)LOCAL_SEND_MS * KVD_NS_PER_MS;
    (void)pthread_mutex_unlock(&conn->mtx);
    return overdue;
}

bool local_conn_send_waits(struct local_conn *conn)
{
    (void)pthread_mutex_lock(&conn->mtx);
    bool waits = !kvd_list_empty(&conn->queue);
    (void)pthread_mutex_unlock(&conn->mtx);
    return waits;
}

/* ---- work under way */

bool local_conn_busy(struct local_conn *conn)
{
    (void)pthread_mutex_lock(&conn->mtx);
    bool busy = !conn->broken && (conn->underway > 0 || !kvd_list_empty(&conn->queue));
    (void)pthread_mutex_unlock(&conn->mtx);
    return busy;
}

bool local_conn_begin_work(struct local_conn *conn)
{
    (void)pthread_mutex_lock(&conn->mtx);
    bool room = conn->underway < LOCAL_UNDERWAY_MAX;
    conn->underway += room;
    (void)pthread_mutex_unlock(&conn->mtx);
    if (room) {
        local_conn_ref(conn);
    }
    return room;
}

void local_conn_end_work(struct local_conn *conn)
{
    struct kvd_local *local = conn->local;
    (void)pthread_mutex_lock(&conn->mtx);
    KVD_ASSERT(conn->underway > 0);
    conn->underway--;
    (void)pthread_mutex_unlock(&conn->mtx);
    if (atomic_load(&local->stopping)) {
        local_wake(local); /* before the reference goes: stop waits for it, so `local` is there */
    }
    local_conn_unref(conn);
}

void local_wake(struct kvd_local *local)
{
    (void)eventfd_write(local->wakefd, 1);
}
