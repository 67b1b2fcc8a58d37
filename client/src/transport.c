/*
 * Calls over a link: ranges of the request area, sending, receiving, handing replies to their
 * calls, deadlines. Whoever waits for a reply receives for all; the others sleep on their call's
 * condition and one of them takes over when the receiver has got its own.
 *
 * What the daemon sends is checked too: a packet that is no reply, or the reply of no call, fails
 * the link.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "client/src/internal.h"
#include "proto/base/protect.h"

enum {
    REQUEST_PACKED_MAX = 4096, /* no request is longer: names and digests, no arrays */
    PACKET_FDS_MAX = 8,
    RANGE_ALIGN = 64,
    SEND_RETRY_MS = 5,
};

/* A packet as received; descriptors that nobody takes are closed. */
struct packet {
    ssize_t n; /* -errno where negative */
    bool too_long;
    unsigned n_fds;
    int fds[PACKET_FDS_MAX];
};

/* ---- link */

static void link_unmap(struct kvd_link *conn)
{
    if (conn->area) {
        (void)munmap(conn->area, conn->area_bytes);
    }
    if (conn->pool) {
        (void)munmap((void *)conn->pool, conn->pool_bytes);
    }
}

static void notes_clear(struct kvd_link *conn)
{
    struct kvd_list *link;
    while ((link = kvd_list_pop_front(&conn->notes))) {
        free(KVD_CONTAINER_OF(link, struct kvd_note, link));
    }
    conn->n_notes = 0;
}

void kvd_link_unref_locked(struct kvd_link *conn)
{
    KVD_ASSERT(conn->refs > 0);
    if (--conn->refs > 0) {
        return;
    }
    KVD_ASSERT(kvd_list_empty(&conn->calls) && kvd_list_empty(&conn->ranges));
    link_unmap(conn);
    notes_clear(conn);
    kvd_close_fd(&conn->fd);
    free(conn->packet);
    free(conn);
}

static void call_done_locked(struct kvd_call *call, int status)
{
    kvd_list_remove(&call->link);
    if (call->state == KVD_CALL_ABANDONED) {
        kvd_call_free_locked(&call);
        return;
    }
    call->state = KVD_CALL_DONE;
    call->status = status;
    if (call->submitted) {
        kvd_submit_done_locked(call);
    } else {
        (void)pthread_cond_signal(&call->cond);
    }
}

void kvd_link_fail_locked(struct kvd_link *conn, const char *why)
{
    struct kvd_client *c = conn->client;
    if (conn->state == KVD_LINK_DEAD) {
        return;
    }
    conn->state = KVD_LINK_DEAD;
    (void)kvd_fail(&c->why, 0, "%s", why);
    (void)epoll_ctl(c->epfd, EPOLL_CTL_DEL, conn->fd, NULL);
    (void)shutdown(conn->fd, SHUT_RDWR); /* wakes a thread that receives */
    conn->refs++;
    while (!kvd_list_empty(&conn->calls)) {
        call_done_locked(KVD_CONTAINER_OF(conn->calls.next, struct kvd_call, link),
                         KVD_UNAVAILABLE);
    }
    notes_clear(conn);
    if (c->conn == conn) {
        c->conn = NULL;
        kvd_link_unref_locked(conn);
    }
    (void)pthread_cond_broadcast(&c->room); /* who waits for a range of it waits in vain */
    kvd_link_unref_locked(conn);
}

/* ---- ranges of the request area */

/* First gap of at least `bytes`, as the list element to insert behind. */
static bool range_find(struct kvd_link *conn, uint64_t bytes, uint64_t *ret_offset,
                       struct kvd_list **ret_prev)
{
    uint64_t at = 0;
    struct kvd_list *prev = &conn->ranges;
    kvd_list_foreach (it, &conn->ranges) {
        const struct kvd_call *used = KVD_CONTAINER_OF(it, struct kvd_call, range);
        if (used->offset - at >= bytes) {
            break;
        }
        at = used->offset + used->bytes;
        prev = it;
    }
    if (conn->area_bytes - at < bytes) {
        return false;
    }
    *ret_offset = at;
    *ret_prev = prev;
    return true;
}

static int range_take_locked(struct kvd_call *call, uint64_t bytes, bool wait)
{
    struct kvd_link *conn = call->conn;
    struct kvd_client *c = conn->client;
    struct kvd_list *prev;
    bytes = (bytes + RANGE_ALIGN - 1) & ~(uint64_t)(RANGE_ALIGN - 1);
    if (bytes > conn->area_bytes) {
        return kvd_client_fail(c, KVD_TOO_LONG,
                               "the prompt and its results need %llu bytes, the request area has "
                               "%llu: use larger blocks or a shorter prompt",
                               (unsigned long long)bytes, (unsigned long long)conn->area_bytes);
    }
    while (!range_find(conn, bytes, &call->offset, &prev)) {
        if (!wait) {
            return kvd_client_fail(c, KVD_BUSY, "the request area is in use by other calls");
        }
        if (!kvd_client_wait_locked(c, &c->room, call->deadline_ns)) {
            c->stats.deadlines++;
            return kvd_client_fail(c, KVD_DEADLINE, "other calls kept the request area in use");
        }
        if (conn->state != KVD_LINK_LIVE) {
            return kvd_client_fail(c, KVD_UNAVAILABLE, "%s", c->why.text);
        }
    }
    call->bytes = bytes;
    kvd_list_insert(prev, &call->range);
    return 0;
}

/* ---- calls */

int kvd_call_create_locked(struct kvd_link *conn, enum kvd_call_op op, uint64_t deadline_ns,
                           uint64_t bytes, bool wait, struct kvd_call **ret)
{
    struct kvd_call *call = calloc(1, sizeof(*call));
    if (!call) {
        return kvd_client_fail(conn->client, -ENOMEM, "no memory for a call");
    }
    kvd_list_init(&call->link);
    kvd_list_init(&call->async);
    kvd_list_init(&call->range);
    kvd_cond_init(&call->cond);
    call->conn = conn;
    conn->refs++;
    call->op = op;
    call->report_fd = -1;
    call->deadline_ns = deadline_ns;
    int err = bytes ? range_take_locked(call, bytes, wait) : 0;
    if (err) {
        kvd_call_free_locked(&call);
        return err;
    }
    *ret = call;
    return 0;
}

void kvd_call_free_locked(struct kvd_call **callp)
{
    struct kvd_call *call = *callp;
    if (!call) {
        return;
    }
    struct kvd_link *conn = call->conn;
    kvd_list_remove(&call->link);
    kvd_list_remove(&call->async);
    if (!kvd_list_empty(&call->range)) {
        kvd_list_remove(&call->range);
        (void)pthread_cond_broadcast(&conn->client->room);
    }
    (void)pthread_cond_destroy(&call->cond);
    free(call->text);
    free(call->json);
    kvd_close_fd(&call->report_fd);
    free(call);
    *callp = NULL;
    kvd_link_unref_locked(conn);
}

void kvd_call_abandon_locked(struct kvd_call *call)
{
    struct kvd_link *conn = call->conn;
    call->state = KVD_CALL_ABANDONED;
    call->submitted = false;
    call->lease = NULL;
    call->put = NULL;
    kvd_list_remove(&call->async);
    conn->client->stats.deadlines++;
    if (conn->heard_ns < call->sent_ns) {
        conn->stalled = true;
    }
}

int kvd_call_status(struct kvd_call *call)
{
    struct kvd_client *c = call->conn->client;
    if (call->status) {
        return kvd_client_fail(c, call->status, "%s",
                               call->text                        ? call->text
                               : call->status == KVD_UNAVAILABLE ? c->why.text
                                                                 : kvd_status_text(call->status));
    }
    return 0;
}

/* ---- sending */

/* 0, -EAGAIN, or another -errno. */
static int send_request(struct kvd_link *conn, const Kvd__Wire__Request *req)
{
    uint8_t bytes[REQUEST_PACKED_MAX];
    KVD_ASSERT(kvd__wire__request__get_packed_size(req) <= sizeof(bytes));
    size_t n = kvd__wire__request__pack(req, bytes);
    ssize_t sent;
    do {
        sent = send(conn->fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    return sent >= 0 ? 0 : errno == ENOBUFS || errno == ENOMEM ? -EAGAIN : -errno;
}

static int note_send(struct kvd_link *conn, const struct kvd_note *note)
{
    Kvd__Wire__ReleaseRequest release = KVD__WIRE__RELEASE_REQUEST__INIT;
    Kvd__Wire__PutCommitRequest abort = KVD__WIRE__PUT_COMMIT_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT; /* id 0: no reply */
    if (note->is_put) {
        abort.put = note->id;
        abort.abort = true;
        req.body_case = KVD__WIRE__REQUEST__BODY_PUT_COMMIT;
        req.put_commit = &abort;
    } else {
        release.lease = note->id;
        release.has_stale = note->has_stale;
        release.stale_from_block = note->stale_from;
        req.body_case = KVD__WIRE__REQUEST__BODY_RELEASE;
        req.release = &release;
    }
    return send_request(conn, &req);
}

static void notes_send_locked(struct kvd_link *conn)
{
    while (!kvd_list_empty(&conn->notes)) {
        struct kvd_note *note = KVD_CONTAINER_OF(conn->notes.next, struct kvd_note, link);
        if (note_send(conn, note)) {
            return; /* full: later. Broken: whoever receives finds out */
        }
        kvd_list_remove(&note->link);
        free(note);
        conn->n_notes--;
    }
}

void kvd_link_note_locked(struct kvd_link *conn, struct kvd_note note)
{
    if (conn->state != KVD_LINK_LIVE) {
        return; /* the daemon ended it with the connection */
    }
    notes_send_locked(conn);
    if (kvd_list_empty(&conn->notes) && note_send(conn, &note) != -EAGAIN) {
        return;
    }
    struct kvd_note *kept = conn->n_notes < KVD_CLIENT_NOTES_MAX ? malloc(sizeof(*kept)) : NULL;
    if (!kept) {
        return; /* a lease then ends by the daemon's own deadline, a put with the connection */
    }
    *kept = note;
    kvd_list_push_back(&conn->notes, &kept->link);
    conn->n_notes++;
}

/* The socket is full: lets others go on until it has room again or a little time has passed. */
static void wait_for_room(struct kvd_link *conn, uint64_t deadline_ns)
{
    struct kvd_client *c = conn->client;
    struct pollfd p = {.fd = conn->fd, .events = POLLOUT};
    int ms = kvd_deadline_poll_ms(deadline_ns);
    kvd_client_unlock(c);
    (void)poll(&p, 1, ms < SEND_RETRY_MS ? ms : SEND_RETRY_MS);
    kvd_client_lock(c);
    /* the daemon reads nothing while its own replies wait: take them */
    kvd_link_pump_locked(conn);
}

int kvd_call_send_locked(struct kvd_call *call, Kvd__Wire__Request *req, bool wait)
{
    struct kvd_link *conn = call->conn;
    struct kvd_client *c = conn->client;
    req->id = ++conn->next_id;
    call->id = req->id;
    for (;;) {
        if (conn->state == KVD_LINK_DEAD) {
            return kvd_client_fail(c, KVD_UNAVAILABLE, "%s", c->why.text);
        }
        int err = send_request(conn, req);
        if (!err) {
            break;
        }
        if (err != -EAGAIN) {
            kvd_link_fail_locked(conn, "the daemon has closed the connection");
            continue;
        }
        if (!wait) {
            return kvd_client_fail(c, KVD_BUSY, "the socket is full: the daemon does not keep up");
        }
        if (KVD_PROTECT(SEND_DEADLINE) && kvd_mono_ns() >= call->deadline_ns) {
            c->stats.deadlines++;
            conn->stalled = true;
            return kvd_client_fail(c, KVD_DEADLINE, "the daemon took no request in time");
        }
        wait_for_room(conn, call->deadline_ns);
    }
    call->sent_ns = kvd_mono_ns();
    call->state = KVD_CALL_WAITING;
    kvd_list_push_back(&conn->calls, &call->link);
    return 0;
}

void kvd_link_probe_locked(struct kvd_link *conn)
{
    struct kvd_call *call = NULL;
    Kvd__Wire__PingRequest ping = KVD__WIRE__PING_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    req.body_case = KVD__WIRE__REQUEST__BODY_PING;
    req.ping = &ping;
    if (conn->probing || kvd_call_create_locked(conn, KVD_CALL_PING, 0, 0, false, &call)) {
        return;
    }
    if (kvd_call_send_locked(call, &req, false)) {
        kvd_call_free_locked(&call); /* the socket is full: the next call tries again */
        return;
    }
    call->state = KVD_CALL_ABANDONED;
    conn->probing = true;
}

/* ---- receiving */

static void packet_take_fds(struct packet *p, struct msghdr *msg)
{
    for (struct cmsghdr *m = CMSG_FIRSTHDR(msg); m; m = CMSG_NXTHDR(msg, m)) {
        if (m->cmsg_level != SOL_SOCKET || m->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t n = (m->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(m) + i * sizeof(int), sizeof(fd));
            if (p->n_fds < PACKET_FDS_MAX) {
                p->fds[p->n_fds++] = fd;
            } else {
                kvd_close_fd(&fd);
            }
        }
    }
}

static struct packet packet_receive(struct kvd_link *conn)
{
    union {
        char buf[CMSG_SPACE(sizeof(int) * PACKET_FDS_MAX)];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = conn->packet, .iov_len = KVD_WIRE_PACKET_MAX};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.buf,
                         .msg_controllen = sizeof(control.buf)};
    struct packet p = {0};
    p.n = recvmsg(conn->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (p.n < 0) {
        p.n = errno == EINTR ? -EAGAIN : -errno;
        return p;
    }
    packet_take_fds(&p, &msg);
    p.too_long = msg.msg_flags & MSG_TRUNC;
    return p;
}

static struct kvd_call *call_find(struct kvd_link *conn, uint64_t id)
{
    kvd_list_foreach (it, &conn->calls) {
        struct kvd_call *call = KVD_CONTAINER_OF(it, struct kvd_call, link);
        if (call->id == id) {
            return call;
        }
    }
    return NULL;
}

/* The body that the reply of a successful call must have. */
static bool body_fits(const struct kvd_call *call, const Kvd__Wire__Reply *r)
{
    static const Kvd__Wire__Reply__BodyCase wanted[] = {
        [KVD_CALL_HELLO] = KVD__WIRE__REPLY__BODY_HELLO,
        [KVD_CALL_SPACE_OPEN] = KVD__WIRE__REPLY__BODY_SPACE_OPEN,
        [KVD_CALL_MATCH] = KVD__WIRE__REPLY__BODY_MATCH,
        [KVD_CALL_LOAD] = KVD__WIRE__REPLY__BODY_LOAD,
        [KVD_CALL_PUT_BEGIN] = KVD__WIRE__REPLY__BODY_PUT_BEGIN,
        [KVD_CALL_PUT_COMMIT] = KVD__WIRE__REPLY__BODY_PUT_COMMIT,
        [KVD_CALL_TOUCH] = KVD__WIRE__REPLY__BODY__NOT_SET,
        [KVD_CALL_PING] = KVD__WIRE__REPLY__BODY__NOT_SET,
        [KVD_CALL_ADMIN] = KVD__WIRE__REPLY__BODY_ADMIN,
        [KVD_CALL_VERIFY] = KVD__WIRE__REPLY__BODY_VERIFY,
        [KVD_CALL_DROP] = KVD__WIRE__REPLY__BODY_DROP,
        [KVD_CALL_PURGE] = KVD__WIRE__REPLY__BODY_PURGE,
    };
    return r->body_case == wanted[call->op];
}

/* A lease or put that came too late for its call goes back to the daemon. */
static void give_back_late_locked(struct kvd_call *call)
{
    if (call->state == KVD_CALL_ABANDONED && call->handle &&
        (call->op == KVD_CALL_MATCH || call->op == KVD_CALL_PUT_BEGIN)) {
        kvd_link_note_locked(call->conn, (struct kvd_note){.is_put = call->op == KVD_CALL_PUT_BEGIN,
                                                           .id = call->handle});
    }
}

static int reply_body_take(struct kvd_call *call, const Kvd__Wire__Reply *r, struct packet *p,
                           struct kvd_diag *diag)
{
    switch (call->op) {
    case KVD_CALL_HELLO:
        return kvd_link_greeted_locked(call->conn, r->hello, p->fds, p->n_fds, diag);
    case KVD_CALL_SPACE_OPEN:
        kvd_space_opened_locked(call, r->space_open, p->fds, p->n_fds);
        break;
    case KVD_CALL_MATCH:
        call->handle = r->match->lease;
        call->count[0] = r->match->asked_blocks;
        call->count[1] = r->match->hit_blocks;
        break;
    case KVD_CALL_LOAD:
        call->count[0] = r->load->good_blocks;
        call->count[1] = r->load->placed;
        break;
    case KVD_CALL_PUT_BEGIN:
        call->handle = r->put_begin->put;
        call->count[0] = r->put_begin->granted_blocks;
        call->count[1] = r->put_begin->stored_blocks;
        break;
    case KVD_CALL_PUT_COMMIT:
        call->count[0] = r->put_commit->committed_blocks;
        call->count[1] = r->put_commit->not_written_down;
        break;
    case KVD_CALL_ADMIN:
        kvd_report_take_locked(call, r->admin, p->fds, p->n_fds);
        break;
    case KVD_CALL_VERIFY:
        call->handle = r->verify->round;
        break;
    case KVD_CALL_DROP:
        call->count[0] = r->drop->dropped_blocks;
        break;
    case KVD_CALL_PURGE:
        call->purged.dram_blocks = r->purge->dram_blocks;
        call->purged.dram_bytes = r->purge->dram_bytes;
        break;
    case KVD_CALL_TOUCH:
    case KVD_CALL_PING:
        break;
    }
    return 0;
}

/* The daemon's error as one of the public ones. */
static int public_status(uint32_t wire)
{
    int err = kvd_error_from_wire(wire);
    switch (err) {
    case KVD_NOT_FOUND:
    case KVD_STALE:
    case KVD_CORRUPT:
    case KVD_OVER_QUOTA:
    case KVD_FULL:
    case KVD_BAD_REQUEST:
    case KVD_CONTRADICTION:
    case KVD_UNAVAILABLE:
    case KVD_DEADLINE:
    case KVD_IO:
    case KVD_UNKNOWN_SCENARIO:
    case KVD_BUSY:
    case KVD_TOO_LONG:
        return err;
    default:
        return KVD_INTERNAL;
    }
}

static void reply_take_locked(struct kvd_link *conn, const Kvd__Wire__Reply *r, struct packet *p)
{
    struct kvd_diag diag;
    struct kvd_call *call = call_find(conn, r->id);
    if (!call || (!r->error && !body_fits(call, r))) {
        kvd_link_fail_locked(conn, "the daemon sent a reply that fits no call");
        return;
    }
    if (call->op == KVD_CALL_HELLO && r->error) {
        (void)kvd_fail(&diag, 0, "the daemon refuses this client: %s", r->error_text);
        kvd_link_fail_locked(conn, diag.text);
        return;
    }
    if (r->error) {
        call->text = strdup(r->error_text);
        call->status = public_status(r->error);
    } else if (reply_body_take(call, r, p, &diag)) {
        kvd_link_fail_locked(conn, diag.text);
        return;
    }
    if (call->op == KVD_CALL_SPACE_OPEN && call->status) {
        call->space->refused = call->status;
        call->space->refused_serial = conn->serial;
    }
    give_back_late_locked(call);
    call_done_locked(call, call->status);
}

/* A packet, or what came instead of one. */
static void packet_take_locked(struct kvd_link *conn, struct packet *p)
{
    if (conn->state == KVD_LINK_DEAD || p->n == -EAGAIN) {
        /* nothing to do but closing descriptors */
    } else if (p->n <= 0) {
        kvd_link_fail_locked(conn, "the daemon has closed the connection");
    } else {
        conn->heard_ns = kvd_mono_ns();
        conn->stalled = false;
        conn->probing = false;
        struct kvd_wire_budget budget;
        kvd_wire_budget_init(&budget, KVD_WIRE_UNPACK_BUDGET);
        Kvd__Wire__Reply *r =
            p->too_long ? NULL : kvd__wire__reply__unpack(&budget.base, (size_t)p->n, conn->packet);
        if (r) {
            reply_take_locked(conn, r, p);
            kvd__wire__reply__free_unpacked(r, &budget.base);
        } else {
            kvd_link_fail_locked(conn, "the daemon sent a packet that is no reply");
        }
    }
    for (unsigned i = 0; i < p->n_fds; i++) {
        kvd_close_fd(&p->fds[i]);
    }
}

void kvd_link_pump_locked(struct kvd_link *conn)
{
    conn->refs++;
    while (conn->state != KVD_LINK_DEAD && !conn->receiving) {
        struct packet p = packet_receive(conn);
        packet_take_locked(conn, &p);
        if (p.n == -EAGAIN) {
            break;
        }
    }
    if (conn->state == KVD_LINK_LIVE) {
        notes_send_locked(conn);
    }
    kvd_link_unref_locked(conn);
}

/* One packet, waiting until the deadline; without the lock. Spins for a little first: a wake-up
 * costs more than a short round trip. */
static struct packet packet_wait(struct kvd_link *conn, uint64_t deadline_ns)
{
    uint64_t now = kvd_mono_ns();
    uint64_t spin_until = now + KVD_CLIENT_SPIN_US * UINT64_C(1000);
    struct packet p;
    do {
        p = packet_receive(conn);
        now = kvd_mono_ns();
    } while (p.n == -EAGAIN && now < spin_until);
    if (p.n != -EAGAIN || now >= deadline_ns) {
        return p;
    }
    uint64_t left = deadline_ns - now;
    struct timespec ts = {.tv_sec = (time_t)(left / KVD_NS_PER_S),
                          .tv_nsec = (long)(left % KVD_NS_PER_S)};
    struct pollfd pfd = {.fd = conn->fd, .events = POLLIN};
    (void)ppoll(&pfd, 1, &ts, NULL);
    return packet_receive(conn);
}

/* Somebody else has to receive from now on. */
static void hand_over_locked(struct kvd_link *conn)
{
    if (conn->receiving) {
        return;
    }
    kvd_list_foreach (it, &conn->calls) {
        struct kvd_call *call = KVD_CONTAINER_OF(it, struct kvd_call, link);
        if (call->waited && call->state == KVD_CALL_WAITING) {
            (void)pthread_cond_signal(&call->cond);
            return;
        }
    }
}

static void receive_locked(struct kvd_link *conn, uint64_t deadline_ns)
{
    struct kvd_client *c = conn->client;
    conn->receiving = true;
    kvd_client_unlock(c);
    struct packet p = packet_wait(conn, deadline_ns);
    kvd_client_lock(c);
    conn->receiving = false;
    packet_take_locked(conn, &p);
}

int kvd_call_wait_locked(struct kvd_call *call)
{
    struct kvd_link *conn = call->conn;
    struct kvd_client *c = conn->client;
    int err = 0;
    conn->refs++;
    while (call->state == KVD_CALL_WAITING) {
        if (KVD_PROTECT(CALL_DEADLINE) && kvd_mono_ns() >= call->deadline_ns) {
            kvd_call_abandon_locked(call);
            err = kvd_client_fail(c, KVD_DEADLINE, "the daemon did not answer in time");
            break;
        }
        if (conn->receiving) {
            call->waited = true;
            (void)kvd_client_wait_locked(c, &call->cond, call->deadline_ns);
            call->waited = false;
        } else {
            receive_locked(conn, call->deadline_ns);
        }
    }
    hand_over_locked(conn);
    kvd_link_unref_locked(conn);
    return err;
}

int kvd_call_run_locked(struct kvd_call **callp, Kvd__Wire__Request *req)
{
    int err = kvd_call_send_locked(*callp, req, true);
    if (err) {
        kvd_call_free_locked(callp);
        return err;
    }
    err = kvd_call_wait_locked(*callp);
    if (err) {
        *callp = NULL; /* abandoned: its link's */
        return err;
    }
    err = kvd_call_status(*callp);
    if (err) {
        kvd_call_free_locked(callp);
    }
    return err;
}
