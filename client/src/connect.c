/*
 * Reaching the daemon: connect, hello, and again after it was gone, at most once a second and
 * inside calls.
 *
 * Connecting to a stopped daemon succeeds (the kernel accepts for it), so the answer to hello is
 * what counts. It is waited for once, at most connect_ms. A hello that was not answered in time
 * stays out: later calls look for its answer without waiting, so a daemon that is stopped for an
 * hour costs one deadline, and is back the moment it goes on.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "client/src/internal.h"
#include "proto/base/protect.h"

enum { AREA_BYTES_MIN = 64 << 10, AREA_BYTES_MAX = 1 << 30 };

static int link_create_locked(struct kvd_client *c, int fd, struct kvd_link **ret)
{
    struct kvd_link *conn = calloc(1, sizeof(*conn));
    uint8_t *packet = malloc(KVD_WIRE_PACKET_MAX);
    struct epoll_event ev = {.events = EPOLLIN};
    int err = !conn || !packet ? -ENOMEM : 0;
    if (!err && epoll_ctl(c->epfd, EPOLL_CTL_ADD, fd, &ev) < 0) {
        err = -errno;
    }
    if (err) {
        free(conn);
        free(packet);
        return err;
    }
    conn->client = c;
    conn->refs = 1;
    conn->serial = c->next_serial++;
    conn->state = KVD_LINK_GREETING;
    conn->fd = fd;
    conn->packet = packet;
    kvd_list_init(&conn->calls);
    kvd_list_init(&conn->ranges);
    kvd_list_init(&conn->notes);
    *ret = conn;
    return 0;
}

/* Makes fd the client's link and says hello on it. */
static int greet_locked(struct kvd_client *c, int fd)
{
    struct kvd_link *conn;
    struct kvd_call *call;
    Kvd__Wire__HelloRequest hello = KVD__WIRE__HELLO_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    int err = link_create_locked(c, fd, &conn);
    if (err) {
        return err;
    }
    c->conn = conn;
    hello.version = KVD_WIRE_VERSION;
    hello.min_version = KVD_WIRE_VERSION;
    hello.program = c->program;
    req.body_case = KVD__WIRE__REQUEST__BODY_HELLO;
    req.hello = &hello;
    err = kvd_call_create_locked(conn, KVD_CALL_HELLO, kvd_mono_ns() + c->connect_ns, 0, false,
                                 &call);
    if (err) {
        kvd_link_fail_locked(conn, "no memory to say hello");
        return 0; /* the link had taken fd */
    }
    if (kvd_call_send_locked(call, &req, false)) {
        kvd_call_free_locked(&call);
        if (c->conn == conn) {
            kvd_link_fail_locked(conn, "the daemon took no hello");
        }
        return 0;
    }
    /* the link's, until somebody waits for it: its answer may be found by anyone who receives */
    call->state = KVD_CALL_ABANDONED;
    return 0;
}

int kvd_client_attach_locked(struct kvd_client *c, int fd)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
        fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) {
        return -errno;
    }
    return greet_locked(c, fd);
}

static int attempt_locked(struct kvd_client *c)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    (void)snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", c->path);
    c->next_attempt_ns = kvd_mono_ns() + (uint64_t)KVD_CLIENT_RETRY_MS * KVD_NS_PER_MS;
    KVD_AUTOCLOSE int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int err = fd < 0 || connect(fd, (const struct sockaddr *)&addr, sizeof(addr)) < 0 ? -errno : 0;
    err = err ? err : greet_locked(c, fd);
    if (err) {
        (void)kvd_fail(&c->why, 0, "no daemon at %s: %s; is kvdepotd running there?", c->path,
                       kvd_strerror(err));
        return KVD_UNAVAILABLE;
    }
    (void)kvd_take_fd(&fd);
    return c->conn ? 0 : KVD_UNAVAILABLE;
}

/* Waits for the answer to a hello that is out, if somebody should. */
static void hello_wait_locked(struct kvd_client *c, uint64_t deadline_ns)
{
    struct kvd_link *conn = c->conn;
    if ((KVD_PROTECT(HELLO_WAITED_ONCE) && c->impatient) || conn->receiving ||
        kvd_list_empty(&conn->calls)) {
        return;
    }
    struct kvd_call *call = KVD_CONTAINER_OF(conn->calls.next, struct kvd_call, link);
    if (call->op != KVD_CALL_HELLO || call->state != KVD_CALL_ABANDONED) {
        return;
    }
    call->state = KVD_CALL_WAITING;
    if (deadline_ns < call->deadline_ns) {
        call->deadline_ns = deadline_ns;
    }
    if (kvd_call_wait_locked(call)) {
        c->impatient = true;
        return;
    }
    kvd_call_free_locked(&call);
}

int kvd_client_ready_locked(struct kvd_client *c, bool wait, uint64_t deadline_ns)
{
    if (c->conn) {
        kvd_link_pump_locked(c->conn); /* late replies; and the news that the daemon has gone */
    }
    const bool due = kvd_mono_ns() >= c->next_attempt_ns || !KVD_PROTECT(RECONNECT_PAUSE);
    if (!c->conn && c->path && due) {
        (void)attempt_locked(c);
    }
    if (c->conn && c->conn->state == KVD_LINK_GREETING && wait) {
        hello_wait_locked(c, deadline_ns);
    }
    struct kvd_link *conn = c->conn;
    if (!conn) {
        return kvd_client_fail(c, KVD_UNAVAILABLE, "%s", c->why.text);
    }
    if (conn->state == KVD_LINK_GREETING) {
        return kvd_client_fail(c, KVD_UNAVAILABLE, "the daemon has not answered hello yet");
    }
    if (KVD_PROTECT(BREAKER) && conn->stalled) {
        kvd_link_probe_locked(conn);
        return kvd_client_fail(
            c, KVD_UNAVAILABLE,
            "the daemon has not answered since a deadline passed: is it stopped?");
    }
    return 0;
}

/* ---- the answer to hello */

static int map_area(const Kvd__Wire__HelloReply *hello, int fd, uint8_t **ret,
                    struct kvd_diag *diag)
{
    struct stat st;
    if (hello->request_area_bytes < AREA_BYTES_MIN || hello->request_area_bytes > AREA_BYTES_MAX ||
        fstat(fd, &st) < 0 || (uint64_t)st.st_size < hello->request_area_bytes) {
        return kvd_fail(diag, KVD_INTERNAL, "the daemon's request area has a wrong size");
    }
    void *map = mmap(NULL, hello->request_area_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        return kvd_fail(diag, -errno, "mapping the request area: %s", kvd_strerror(-errno));
    }
    (void)madvise(map, hello->request_area_bytes, MADV_DONTFORK);
    *ret = map;
    return 0;
}

static int map_pool(const Kvd__Wire__HelloReply *hello, int fd, const uint8_t **ret,
                    struct kvd_diag *diag)
{
    struct stat st;
    if (hello->pool_bytes < 1 || fstat(fd, &st) < 0 || (uint64_t)st.st_size < hello->pool_bytes) {
        return kvd_fail(diag, KVD_INTERNAL, "the daemon's pool has a wrong size");
    }
    void *map = mmap(NULL, hello->pool_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        return kvd_fail(diag, -errno, "mapping the pool of %llu bytes: %s",
                        (unsigned long long)hello->pool_bytes, kvd_strerror(-errno));
    }
    (void)madvise(map, hello->pool_bytes, MADV_DONTFORK);
    *ret = map;
    return 0;
}

int kvd_link_greeted_locked(struct kvd_link *conn, const Kvd__Wire__HelloReply *hello, int *fds,
                            unsigned n_fds, struct kvd_diag *diag)
{
    struct kvd_client *c = conn->client;
    if (hello->version != KVD_WIRE_VERSION || n_fds != 2) {
        return kvd_fail(diag, KVD_INTERNAL,
                        "the daemon (%s) answered hello with version %u and %u descriptors",
                        hello->daemon_version, hello->version, n_fds);
    }
    int err = map_area(hello, fds[0], &conn->area, diag);
    conn->area_bytes = hello->request_area_bytes;
    err = err ? err : map_pool(hello, fds[1], &conn->pool, diag);
    conn->pool_bytes = hello->pool_bytes;
    if (err) {
        return err;
    }
    conn->state = KVD_LINK_LIVE;
    c->impatient = false;
    c->stats.reconnects += conn->serial > 1;
    return 0;
}
