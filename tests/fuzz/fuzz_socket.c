/*
 * Fuzz entry of the clients' door, over a real store: an input is what two clients do. They send
 * requests whose fields are mostly sensible, bytes that are none, descriptors that nobody asked
 * for; they write to their request areas and staging areas while the daemon works on them, and hang
 * up at any moment.
 *
 * After each input both are gone, and with them everything that was theirs: sessions, leases, pins,
 * puts, staging. The counters add up (the daemon asserts it at each report), and it still answers.
 * What is stored stays from one input to the next.
 *
 * Input: a byte a step (enum step; ASYNC: the next step does not wait for this one's answer), then
 * the step's choices.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cachesvc/core/service_private.h"
#include "cachesvc/local/local.h"
#include "fuzz.h"
#include "proto/base/cleanup.h"
#include "proto/base/clock.h"

enum step {
    STEP_HELLO,
    STEP_SPACE,
    STEP_TOKENS,
    STEP_MATCH,
    STEP_LOAD,
    STEP_RELEASE,
    STEP_PUT,
    STEP_STAGING,
    STEP_COMMIT,
    STEP_TOUCH,
    STEP_ADMIN,
    STEP_SCRIBBLE,
    STEP_RAW,
    STEP_DESCRIPTORS,
    STEP_HANG_UP,
    STEP_OTHER_CLIENT,
    STEP_DROP,
    STEP_PURGE,
    STEP_VERIFY,
    STEPS,
    ASYNC = 0x80,
    EDITED = 0x40, /* some bytes of the packed request are changed before it is sent */
};
enum { CLIENTS = 2, STEPS_MAX = 64, KEPT = 4, WAIT_MS = 20000, LOOK_CLOSER_EVERY = 64 };
enum { BLOCK_TOKENS = 4, RESULTS_AT = 1 << 20, FDS_SLACK = 200 };

struct client {
    int fd; /* -1: not connected */
    uint8_t *area;
    uint8_t *staging;
    size_t staging_bytes;
    uint32_t space;
    uint64_t leases[KEPT];
    uint64_t puts[KEPT];
    uint64_t last_id;
    uint64_t heard_id;
};

/* The daemon, made at the first input. */
static struct {
    char folder[128];
    struct kvd_config config;
    struct kvd_service *service;
    struct kvd_local *local;
    uint64_t inputs;
    unsigned fds;
} d;

/* ---- the daemon ---- */

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static void stop(void)
{
    kvd_local_stop(&d.local);
    (void)kvd_service_close(&d.service);
    kvd_config_fini(&d.config);
    (void)nftw(d.folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void set(const char *name, const char *value)
{
    struct kvd_diag diag;
    FUZZ_CHECK(kvd_config_set(&d.config, name, value, name, &diag) == 0);
}

static unsigned fds_count(void)
{
    unsigned n = 0;
    DIR *dir = opendir("/proc/self/fd");
    FUZZ_CHECK(dir != NULL);
    while (readdir(dir)) {
        n++;
    }
    (void)closedir(dir);
    return n;
}

static void start(void)
{
    const char *tmp = getenv("TMPDIR");
    char pool[160];
    struct kvd_diag diag = {""};
    (void)snprintf(d.folder, sizeof(d.folder), "%.80s/kvd-fuzz-XXXXXX", tmp ? tmp : "/tmp");
    FUZZ_CHECK(mkdtemp(d.folder) != NULL && kvd_config_init(&d.config) == 0);
    (void)snprintf(pool, sizeof(pool), "%s/pool", d.folder);
    set("dir", d.folder);
    set("dram.path", pool);
    set("dram.cap", "32MiB");
    set("nvme.cap", "16MiB");
    set("index.cache", "8MiB");
    set("io.engine", "threads");
    set("client.copy-lease", "100ms");
    FUZZ_CHECK(kvd_config_finish(&d.config, &diag) == 0);
    FUZZ_CHECK(kvd_service_open(&d.config, true, NULL, &diag, &d.service) == 0);
    const struct kvd_local_options options = {0};
    FUZZ_CHECK(kvd_local_start(d.service, &options, &diag, &d.local) == 0);
    FUZZ_CHECK(atexit(stop) == 0);
    d.fds = fds_count();
}

/* ---- a client ---- */

static void hang_up(struct client *c)
{
    if (c->fd >= 0) {
        (void)close(c->fd);
    }
    if (c->area) {
        (void)munmap(c->area, KVD_WIRE_REQUEST_AREA_BYTES);
    }
    if (c->staging) {
        (void)munmap(c->staging, c->staging_bytes);
    }
    *c = (struct client){.fd = -1};
}

static void connect_client(struct client *c)
{
    int pair[2];
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    FUZZ_CHECK(kvd_local_adopt(d.local, pair[0]) == 0);
    *c = (struct client){.fd = pair[1]};
}

static void keep(uint64_t kept[KEPT], uint64_t id)
{
    memmove(kept + 1, kept, (KEPT - 1) * sizeof(*kept));
    kept[0] = id;
}

static uint8_t *map(int fd, size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    FUZZ_CHECK(at != MAP_FAILED);
    return at;
}

static void take_reply(struct client *c, const Kvd__Wire__Reply *r, const int *fds, unsigned n_fds)
{
    c->heard_id = r->id;
    switch (r->body_case) {
    case KVD__WIRE__REPLY__BODY_HELLO:
        FUZZ_CHECK(n_fds == 2 && !c->area);
        c->area = map(fds[0], r->hello->request_area_bytes);
        break;
    case KVD__WIRE__REPLY__BODY_SPACE_OPEN:
        c->space = r->space_open->space_handle;
        if (n_fds == 1 && !c->staging) {
            c->staging_bytes = r->space_open->staging_bytes;
            c->staging = map(fds[0], c->staging_bytes);
        }
        break;
    case KVD__WIRE__REPLY__BODY_MATCH:
        FUZZ_CHECK(r->match->hit_blocks <= r->match->asked_blocks);
        FUZZ_CHECK((r->match->lease != 0) == (r->match->hit_blocks != 0));
        keep(c->leases, r->match->lease);
        break;
    case KVD__WIRE__REPLY__BODY_PUT_BEGIN:
        FUZZ_CHECK((r->put_begin->put != 0) == (r->put_begin->granted_blocks != 0));
        keep(c->puts, r->put_begin->put);
        break;
    default:
        break;
    }
}

/* One reply; false where there is none (or the connection has ended). */
static bool receive(struct client *c, int wait_ms)
{
    static uint8_t packet[KVD_WIRE_PACKET_MAX];
    union {
        char buf[CMSG_SPACE(sizeof(int) * 4)];
        struct cmsghdr align;
    } control;
    struct iovec iov = {packet, sizeof(packet)};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.buf,
                         .msg_controllen = sizeof(control.buf)};
    struct pollfd pfd = {.fd = c->fd, .events = POLLIN};
    int fds[4];
    unsigned n_fds = 0;
    if (c->fd < 0 || poll(&pfd, 1, wait_ms) == 0) {
        FUZZ_CHECK(c->fd < 0 || wait_ms == 0); /* it always answers, or hangs up */
        return false;
    }
    const ssize_t n = recvmsg(c->fd, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n <= 0) {
        hang_up(c);
        return false;
    }
    for (struct cmsghdr *m = CMSG_FIRSTHDR(&msg); m; m = CMSG_NXTHDR(&msg, m)) {
        for (size_t i = 0; i < (m->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
            memcpy(&fds[n_fds++], CMSG_DATA(m) + i * sizeof(int), sizeof(int));
        }
    }
    Kvd__Wire__Reply *r = kvd__wire__reply__unpack(NULL, (size_t)n, packet);
    FUZZ_CHECK(r != NULL);
    take_reply(c, r, fds, n_fds);
    kvd__wire__reply__free_unpacked(r, NULL);
    for (unsigned i = 0; i < n_fds; i++) {
        (void)close(fds[i]);
    }
    return true;
}

static void receive_all(struct client *c)
{
    while (receive(c, 0)) {
    }
}

static void send_bytes(struct client *c, const void *bytes, size_t n, int stray_fd, unsigned times)
{
    union {
        char buf[CMSG_SPACE(sizeof(int) * 8)];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec iov = {(void *)(uintptr_t)bytes, n};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    receive_all(c);
    if (times) {
        msg.msg_control = control.buf;
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * times);
        struct cmsghdr *m = CMSG_FIRSTHDR(&msg);
        m->cmsg_level = SOL_SOCKET;
        m->cmsg_type = SCM_RIGHTS;
        m->cmsg_len = CMSG_LEN(sizeof(int) * times);
        for (unsigned i = 0; i < times; i++) {
            memcpy(CMSG_DATA(m) + i * sizeof(int), &stray_fd, sizeof(int));
        }
    }
    if (c->fd >= 0) {
        (void)sendmsg(c->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
}

/* Waits until everything sent so far was handled: the door takes packets in order. */
static void sync_with(struct client *c)
{
    Kvd__Wire__PingRequest body = KVD__WIRE__PING_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    uint8_t packet[64];
    if (!c->area) {
        receive_all(c); /* before hello a ping would end the connection */
        return;
    }
    req.id = ++c->last_id;
    req.body_case = KVD__WIRE__REQUEST__BODY_PING;
    req.ping = &body;
    send_bytes(c, packet, kvd__wire__request__pack(&req, packet), -1, 0);
    while (c->fd >= 0 && c->heard_id != req.id) {
        (void)receive(c, WAIT_MS);
    }
}

/* ---- steps ---- */

struct run {
    struct fuzz_in in;
    struct client clients[CLIENTS];
    struct client *c;
    uint8_t step;
};

static void send_request(struct run *r, Kvd__Wire__Request *req)
{
    static uint8_t packet[KVD_WIRE_PACKET_MAX];
    struct client *c = r->c;
    req->id = ++c->last_id;
    if (kvd__wire__request__get_packed_size(req) > sizeof(packet)) {
        return;
    }
    size_t n = kvd__wire__request__pack(req, packet);
    for (unsigned i = r->step & EDITED ? 1 + fuzz_u8(&r->in) % 4 : 0; i > 0 && n > 0; i--) {
        packet[fuzz_le(&r->in, 2) % n] = fuzz_u8(&r->in);
    }
    send_bytes(c, packet, n, -1, 0);
    /* answered by others than the door: their answer is waited for itself */
    const bool by_worker = req->body_case == KVD__WIRE__REQUEST__BODY_LOAD ||
                           req->body_case == KVD__WIRE__REQUEST__BODY_PUT_COMMIT ||
                           req->body_case == KVD__WIRE__REQUEST__BODY_DROP ||
                           req->body_case == KVD__WIRE__REQUEST__BODY_PURGE ||
                           req->body_case == KVD__WIRE__REQUEST__BODY_HELLO;
    while (!(r->step & (ASYNC | EDITED)) && by_worker && c->fd >= 0 && c->heard_id != req->id) {
        (void)receive(c, WAIT_MS);
    }
}

static void step_hello(struct run *r)
{
    Kvd__Wire__HelloRequest body = KVD__WIRE__HELLO_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    if (r->c->fd < 0) {
        connect_client(r->c);
    }
    body.version = (uint32_t)fuzz_mostly(&r->in, KVD_WIRE_VERSION);
    body.min_version = (uint32_t)fuzz_mostly(&r->in, KVD_WIRE_VERSION);
    body.program = "fuzz\n";
    req.body_case = KVD__WIRE__REQUEST__BODY_HELLO;
    req.hello = &body;
    send_request(r, &req);
}

static void step_space(struct run *r)
{
    uint8_t weights[KVD_DIGEST_BYTES] = {fuzz_u8(&r->in) & 3};
    Kvd__Wire__SpaceDesc desc = KVD__WIRE__SPACE_DESC__INIT;
    Kvd__Wire__SpaceOpenRequest body = KVD__WIRE__SPACE_OPEN_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    desc.model = "fuzz";
    desc.numerics = "n";
    desc.weights.data = weights;
    desc.weights.len = fuzz_mostly(&r->in, KVD_DIGEST_BYTES) == KVD_DIGEST_BYTES ? 32 : 31;
    desc.kv_dtype = (uint32_t)fuzz_mostly(&r->in, KVD_KV_F16);
    desc.layout = (uint32_t)fuzz_mostly(&r->in, KVD_LAYOUT_LAYER_KV_HEAD_TOKEN_DIM);
    desc.layers = (uint32_t)fuzz_mostly(&r->in, 1);
    desc.kv_heads = (uint32_t)fuzz_mostly(&r->in, 1);
    desc.head_dim = (uint32_t)fuzz_mostly(&r->in, 64);
    desc.block_tokens = (uint32_t)fuzz_mostly(&r->in, BLOCK_TOKENS);
    desc.rope_base_bits = UINT64_C(0x40c3880000000000);
    desc.rope_scale_bits = UINT64_C(0x3ff0000000000000);
    desc.ranks = (uint32_t)fuzz_mostly(&r->in, 1);
    desc.payload_bytes = fuzz_mostly(&r->in, UINT64_C(4) * desc.layers * desc.kv_heads *
                                                 desc.head_dim * desc.block_tokens);
    body.desc = fuzz_u8(&r->in) == 0xff ? NULL : &desc;
    req.body_case = KVD__WIRE__REQUEST__BODY_SPACE_OPEN;
    req.space_open = &body;
    send_request(r, &req);
}

/* Token ids of a conversation, at the beginning of the request area. */
static void step_tokens(struct run *r)
{
    const uint32_t seed = fuzz_u8(&r->in) % 8;
    const uint32_t branch = fuzz_u8(&r->in);
    for (uint32_t i = 0; r->c->area && i < 256; i++) {
        const uint32_t token = i < branch ? seed * 1000 + i : seed * 1000 + i + 500;
        memcpy(r->c->area + (size_t)4 * i, &token, 4);
    }
}

struct prompt {
    Kvd__Wire__Prompt msg;
    Kvd__Wire__Range tokens;
    uint8_t extra[KVD_DIGEST_BYTES];
};

static void prompt_make(struct run *r, struct prompt *p, uint64_t n_tokens)
{
    static char *const scenarios[] = {"chat", "agent", "batch", "handoff", "nobody", ""};
    static char *const tenants[] = {"", "alice", "bob\n\xff"};
    kvd__wire__prompt__init(&p->msg);
    kvd__wire__range__init(&p->tokens);
    p->msg.space_handle = (uint32_t)fuzz_mostly(&r->in, r->c->space);
    const uint8_t who = fuzz_u8(&r->in);
    p->msg.scenario = scenarios[who < 250 ? who % 4 : 4 + who % 2];
    p->msg.tenant_name.data = (uint8_t *)tenants[who / 4 % 3];
    p->msg.tenant_name.len = strlen(tenants[who / 4 % 3]);
    p->msg.rank = (uint32_t)fuzz_mostly(&r->in, 0);
    p->msg.extra.data = p->extra;
    p->msg.extra.len = who == 249 ? KVD_DIGEST_BYTES : who == 248 ? 7 : 0;
    p->tokens.offset = fuzz_mostly(&r->in, 0);
    p->tokens.bytes = fuzz_mostly(&r->in, n_tokens * 4);
    p->msg.tokens = fuzz_u8(&r->in) == 0xff ? NULL : &p->tokens;
}

static void results_make(struct run *r, Kvd__Wire__Range *range, uint64_t rows)
{
    kvd__wire__range__init(range);
    range->offset = fuzz_mostly(&r->in, RESULTS_AT);
    range->bytes = fuzz_mostly(&r->in, rows * sizeof(struct kvd_wire_block));
}

static void step_match(struct run *r)
{
    struct prompt prompt = {.extra = {0}};
    Kvd__Wire__Range results;
    Kvd__Wire__MatchRequest body = KVD__WIRE__MATCH_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    const uint64_t n = fuzz_u8(&r->in);
    prompt_make(r, &prompt, n);
    results_make(r, &results, n / BLOCK_TOKENS);
    body.prompt = &prompt.msg;
    body.results = &results;
    req.body_case = KVD__WIRE__REQUEST__BODY_MATCH;
    req.match = &body;
    send_request(r, &req);
}

static void step_load(struct run *r)
{
    Kvd__Wire__Range results;
    Kvd__Wire__LoadRequest body = KVD__WIRE__LOAD_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    const uint8_t how = fuzz_u8(&r->in);
    const uint8_t n = how % 64;
    body.place = how & 0x80;
    body.lease = fuzz_mostly(&r->in, r->c->leases[fuzz_u8(&r->in) % KEPT]);
    body.first_block = (uint32_t)fuzz_mostly(&r->in, 0);
    body.n_blocks = (uint32_t)fuzz_mostly(&r->in, n);
    body.deadline_ms = (uint32_t)fuzz_mostly(&r->in, WAIT_MS / 2);
    results_make(r, &results, n);
    body.results = &results;
    req.body_case = KVD__WIRE__REQUEST__BODY_LOAD;
    req.load = &body;
    send_request(r, &req);
}

static void step_release(struct run *r)
{
    Kvd__Wire__ReleaseRequest body = KVD__WIRE__RELEASE_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    body.lease = fuzz_mostly(&r->in, r->c->leases[fuzz_u8(&r->in) % KEPT]);
    body.has_stale = fuzz_u8(&r->in) & 1;
    body.stale_from_block = (uint32_t)fuzz_mostly(&r->in, 1);
    req.body_case = KVD__WIRE__REQUEST__BODY_RELEASE;
    req.release = &body;
    send_request(r, &req);
}

static void step_put(struct run *r)
{
    struct prompt prompt = {.extra = {0}};
    Kvd__Wire__Range results;
    Kvd__Wire__PutBeginRequest body = KVD__WIRE__PUT_BEGIN_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    const uint8_t first = fuzz_u8(&r->in) % 32;
    const uint8_t n = 1 + fuzz_u8(&r->in) % KVD_WIRE_STAGING_SLOTS;
    prompt_make(r, &prompt, (uint64_t)(first + n) * BLOCK_TOKENS);
    results_make(r, &results, n);
    body.prompt = &prompt.msg;
    body.first_block = (uint32_t)fuzz_mostly(&r->in, first);
    body.n_blocks = (uint32_t)fuzz_mostly(&r->in, n);
    body.results = &results;
    req.body_case = KVD__WIRE__REQUEST__BODY_PUT_BEGIN;
    req.put_begin = &body;
    send_request(r, &req);
}

static void step_staging(struct run *r)
{
    const size_t at = fuzz_le(&r->in, 3);
    const uint8_t value = fuzz_u8(&r->in);
    for (size_t i = 0; r->c->staging && i < 4096; i++) {
        r->c->staging[(at + i) % r->c->staging_bytes] = (uint8_t)(value + i);
    }
}

static void step_commit(struct run *r)
{
    Kvd__Wire__PutCommitRequest body = KVD__WIRE__PUT_COMMIT_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    body.put = fuzz_mostly(&r->in, r->c->puts[fuzz_u8(&r->in) % KEPT]);
    body.abort = fuzz_u8(&r->in) > 0xc0;
    req.body_case = KVD__WIRE__REQUEST__BODY_PUT_COMMIT;
    req.put_commit = &body;
    send_request(r, &req);
}

static void step_touch(struct run *r)
{
    struct prompt prompt = {.extra = {0}};
    Kvd__Wire__TouchRequest body = KVD__WIRE__TOUCH_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    const uint64_t n = fuzz_u8(&r->in);
    prompt_make(r, &prompt, n);
    body.prompt = &prompt.msg;
    body.n_blocks = (uint32_t)fuzz_mostly(&r->in, n / BLOCK_TOKENS);
    req.body_case = KVD__WIRE__REQUEST__BODY_TOUCH;
    req.touch = &body;
    send_request(r, &req);
}

static void step_admin(struct run *r)
{
    static char *const words[] = {"status", "hitrate", "options", "scenario", "space",
                                  "tenant", "tier",    "ever",    "10s",      ""};
    enum { WORDS = sizeof(words) / sizeof(words[0]) };
    char raw[128];
    size_t n = 0;
    Kvd__Wire__AdminRequest body = KVD__WIRE__ADMIN_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    body.what = words[fuzz_u8(&r->in) % WORDS];
    body.by = words[fuzz_u8(&r->in) % WORDS];
    body.window = words[fuzz_u8(&r->in) % WORDS];
    if (fuzz_u8(&r->in) > 0xf0) {
        const uint8_t *given = fuzz_take(&r->in, sizeof(raw) - 1, &n);
        memcpy(raw, given, n);
        raw[n] = 0;
        body.what = raw;
    }
    req.body_case = KVD__WIRE__REQUEST__BODY_ADMIN;
    req.admin = &body;
    send_request(r, &req);
}

/* Writes to the request area again and again, while the daemon is at what was asked before. */
static void step_scribble(struct run *r)
{
    const size_t at = fuzz_u8(&r->in) % 2 ? RESULTS_AT : 0;
    const unsigned times = fuzz_u8(&r->in);
    for (unsigned t = 0; r->c->area && t < times; t++) {
        for (size_t i = 0; i < 256; i++) {
            r->c->area[at + i * 3] = (uint8_t)(t * 7 + i);
        }
    }
}

static void step_raw(struct run *r)
{
    size_t n = 0;
    const uint8_t *bytes = fuzz_take(&r->in, fuzz_u8(&r->in), &n);
    if (n > 0) {
        send_bytes(r->c, bytes, n, -1, 0);
    }
}

static void step_descriptors(struct run *r)
{
    Kvd__Wire__PingRequest body = KVD__WIRE__PING_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    uint8_t packet[64];
    const int fd = memfd_create("stray", MFD_CLOEXEC);
    req.id = ++r->c->last_id;
    req.body_case = KVD__WIRE__REQUEST__BODY_PING;
    req.ping = &body;
    send_bytes(r->c, packet, kvd__wire__request__pack(&req, packet), fd, 1 + fuzz_u8(&r->in) % 8);
    (void)close(fd);
}

static void step_drop(struct run *r)
{
    struct prompt prompt = {.extra = {0}};
    Kvd__Wire__DropRequest body = KVD__WIRE__DROP_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    const uint8_t first = fuzz_u8(&r->in) % 32;
    const uint8_t n = 1 + fuzz_u8(&r->in) % 16;
    prompt_make(r, &prompt, (uint64_t)(first + n) * BLOCK_TOKENS);
    body.prompt = &prompt.msg;
    body.first_block = (uint32_t)fuzz_mostly(&r->in, first);
    body.n_blocks = (uint32_t)fuzz_mostly(&r->in, n);
    req.body_case = KVD__WIRE__REQUEST__BODY_DROP;
    req.drop = &body;
    send_request(r, &req);
}

static void step_purge(struct run *r)
{
    static char *const spaces[] = {"",           "fuzz", "00000000", "0123456789abcdef",
                                   "m@12345678", "\xff"};
    Kvd__Wire__PurgeRequest body = KVD__WIRE__PURGE_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    const uint8_t how = fuzz_u8(&r->in);
    body.all = how >= 0xf0;
    body.has_tenant = how & 1;
    body.tenant_name.data = (uint8_t *)(uintptr_t) "alice";
    body.tenant_name.len = how & 2 ? 5 : 0;
    body.space = spaces[how / 4 % (sizeof(spaces) / sizeof(spaces[0]))];
    req.body_case = KVD__WIRE__REQUEST__BODY_PURGE;
    req.purge = &body;
    send_request(r, &req);
}

static void step_verify(struct run *r)
{
    static char *const tiers[] = {"", "dram", "nvme", "tape"};
    Kvd__Wire__VerifyRequest body = KVD__WIRE__VERIFY_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    body.tier = tiers[fuzz_u8(&r->in) % 4];
    body.rate = fuzz_mostly(&r->in, 0);
    req.body_case = KVD__WIRE__REQUEST__BODY_VERIFY;
    req.verify = &body;
    send_request(r, &req);
}

static void step_run(struct run *r)
{
    static void (*const steps[STEPS])(struct run *) = {
        [STEP_HELLO] = step_hello,   [STEP_SPACE] = step_space,
        [STEP_TOKENS] = step_tokens, [STEP_MATCH] = step_match,
        [STEP_LOAD] = step_load,     [STEP_RELEASE] = step_release,
        [STEP_PUT] = step_put,       [STEP_STAGING] = step_staging,
        [STEP_COMMIT] = step_commit, [STEP_TOUCH] = step_touch,
        [STEP_ADMIN] = step_admin,   [STEP_SCRIBBLE] = step_scribble,
        [STEP_RAW] = step_raw,       [STEP_DESCRIPTORS] = step_descriptors,
        [STEP_DROP] = step_drop,     [STEP_PURGE] = step_purge,
        [STEP_VERIFY] = step_verify,
    };
    r->step = fuzz_u8(&r->in);
    const unsigned kind = (r->step & 0x3f) % STEPS;
    if (kind == STEP_HANG_UP) {
        hang_up(r->c);
    } else if (kind == STEP_OTHER_CLIENT) {
        r->c = &r->clients[r->c == &r->clients[0]];
    } else {
        steps[kind](r);
        if (!(r->step & ASYNC)) {
            sync_with(r->c);
        }
    }
}

/* ---- what holds afterwards ---- */

static bool all_given_back(bool written_down)
{
    struct kvd_service *s = d.service;
    struct kvd_pool_stat pool;
    (void)pthread_mutex_lock(&s->mtx);
    const bool back =
        s->n_sessions == 0 && s->n_leases == 0 && s->pinned_bytes == 0 && s->staging_bytes == 0;
    (void)pthread_mutex_unlock(&s->mtx);
    kvd_pool_stat(s->pool, &pool);
    FUZZ_CHECK(pool.used_bytes <= d.config.dram_cap);
    return back && (!written_down || pool.pinned_bytes == 0);
}

static void no_row(const char *name, const struct kvd_tally *t, void *user)
{
    (void)user;
    FUZZ_CHECK(name[0] && t->hit[KVD_TIER_DRAM].tokens <= t->asked.tokens);
}

static void check_after(void)
{
    const bool closer = ++d.inputs % LOOK_CLOSER_EVERY == 0;
    const uint64_t deadline = kvd_mono_ns() + (uint64_t)WAIT_MS * KVD_NS_PER_MS;
    while (!all_given_back(closer)) {
        FUZZ_CHECK(kvd_mono_ns() < deadline);
        (void)sched_yield();
    }
    for (int by = 0; closer && by <= KVD_BY_TENANT; by++) {
        for (int w = 0; w < KVD_WINDOW_COUNT; w++) {
            FUZZ_CHECK(kvd_counting_report(d.service->counting, kvd_mono_ns() / KVD_NS_PER_S,
                                           (enum kvd_count_by)by, (enum kvd_window)w, no_row,
                                           NULL) == 0);
        }
    }
    FUZZ_CHECK(!closer || fds_count() < d.fds + FDS_SLACK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct run r = {.in = {data, size}};
    if (!d.service) {
        start();
    }
    for (int i = 0; i < CLIENTS; i++) {
        r.clients[i].fd = -1;
    }
    r.c = &r.clients[0];
    for (int i = 0; r.in.left > 0 && i < STEPS_MAX; i++) {
        step_run(&r);
    }
    for (int i = 0; i < CLIENTS; i++) {
        hang_up(&r.clients[i]);
    }
    check_after();
    return 0;
}
