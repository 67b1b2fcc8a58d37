#include "peer.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/base/cleanup.h"
#include <stdio.h>

/* cmocka's asserts jump out of a test, which a script's thread cannot do */
#define NEED(expr)                                                                                 \
    do {                                                                                           \
        if (!(expr)) {                                                                             \
            (void)fprintf(stderr, "%s:%d: peer: %s\n", __FILE__, __LINE__, #expr);                 \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static int memory_create(const char *name, size_t bytes, uint8_t **ret_map)
{
    int fd = memfd_create(name, MFD_CLOEXEC);
    NEED(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    if (ret_map) {
        *ret_map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        NEED(*ret_map != MAP_FAILED);
    }
    return fd;
}

void peer_init(struct peer *p)
{
    const char *tmp = getenv("TMPDIR");
    memset(p, 0, sizeof(*p));
    p->listen_fd = p->fd = -1;
    (void)snprintf(p->folder, sizeof(p->folder), "%s/kvd-peer-XXXXXX", tmp ? tmp : "/tmp");
    NEED(mkdtemp(p->folder));
    (void)snprintf(p->path, sizeof(p->path), "%s/sock", p->folder);
    p->area_fd = memory_create("area", KVD_WIRE_REQUEST_AREA_BYTES, &p->area);
    p->pool_fd = memory_create("pool", PEER_POOL_BYTES, &p->pool);
    p->staging_fd = memory_create("staging", PEER_STAGING_BYTES, NULL);
}

static void request_free(struct peer *p)
{
    if (p->req) {
        kvd__wire__request__free_unpacked(p->req, &p->budget.base);
        p->req = NULL;
    }
}

void peer_fini(struct peer *p)
{
    request_free(p);
    kvd_close_fd(&p->fd);
    kvd_close_fd(&p->listen_fd);
    kvd_close_fd(&p->area_fd);
    kvd_close_fd(&p->pool_fd);
    kvd_close_fd(&p->staging_fd);
    (void)munmap(p->area, KVD_WIRE_REQUEST_AREA_BYTES);
    (void)munmap(p->pool, PEER_POOL_BYTES);
    (void)unlink(p->path);
    (void)rmdir(p->folder);
}

void peer_listen(struct peer *p)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    (void)snprintf(addr.sun_path, sizeof(addr.sun_path), "%.100s", p->path);
    (void)unlink(p->path);
    kvd_close_fd(&p->listen_fd);
    p->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    NEED(bind(p->listen_fd, (const struct sockaddr *)&addr, sizeof(addr)) == 0);
    NEED(listen(p->listen_fd, 8) == 0);
}

static void wait_readable(int fd)
{
    struct pollfd pfd = {.fd = fd, .events = POLLIN};
    NEED(poll(&pfd, 1, PEER_WAIT_MS) == 1);
}

void peer_accept(struct peer *p)
{
    wait_readable(p->listen_fd);
    kvd_close_fd(&p->fd);
    p->fd = accept4(p->listen_fd, NULL, NULL, SOCK_CLOEXEC);
    NEED(p->fd >= 0);
}

void peer_hang_up(struct peer *p)
{
    kvd_close_fd(&p->fd);
}

const Kvd__Wire__Request *peer_receive_any(struct peer *p)
{
    uint8_t buf[KVD_WIRE_PACKET_MAX];
    wait_readable(p->fd);
    ssize_t n = recv(p->fd, buf, sizeof(buf), 0);
    request_free(p);
    if (n <= 0) {
        return NULL;
    }
    kvd_wire_budget_init(&p->budget, KVD_WIRE_UNPACK_BUDGET);
    p->req = kvd__wire__request__unpack(&p->budget.base, (size_t)n, buf);
    NEED(p->req != NULL);
    return p->req;
}

const Kvd__Wire__Request *peer_receive(struct peer *p, Kvd__Wire__Request__BodyCase kind)
{
    const Kvd__Wire__Request *req = peer_receive_any(p);
    NEED(req && req->body_case == kind);
    return req;
}

void peer_send_bytes(struct peer *p, const void *bytes, size_t n)
{
    NEED(send(p->fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n);
}

void peer_send(struct peer *p, Kvd__Wire__Reply *reply, const int *fds, unsigned n_fds)
{
    uint8_t buf[4096];
    union {
        char buf[CMSG_SPACE(sizeof(int) * 8)];
        struct cmsghdr align;
    } control = {0};
    struct iovec iov = {.iov_base = buf};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    NEED(kvd__wire__reply__get_packed_size(reply) <= sizeof(buf) && n_fds <= 8);
    iov.iov_len = kvd__wire__reply__pack(reply, buf);
    if (n_fds) {
        msg.msg_control = control.buf;
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
    }
    NEED(sendmsg(p->fd, &msg, MSG_NOSIGNAL) == (ssize_t)iov.iov_len);
}

void peer_answer_hello(struct peer *p)
{
    uint8_t id[16] = {1};
    Kvd__Wire__HelloReply body = KVD__WIRE__HELLO_REPLY__INIT;
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    body.version = KVD_WIRE_VERSION;
    body.store_id = (ProtobufCBinaryData){.len = sizeof(id), .data = id};
    body.request_area_bytes = KVD_WIRE_REQUEST_AREA_BYTES;
    body.pool_bytes = PEER_POOL_BYTES;
    body.daemon_version = "peer";
    reply.id = p->req->id;
    reply.body_case = KVD__WIRE__REPLY__BODY_HELLO;
    reply.hello = &body;
    const int fds[] = {p->area_fd, p->pool_fd};
    peer_send(p, &reply, fds, 2);
}

void peer_answer_space(struct peer *p)
{
    peer_answer_space_with(p, KVD_WIRE_STAGING_SLOTS, 1);
}

void peer_answer_space_with(struct peer *p, uint32_t slots, unsigned n_fds)
{
    uint8_t space[32] = {2};
    Kvd__Wire__SpaceOpenReply body = KVD__WIRE__SPACE_OPEN_REPLY__INIT;
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    body.space_handle = 5;
    body.space = (ProtobufCBinaryData){.len = sizeof(space), .data = space};
    body.staging_bytes = slots ? PEER_STAGING_BYTES : 0;
    body.staging_slots = slots;
    body.slot_bytes = PEER_STAGING_BYTES / KVD_WIRE_STAGING_SLOTS;
    reply.id = p->req->id;
    reply.body_case = KVD__WIRE__REPLY__BODY_SPACE_OPEN;
    reply.space_open = &body;
    peer_send(p, &reply, &p->staging_fd, n_fds);
}

void peer_answer_empty(struct peer *p)
{
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    reply.id = p->req->id;
    peer_send(p, &reply, NULL, 0);
}

void peer_answer_error(struct peer *p, int err)
{
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    reply.id = p->req->id;
    reply.error = kvd_error_to_wire(err);
    reply.error_text = "so it is";
    peer_send(p, &reply, NULL, 0);
}

void peer_answer_match(struct peer *p, uint64_t lease, uint32_t asked, uint32_t hit)
{
    Kvd__Wire__MatchReply body = KVD__WIRE__MATCH_REPLY__INIT;
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    body.lease = lease;
    body.asked_blocks = asked;
    body.hit_blocks = hit;
    reply.id = p->req->id;
    reply.body_case = KVD__WIRE__REPLY__BODY_MATCH;
    reply.match = &body;
    peer_send(p, &reply, NULL, 0);
}

void peer_answer_load(struct peer *p, uint32_t good)
{
    Kvd__Wire__LoadReply body = KVD__WIRE__LOAD_REPLY__INIT;
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    body.good_blocks = good;
    reply.id = p->req->id;
    reply.body_case = KVD__WIRE__REPLY__BODY_LOAD;
    reply.load = &body;
    peer_send(p, &reply, NULL, 0);
}

void peer_answer_put_begin(struct peer *p, uint64_t put, uint32_t granted)
{
    Kvd__Wire__PutBeginReply body = KVD__WIRE__PUT_BEGIN_REPLY__INIT;
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    body.put = put;
    body.granted_blocks = granted;
    reply.id = p->req->id;
    reply.body_case = KVD__WIRE__REPLY__BODY_PUT_BEGIN;
    reply.put_begin = &body;
    peer_send(p, &reply, NULL, 0);
}

struct kvd_wire_block *peer_row(struct peer *p, const Kvd__Wire__Range *results, uint32_t i)
{
    NEED(results && (i + 1) * sizeof(struct kvd_wire_block) <= results->bytes);
    NEED(results->offset + results->bytes <= KVD_WIRE_REQUEST_AREA_BYTES);
    return (struct kvd_wire_block *)(void *)(p->area + results->offset) + i;
}

void peer_serve_start(struct peer *p)
{
    peer_accept(p);
    (void)peer_receive(p, KVD__WIRE__REQUEST__BODY_HELLO);
    peer_answer_hello(p);
    (void)peer_receive(p, KVD__WIRE__REQUEST__BODY_SPACE_OPEN);
    peer_answer_space(p);
}

struct kvd_space_config peer_space(void)
{
    return (struct kvd_space_config){.size = sizeof(struct kvd_space_config),
                                     .model = "peer",
                                     .weights = {1},
                                     .dtype = KVD_DTYPE_F16,
                                     .layout = KVD_LAYOUT_HEADS,
                                     .layers = 1,
                                     .kv_heads = 1,
                                     .head_dim = 64,
                                     .block_tokens = 16,
                                     .rope_base = 10000,
                                     .rope_scale = 1,
                                     .numerics = "test",
                                     .ranks = 1};
}

struct kvd_prompt peer_prompt(const uint32_t *tokens, uint32_t n_tokens)
{
    return (struct kvd_prompt){.scenario = "chat", .tokens = tokens, .n_tokens = n_tokens};
}
