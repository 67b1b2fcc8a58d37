/*
 * Fuzz entry of the client library, against a daemon that answers whatever the input says: replies
 * of any kind to any request, results with places outside of the pool and of staging, descriptors
 * too many, too few and too small, bytes that are no reply, and an end at any moment.
 *
 * Every call returns. What a load calls good came out of the pool: the pool holds one byte over and
 * over, so that bytes from anywhere else show. What a put is given lies in staging.
 *
 * Input: how many bytes of it are the caller's steps (the rest are the daemon's answers), then
 * both.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"
#include "kvdepot/kvdepot.h"
#include "proto/base/cleanup.h"
#include "proto/wire/wire.h"

enum { BLOCK_TOKENS = 4, BLOCK_BYTES = 2 * 64 * BLOCK_TOKENS * 2, BLOCKS_MAX = 40 };
enum { POOL_BYTES = 256 << 10, STAGING_BYTES = 64 << 10, WAIT_MS = 30, STEPS_MAX = 24 };
enum { POOL_BYTE = 0xa5, PUT_BYTE = 0x5c, KEPT = 3 };
static const uint32_t generation = 0xa5a5a5a5;

/* Memory that all inputs share. */
static struct {
    int area_fd;
    int pool_fd;
    int staging_fd;
    int small_fd; /* a page: too small for any of them */
    uint8_t *area;
    uint8_t *staging;
} m = {.pool_fd = -1};

static int memory(size_t bytes, int fill, uint8_t **ret_map)
{
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    FUZZ_CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    uint8_t *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    FUZZ_CHECK(at != MAP_FAILED);
    memset(at, fill, bytes);
    if (ret_map) {
        *ret_map = at;
    } else {
        (void)munmap(at, bytes);
    }
    return fd;
}

static void memory_make(void)
{
    m.area_fd = memory(KVD_WIRE_REQUEST_AREA_BYTES, 0, &m.area);
    m.pool_fd = memory(POOL_BYTES, POOL_BYTE, NULL);
    m.staging_fd = memory(STAGING_BYTES, 0, &m.staging);
    m.small_fd = memory(4096, 0, NULL);
}

/* ---- the daemon ---- */

struct peer {
    struct fuzz_in in;
    int fd;
    pthread_t thread;
};

static void send_reply(struct peer *p, Kvd__Wire__Reply *reply, const int *fds, unsigned n_fds)
{
    static _Thread_local uint8_t packet[KVD_WIRE_PACKET_MAX];
    union {
        char buf[CMSG_SPACE(sizeof(int) * 4)];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec iov = {packet, 0};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    iov.iov_len = kvd__wire__reply__pack(reply, packet);
    if (fuzz_u8(&p->in) > 0xf0 && iov.iov_len > 0) {
        packet[fuzz_u8(&p->in) % iov.iov_len] = fuzz_u8(&p->in);
    }
    if (n_fds) {
        msg.msg_control = control.buf;
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
    }
    (void)sendmsg(p->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Of the descriptors that belong there: all, one less, one more, or another memory. */
static unsigned fds_choose(struct peer *p, int *fds, unsigned n)
{
    const uint8_t how = fuzz_u8(&p->in);
    if (how == 0xff) {
        fds[0] = m.small_fd;
    }
    if (how == 0xfe && n < 4) {
        fds[n++] = m.small_fd;
    }
    return how == 0xfd && n > 0 ? n - 1 : n;
}

static void answer_hello(struct peer *p, Kvd__Wire__Reply reply)
{
    uint8_t id[16] = {1};
    int fds[4] = {m.area_fd, m.pool_fd};
    Kvd__Wire__HelloReply body = KVD__WIRE__HELLO_REPLY__INIT;
    body.version = (uint32_t)fuzz_mostly(&p->in, KVD_WIRE_VERSION);
    body.store_id.data = id;
    body.store_id.len = sizeof(id);
    body.request_area_bytes = fuzz_mostly(&p->in, KVD_WIRE_REQUEST_AREA_BYTES);
    body.pool_bytes = fuzz_mostly(&p->in, POOL_BYTES);
    body.daemon_version = "fuzz";
    reply.body_case = KVD__WIRE__REPLY__BODY_HELLO;
    reply.hello = &body;
    send_reply(p, &reply, fds, fds_choose(p, fds, 2));
}

static void answer_space(struct peer *p, Kvd__Wire__Reply reply)
{
    uint8_t space[32] = {2};
    int fds[4] = {m.staging_fd};
    Kvd__Wire__SpaceOpenReply body = KVD__WIRE__SPACE_OPEN_REPLY__INIT;
    body.space_handle = fuzz_u8(&p->in);
    body.space.data = space;
    body.space.len = sizeof(space);
    body.staging_bytes = fuzz_mostly(&p->in, STAGING_BYTES);
    body.staging_slots = (uint32_t)fuzz_mostly(&p->in, KVD_WIRE_STAGING_SLOTS);
    body.slot_bytes = fuzz_mostly(&p->in, 4096);
    reply.body_case = KVD__WIRE__REPLY__BODY_SPACE_OPEN;
    reply.space_open = &body;
    send_reply(p, &reply, fds, fds_choose(p, fds, 1));
}

static void rows_fill(struct peer *p, const Kvd__Wire__Range *range, uint8_t state, uint64_t room)
{
    const uint64_t n = range ? range->bytes / sizeof(struct kvd_wire_block) : 0;
    FUZZ_CHECK(!range || (range->offset <= KVD_WIRE_REQUEST_AREA_BYTES &&
                          range->bytes <= KVD_WIRE_REQUEST_AREA_BYTES - range->offset));
    for (uint64_t i = 0; i < n; i++) {
        struct kvd_wire_block row = {.state = state};
        row.state = (uint8_t)fuzz_mostly(&p->in, state);
        row.tier = (uint8_t)fuzz_mostly(&p->in, KVD_TIER_DRAM);
        row.bytes = fuzz_mostly(&p->in, BLOCK_BYTES);
        row.offset = fuzz_mostly(&p->in, (i * 4096) % room);
        row.offset = fuzz_u8(&p->in) == 0xff ? room - BLOCK_BYTES + 1 : row.offset;
        row.generation = (uint32_t)fuzz_mostly(&p->in, generation);
        row.generation_offset = fuzz_mostly(&p->in, room - 4);
        memcpy(m.area + range->offset + i * sizeof(row), &row, sizeof(row));
    }
}

static void answer_match(struct peer *p, Kvd__Wire__Reply reply, const Kvd__Wire__MatchRequest *q)
{
    Kvd__Wire__MatchReply body = KVD__WIRE__MATCH_REPLY__INIT;
    const uint64_t n = q && q->results ? q->results->bytes / sizeof(struct kvd_wire_block) : 3;
    rows_fill(p, q ? q->results : NULL, KVD_BLOCK_STORED, POOL_BYTES);
    body.lease = fuzz_mostly(&p->in, 7);
    body.asked_blocks = (uint32_t)fuzz_mostly(&p->in, n);
    body.hit_blocks = (uint32_t)fuzz_mostly(&p->in, n);
    reply.body_case = KVD__WIRE__REPLY__BODY_MATCH;
    reply.match = &body;
    send_reply(p, &reply, NULL, 0);
}

static void answer_load(struct peer *p, Kvd__Wire__Reply reply, const Kvd__Wire__LoadRequest *q)
{
    Kvd__Wire__LoadReply body = KVD__WIRE__LOAD_REPLY__INIT;
    rows_fill(p, q ? q->results : NULL, KVD_BLOCK_LOADED, POOL_BYTES);
    body.good_blocks = (uint32_t)fuzz_mostly(&p->in, q ? q->n_blocks : 2);
    reply.body_case = KVD__WIRE__REPLY__BODY_LOAD;
    reply.load = &body;
    send_reply(p, &reply, NULL, 0);
}

static void answer_put_begin(struct peer *p, Kvd__Wire__Reply reply,
                             const Kvd__Wire__PutBeginRequest *q)
{
    Kvd__Wire__PutBeginReply body = KVD__WIRE__PUT_BEGIN_REPLY__INIT;
    rows_fill(p, q ? q->results : NULL, KVD_BLOCK_GRANTED, STAGING_BYTES);
    body.put = fuzz_mostly(&p->in, 9);
    body.granted_blocks = (uint32_t)fuzz_mostly(&p->in, q ? q->n_blocks : 2);
    body.stored_blocks = (uint32_t)fuzz_mostly(&p->in, 0);
    reply.body_case = KVD__WIRE__REPLY__BODY_PUT_BEGIN;
    reply.put_begin = &body;
    send_reply(p, &reply, NULL, 0);
}

static void answer_commit(struct peer *p, Kvd__Wire__Reply reply)
{
    Kvd__Wire__PutCommitReply body = KVD__WIRE__PUT_COMMIT_REPLY__INIT;
    body.committed_blocks = (uint32_t)fuzz_mostly(&p->in, 2);
    body.not_written_down = (uint32_t)fuzz_mostly(&p->in, 0);
    reply.body_case = KVD__WIRE__REPLY__BODY_PUT_COMMIT;
    reply.put_commit = &body;
    send_reply(p, &reply, NULL, 0);
}

/* A long report: sealed, of the right length, or not. */
static int report_fd(struct peer *p, uint64_t bytes)
{
    const uint8_t how = fuzz_u8(&p->in);
    const int fd = memfd_create("report", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    FUZZ_CHECK(fd >= 0 && ftruncate(fd, (off_t)(bytes % 65536)) == 0);
    if (how < 0xf0) {
        (void)fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    }
    return fd;
}

static void answer_admin(struct peer *p, Kvd__Wire__Reply reply)
{
    Kvd__Wire__AdminReply body = KVD__WIRE__ADMIN_REPLY__INIT;
    const uint8_t how = fuzz_u8(&p->in);
    reply.body_case = KVD__WIRE__REPLY__BODY_ADMIN;
    reply.admin = &body;
    if (how & 1) {
        size_t n = 0;
        body.json.data = (uint8_t *)(uintptr_t)fuzz_take(&p->in, how % 16, &n);
        body.json.len = n;
        send_reply(p, &reply, NULL, 0);
        return;
    }
    body.json_bytes = fuzz_mostly(&p->in, 100);
    int fds[4] = {report_fd(p, how & 2 ? body.json_bytes : 99)};
    const int own = fds[0];
    send_reply(p, &reply, fds, fds_choose(p, fds, 1));
    (void)close(own);
}

static void answer_kind(struct peer *p, Kvd__Wire__Reply reply, const Kvd__Wire__Request *q,
                        uint64_t kind)
{
    const bool asked = kind == (uint64_t)q->body_case;
    switch (kind) {
    case KVD__WIRE__REQUEST__BODY_HELLO:
        answer_hello(p, reply);
        break;
    case KVD__WIRE__REQUEST__BODY_SPACE_OPEN:
        answer_space(p, reply);
        break;
    case KVD__WIRE__REQUEST__BODY_MATCH:
        answer_match(p, reply, asked ? q->match : NULL);
        break;
    case KVD__WIRE__REQUEST__BODY_LOAD:
        answer_load(p, reply, asked ? q->load : NULL);
        break;
    case KVD__WIRE__REQUEST__BODY_PUT_BEGIN:
        answer_put_begin(p, reply, asked ? q->put_begin : NULL);
        break;
    case KVD__WIRE__REQUEST__BODY_PUT_COMMIT:
        answer_commit(p, reply);
        break;
    case KVD__WIRE__REQUEST__BODY_ADMIN:
        answer_admin(p, reply);
        break;
    default:
        send_reply(p, &reply, NULL, 0);
        break;
    }
}

/* False: hang up. */
static bool answer(struct peer *p, const Kvd__Wire__Request *q)
{
    Kvd__Wire__Reply reply = KVD__WIRE__REPLY__INIT;
    const uint8_t how = fuzz_u8(&p->in);
    if (q->id == 0) {
        return true;
    }
    if (how == 0xff) {
        return false;
    }
    if (how == 0xfe) {
        size_t n = 0;
        const uint8_t *bytes = fuzz_take(&p->in, fuzz_u8(&p->in), &n);
        (void)send(p->fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        return n > 0;
    }
    reply.id = fuzz_mostly(&p->in, q->id);
    if (how >= 0xf0) {
        reply.error = (uint32_t)fuzz_mostly(&p->in, 6);
        reply.error_text = "so it is";
    }
    answer_kind(p, reply, q, fuzz_mostly(&p->in, (uint64_t)q->body_case));
    return true;
}

static void *peer_main(void *arg)
{
    struct peer *p = arg;
    static _Thread_local uint8_t packet[KVD_WIRE_PACKET_MAX];
    bool go_on = true;
    while (go_on) {
        const ssize_t n = recv(p->fd, packet, sizeof(packet), 0);
        if (n <= 0) {
            break;
        }
        Kvd__Wire__Request *q = kvd__wire__request__unpack(NULL, (size_t)n, packet);
        FUZZ_CHECK(q != NULL);
        go_on = answer(p, q) && p->in.left > 0;
        kvd__wire__request__free_unpacked(q, NULL);
    }
    (void)shutdown(p->fd, SHUT_RDWR);
    return NULL;
}

/* ---- the caller ---- */

struct caller {
    struct fuzz_in in;
    struct kvd_client *c;
    struct kvd_space *s;
    struct kvd_lease *leases[KEPT];
    uint32_t hits[KEPT];
    struct kvd_put *puts[KEPT];
    unsigned under_way; /* loads that were submitted */
};

static uint8_t dest_memory[BLOCKS_MAX][BLOCK_BYTES];
static void *dest[BLOCKS_MAX];
static uint32_t tokens[BLOCKS_MAX * BLOCK_TOKENS + 1];

static struct kvd_prompt prompt_of(uint32_t blocks)
{
    return (struct kvd_prompt){
        .scenario = "chat", .tokens = tokens, .n_tokens = blocks * BLOCK_TOKENS + 1};
}

static void check_good(uint32_t first, uint32_t good, uint32_t n)
{
    FUZZ_CHECK(good <= n);
    for (uint32_t i = first; i < first + good; i++) {
        for (uint32_t b = 0; b < BLOCK_BYTES; b++) {
            FUZZ_CHECK(dest_memory[i][b] == POOL_BYTE);
        }
    }
}

static void lease_drop(struct caller *k, unsigned at)
{
    if (k->under_way == 0) { /* a lease stays while a load of it is under way */
        kvd_lease_release(&k->leases[at]);
    }
}

static void call_match(struct caller *k, unsigned at)
{
    const uint32_t blocks = fuzz_u8(&k->in) % BLOCKS_MAX;
    const struct kvd_prompt prompt = prompt_of(blocks);
    struct kvd_match_result result;
    lease_drop(k, at);
    if (!k->leases[at] && kvd_match(k->s, &prompt, &result) == 0) {
        FUZZ_CHECK(result.asked_blocks == blocks && result.hit_blocks <= blocks);
        FUZZ_CHECK((result.lease != NULL) == (result.hit_blocks > 0));
        for (uint32_t i = 0; i < result.hit_blocks; i++) {
            (void)kvd_lease_tier(result.lease, i);
        }
        k->leases[at] = result.lease;
        k->hits[at] = result.hit_blocks;
    }
}

static void call_load(struct caller *k, unsigned at)
{
    uint32_t good = 0;
    const uint32_t first = k->hits[at] ? fuzz_u8(&k->in) % k->hits[at] : 0;
    const uint32_t n = k->hits[at] - first;
    if (k->leases[at] && k->under_way == 0) {
        memset(dest_memory, 0, sizeof(dest_memory));
        if (kvd_load(k->leases[at], first, n, dest + first, &good) == 0) {
            check_good(first, good, n);
        }
    }
}

static void buffers_fill(struct kvd_put *put, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *buffer = kvd_put_buffer(put, i);
        size_t there = 0;
        if (!buffer) {
            continue;
        }
        memset(m.staging, 0, STAGING_BYTES);
        memset(buffer, PUT_BYTE, BLOCK_BYTES);
        for (size_t at = 0; at < STAGING_BYTES; at++) {
            there += m.staging[at] == PUT_BYTE;
        }
        FUZZ_CHECK(there == BLOCK_BYTES);
    }
}

static void call_put_begin(struct caller *k, unsigned at)
{
    const uint32_t n = 1 + fuzz_u8(&k->in) % KVD_WIRE_STAGING_SLOTS;
    const struct kvd_prompt prompt = prompt_of(n);
    struct kvd_put_result result;
    if (!k->puts[at] && kvd_put_begin(k->s, &prompt, 0, n, &k->puts[at], &result) == 0) {
        FUZZ_CHECK(result.stored_already + result.refused <= n);
        if (k->puts[at]) {
            buffers_fill(k->puts[at], n);
        }
    }
}

static void call_put_end(struct caller *k, unsigned at)
{
    struct kvd_put_result result;
    if (!k->puts[at]) {
        return;
    }
    switch (fuzz_u8(&k->in) % 3) {
    case 0:
        kvd_put_abort(&k->puts[at]);
        break;
    case 1:
        (void)kvd_submit_put_commit(&k->puts[at], k);
        break;
    default:
        (void)kvd_put_commit(&k->puts[at], &result);
        FUZZ_CHECK(k->puts[at] == NULL);
        break;
    }
}

static void call_put(struct caller *k)
{
    const uint32_t n = 1 + fuzz_u8(&k->in) % (BLOCKS_MAX - 1);
    const struct kvd_prompt prompt = prompt_of(n);
    struct kvd_put_result result = {0};
    if (k->under_way == 0 &&
        kvd_put(k->s, &prompt, 0, n, (const void *const *)dest, &result) == 0) {
        FUZZ_CHECK(result.stored_already + result.committed + result.refused == n);
        FUZZ_CHECK(result.not_written_down <= result.committed);
    }
}

static void call_submit(struct caller *k, unsigned at)
{
    const uint32_t blocks = fuzz_u8(&k->in) % BLOCKS_MAX;
    const struct kvd_prompt prompt = prompt_of(blocks);
    switch (blocks % 3) {
    case 0:
        (void)kvd_submit_match(k->s, &prompt, NULL);
        break;
    case 1:
        (void)kvd_submit_touch(k->s, &prompt, blocks, NULL);
        break;
    default:
        if (k->leases[at] && k->under_way == 0 &&
            kvd_submit_load(k->leases[at], 0, k->hits[at], dest, k) == 0) {
            memset(dest_memory, 0, sizeof(dest_memory));
            k->under_way++;
        }
        break;
    }
}

static void call_drain(struct caller *k, int wait_ms)
{
    struct kvd_completion done[4];
    struct pollfd pfd = {.fd = kvd_client_fd(k->c), .events = POLLIN};
    (void)poll(&pfd, 1, wait_ms);
    const int n = kvd_drain(k->c, done, 4);
    for (int i = 0; i < n; i++) {
        if (done[i].op == KVD_OP_MATCH && done[i].status == 0) {
            kvd_lease_release(&done[i].match.lease);
        }
        if (done[i].op == KVD_OP_LOAD) {
            k->under_way--;
            check_good(0, done[i].status == 0 ? done[i].good : 0, BLOCKS_MAX);
        }
    }
}

static void call_report(struct caller *k)
{
    char *json = NULL;
    if (kvd_report(k->c, "status", NULL, NULL, &json) == 0) {
        FUZZ_CHECK(strlen(json) < KVD_WIRE_REPORT_MAX);
        free(json);
    }
}

static void call_one(struct caller *k)
{
    const uint8_t what = fuzz_u8(&k->in);
    const unsigned at = what / 16 % KEPT;
    const struct kvd_prompt prompt = prompt_of(2);
    switch (what % 16) {
    case 0:
    case 1:
        call_match(k, at);
        break;
    case 2:
    case 3:
        call_load(k, at);
        break;
    case 4:
        lease_drop(k, at);
        break;
    case 5:
    case 6:
        call_put_begin(k, at);
        break;
    case 7:
        call_put_end(k, at);
        break;
    case 8:
        call_put(k);
        break;
    case 9:
        (void)kvd_touch(k->s, &prompt, 2);
        break;
    case 10:
        (void)kvd_ping(k->c);
        break;
    case 11:
        call_report(k);
        break;
    case 12:
    case 13:
        call_submit(k, at);
        break;
    default:
        call_drain(k, 0);
        break;
    }
}

static void caller_end(struct caller *k)
{
    for (int i = 0; k->under_way && i < 2 * WAIT_MS; i++) {
        call_drain(k, WAIT_MS);
    }
    FUZZ_CHECK(k->under_way == 0); /* a deadline has ended it */
    for (unsigned i = 0; i < KEPT; i++) {
        kvd_lease_release(&k->leases[i]);
        kvd_put_abort(&k->puts[i]);
    }
    kvd_client_close(&k->c);
}

static void caller_run(struct caller *k, int fd)
{
    struct kvd_client_options o;
    const struct kvd_space_config config = {.size = sizeof(config),
                                            .model = "fuzz",
                                            .dtype = KVD_DTYPE_F16,
                                            .layout = KVD_LAYOUT_HEADS,
                                            .layers = 1,
                                            .kv_heads = 1,
                                            .head_dim = 64,
                                            .block_tokens = BLOCK_TOKENS,
                                            .rope_base = 10000,
                                            .rope_scale = 1,
                                            .numerics = "n",
                                            .ranks = 1};
    kvd_client_options_init(&o);
    o.fd = fd;
    o.connect_ms = o.match_ms = o.io_ms = WAIT_MS;
    FUZZ_CHECK(kvd_client_open(&o, &k->c) == 0);
    if (kvd_space_open(k->c, &config, &k->s) == 0) {
        for (int i = 0; k->in.left > 0 && i < STEPS_MAX; i++) {
            call_one(k);
        }
    }
    caller_end(k);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_in in = {data, size};
    struct caller k = {0};
    struct peer p = {0};
    int pair[2];
    if (m.pool_fd < 0) {
        memory_make();
        for (int i = 0; i < BLOCKS_MAX; i++) {
            dest[i] = dest_memory[i];
        }
    }
    k.in.at = fuzz_take(&in, fuzz_u8(&in), &k.in.left);
    p.in = in;
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    p.fd = pair[0];
    FUZZ_CHECK(pthread_create(&p.thread, NULL, peer_main, &p) == 0);
    caller_run(&k, pair[1]);
    FUZZ_CHECK(pthread_join(p.thread, NULL) == 0);
    (void)close(p.fd);
    return 0;
}
