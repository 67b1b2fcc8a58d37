#include "rig.h"

#include <errno.h>
#include <ftw.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "kvd_test.h"
#include "proto/base/cleanup.h"

enum { LOG_BYTES = 1 << 20 };

/* ---- the daemon */

void rig_set(struct rig *rig, const char *option, const char *value)
{
    struct kvd_diag diag = {{0}};
    if (kvd_config_set(&rig->config, option, value, option, &diag)) {
        fail_msg("%s", diag.text);
    }
}

void rig_init(struct rig *rig)
{
    const char *tmp = getenv("TMPDIR");
    char pool[160];
    memset(rig, 0, sizeof(*rig));
    (void)snprintf(rig->folder, sizeof(rig->folder), "%s/kvd-local-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(rig->folder));
    (void)snprintf(rig->socket, sizeof(rig->socket), "%s/sock", rig->folder);
    (void)snprintf(pool, sizeof(pool), "%s/pool", rig->folder);
    rig->log_fd = memfd_create("log", MFD_CLOEXEC);
    assert_true(rig->log_fd >= 0);
    kvd_log_init(&rig->log, rig->log_fd, "test", KVD_LOG_INFO);
    assert_int_equal(kvd_config_init(&rig->config), 0);
    rig_set(rig, "dir", rig->folder);
    rig_set(rig, "socket", rig->socket);
    rig_set(rig, "dram.path", pool);
    rig_set(rig, "dram.cap", "32MiB");
    rig_set(rig, "nvme.cap", "64MiB");
    rig_set(rig, "index.cache", "8MiB");
}

void rig_start(struct rig *rig)
{
    struct kvd_diag diag = {{0}};
    if (kvd_config_finish(&rig->config, &diag) ||
        kvd_daemon_start(&rig->config, false, true, &rig->log, &diag, &rig->daemon)) {
        fail_msg("%s", diag.text);
    }
}

void rig_stop(struct rig *rig)
{
    assert_int_equal(kvd_daemon_stop(&rig->daemon), 0);
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

void rig_fini(struct rig *rig)
{
    rig_stop(rig);
    kvd_config_fini(&rig->config);
    kvd_close_fd(&rig->log_fd);
    (void)nftw(rig->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

unsigned rig_logged(struct rig *rig, const char *text)
{
    KVD_AUTOFREE char *all = calloc(1, LOG_BYTES + 1);
    unsigned n = 0;
    assert_true(all && pread(rig->log_fd, all, LOG_BYTES, 0) >= 0);
    for (const char *at = strstr(all, text); at; at = strstr(at + 1, text)) {
        n++;
    }
    return n;
}

/* ---- through the library */

static struct kvd_client *client_open(const char *path, int fd)
{
    struct kvd_client_options o;
    struct kvd_client *c = NULL;
    kvd_client_options_init(&o);
    o.socket_path = path;
    o.fd = fd;
    o.program = "test";
    /* a shared, sanitized machine may be slow; what is tested here is not speed */
    o.connect_ms = o.match_ms = o.io_ms = RIG_WAIT_MS;
    assert_int_equal(kvd_client_open(&o, &c), 0);
    return c;
}

struct kvd_client *rig_client(struct rig *rig)
{
    struct kvd_client *c = client_open(rig->socket, -1);
    if (!kvd_client_connected(c)) {
        fail_msg("not connected to %s: %d", rig->socket, kvd_ping(c));
    }
    return c;
}

struct kvd_client *rig_client_embedded(struct rig *rig)
{
    int fd = kvd_daemon_connect(rig->daemon);
    assert_true(fd >= 0);
    struct kvd_client *c = client_open(NULL, fd);
    assert_true(kvd_client_connected(c));
    return c;
}

static struct kvd_space_config space_config(void)
{
    return (struct kvd_space_config){.size = sizeof(struct kvd_space_config),
                                     .model = "rig",
                                     .weights = {7},
                                     .dtype = KVD_DTYPE_F16,
                                     .layout = KVD_LAYOUT_HEADS,
                                     .layers = 2,
                                     .kv_heads = 1,
                                     .head_dim = 64,
                                     .block_tokens = RIG_BLOCK_TOKENS,
                                     .rope_base = 10000,
                                     .rope_scale = 1,
                                     .numerics = "test",
                                     .ranks = 1};
}

struct kvd_space *rig_space(struct kvd_client *client)
{
    struct kvd_space_config config = space_config();
    struct kvd_space *s = NULL;
    int err = kvd_space_open(client, &config, &s);
    if (err) {
        fail_msg("space: %s: %s", kvd_status_text(err), kvd_client_message(client));
    }
    assert_int_equal(kvd_space_block_bytes(s), RIG_BLOCK_BYTES);
    return s;
}

void rig_tokens(uint32_t seed, uint32_t n, uint32_t *ret)
{
    for (uint32_t i = 0; i < n; i++) {
        ret[i] = seed * 1000003 + i * 7;
    }
}

struct kvd_prompt rig_prompt(const uint32_t *tokens, uint32_t n)
{
    return (struct kvd_prompt){.scenario = "chat", .tokens = tokens, .n_tokens = n};
}

void rig_payload(uint32_t seed, uint32_t index, uint8_t *ret)
{
    uint32_t x = seed * 2654435761u + index * 40503u + 1;
    for (uint32_t i = 0; i < RIG_BLOCK_BYTES; i++) {
        x = x * 1664525u + 1013904223u;
        ret[i] = (uint8_t)(x >> 24);
    }
}

/* Memory for n blocks with pointers to each; one free. */
static uint8_t **blocks_create(uint32_t n)
{
    uint8_t **at = malloc(n * sizeof(*at) + (size_t)n * RIG_BLOCK_BYTES);
    assert_non_null(at);
    for (uint32_t i = 0; i < n; i++) {
        at[i] = (uint8_t *)(at + n) + (size_t)i * RIG_BLOCK_BYTES;
    }
    return at;
}

uint32_t rig_put(struct kvd_space *space, uint32_t seed, uint32_t first, uint32_t n)
{
    uint32_t n_tokens = (first + n) * RIG_BLOCK_TOKENS;
    uint32_t *tokens = malloc(n_tokens * sizeof(*tokens));
    uint8_t **src = blocks_create(n);
    struct kvd_put_result result;
    rig_tokens(seed, n_tokens, tokens);
    for (uint32_t i = 0; i < n; i++) {
        rig_payload(seed, first + i, src[i]);
    }
    struct kvd_prompt prompt = rig_prompt(tokens, n_tokens);
    int err = kvd_put(space, &prompt, first, n, (const void *const *)src, &result);
    assert_int_equal(err, 0);
    assert_int_equal(result.stored_already + result.committed + result.refused, n);
    free(src);
    free(tokens);
    return result.stored_already + result.committed;
}

uint32_t rig_hit(struct kvd_space *space, uint32_t seed, uint32_t n)
{
    uint32_t n_tokens = n * RIG_BLOCK_TOKENS + 1;
    uint32_t *tokens = malloc(n_tokens * sizeof(*tokens));
    struct kvd_match_result m;
    uint32_t good = 0;
    rig_tokens(seed, n_tokens, tokens);
    struct kvd_prompt prompt = rig_prompt(tokens, n_tokens);
    assert_int_equal(kvd_match(space, &prompt, &m), 0);
    assert_int_equal(m.asked_blocks, n);
    if (m.hit_blocks > 0) {
        uint8_t **dest = blocks_create(m.hit_blocks);
        uint8_t want[RIG_BLOCK_BYTES];
        assert_int_equal(kvd_load(m.lease, 0, m.hit_blocks, (void *const *)dest, &good), 0);
        for (uint32_t i = 0; i < good; i++) {
            rig_payload(seed, i, want);
            assert_memory_equal(dest[i], want, RIG_BLOCK_BYTES);
        }
        kvd_lease_release(&m.lease);
        free(dest);
    }
    free(tokens);
    return good;
}

int64_t rig_status(struct kvd_client *client, const char *name)
{
    KVD_AUTOFREE char *json = NULL;
    char key[64];
    assert_int_equal(kvd_report(client, "status", NULL, NULL, &json), 0);
    (void)snprintf(key, sizeof(key), "\"%s\":", name);
    const char *at = strstr(json, key);
    assert_non_null(at);
    return strtoll(at + strlen(key), NULL, 10);
}

/* ---- raw */

int raw_socket(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    (void)snprintf(addr.sun_path, sizeof(addr.sun_path), "%.100s", path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&addr, sizeof(addr)), 0);
    return fd;
}

void raw_send_bytes(int fd, const void *bytes, size_t n)
{
    assert_int_equal(send(fd, bytes, n, MSG_NOSIGNAL), n);
}

void raw_send(int fd, const Kvd__Wire__Request *req)
{
    uint8_t buf[4096];
    assert_true(kvd__wire__request__get_packed_size(req) <= sizeof(buf));
    raw_send_bytes(fd, buf, kvd__wire__request__pack(req, buf));
}

static void take_fds(struct msghdr *msg, int *ret_fds, unsigned *ret_n)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; c->cmsg_type == SCM_RIGHTS && i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
            if (ret_fds) {
                ret_fds[(*ret_n)++] = fd;
            } else {
                (void)close(fd);
            }
        }
    }
}

Kvd__Wire__Reply *raw_receive(int fd, int *ret_fds, unsigned *ret_n)
{
    static _Thread_local uint8_t buf[KVD_WIRE_PACKET_MAX];
    union {
        char buf[CMSG_SPACE(sizeof(int) * 8)];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = buf, .iov_len = sizeof(buf)};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.buf,
                         .msg_controllen = sizeof(control.buf)};
    struct pollfd pfd = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&pfd, 1, RIG_WAIT_MS), 1);
    ssize_t n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
    if (n <= 0) {
        assert_true(n == 0 || errno == ECONNRESET);
        return NULL;
    }
    take_fds(&msg, ret_fds, ret_n);
    Kvd__Wire__Reply *r = kvd__wire__reply__unpack(NULL, (size_t)n, buf);
    assert_non_null(r);
    return r;
}

int raw_receive_error(int fd)
{
    Kvd__Wire__Reply *r = raw_receive(fd, NULL, NULL);
    assert_non_null(r);
    int err = kvd_error_from_wire(r->error);
    assert_true(!err || r->error_text[0]);
    kvd__wire__reply__free_unpacked(r, NULL);
    return err;
}

void raw_expect_closed(int fd)
{
    Kvd__Wire__Reply *r;
    while ((r = raw_receive(fd, NULL, NULL))) {
        kvd__wire__reply__free_unpacked(r, NULL);
    }
}

void raw_hello(int fd, uint64_t id)
{
    Kvd__Wire__HelloRequest hello = KVD__WIRE__HELLO_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    hello.version = KVD_WIRE_VERSION;
    hello.min_version = KVD_WIRE_VERSION;
    hello.program = "raw";
    req.id = id;
    req.body_case = KVD__WIRE__REQUEST__BODY_HELLO;
    req.hello = &hello;
    raw_send(fd, &req);
}

static void raw_space_open(struct raw *raw)
{
    struct kvd_space_config c = space_config();
    struct kvd_space_desc desc = {.model = c.model,
                                  .kv_dtype = KVD_KV_F16,
                                  .layout = KVD_LAYOUT_LAYER_KV_HEAD_TOKEN_DIM,
                                  .layers = c.layers,
                                  .kv_heads = c.kv_heads,
                                  .head_dim = c.head_dim,
                                  .block_tokens = c.block_tokens,
                                  .numerics = c.numerics,
                                  .ranks = 1,
                                  .payload_bytes = RIG_BLOCK_BYTES};
    Kvd__Wire__SpaceDesc msg;
    Kvd__Wire__SpaceOpenRequest open = KVD__WIRE__SPACE_OPEN_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    memcpy(desc.weights.b, c.weights, sizeof(c.weights));
    memcpy(&desc.rope_base_bits, &c.rope_base, 8);
    memcpy(&desc.rope_scale_bits, &c.rope_scale, 8);
    kvd_wire_space_desc_pack(&desc, &msg);
    open.desc = &msg;
    req.id = 2;
    req.body_case = KVD__WIRE__REQUEST__BODY_SPACE_OPEN;
    req.space_open = &open;
    raw_send(raw->fd, &req);
    Kvd__Wire__Reply *r = raw_receive(raw->fd, NULL, NULL);
    assert_non_null(r);
    assert_int_equal(r->body_case, KVD__WIRE__REPLY__BODY_SPACE_OPEN);
    raw->space_handle = r->space_open->space_handle;
    kvd__wire__reply__free_unpacked(r, NULL);
}

void raw_open(struct raw *raw, struct rig *rig, bool with_space)
{
    int fds[8] = {-1, -1};
    unsigned n = 0;
    raw->fd = raw_socket(rig->socket);
    raw_hello(raw->fd, 1);
    Kvd__Wire__Reply *r = raw_receive(raw->fd, fds, &n);
    assert_non_null(r);
    assert_int_equal(r->error, 0);
    assert_int_equal(r->body_case, KVD__WIRE__REPLY__BODY_HELLO);
    assert_int_equal(n, 2);
    raw->area =
        mmap(NULL, r->hello->request_area_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    assert_ptr_not_equal(raw->area, MAP_FAILED);
    /* neither can be resized by a client, and the pool can't be written */
    assert_int_equal(ftruncate(fds[0], 0), -1);
    assert_int_equal(ftruncate(fds[1], 0), -1);
    assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0), MAP_FAILED);
    (void)close(fds[0]);
    (void)close(fds[1]);
    kvd__wire__reply__free_unpacked(r, NULL);
    if (with_space) {
        raw_space_open(raw);
    }
}

void raw_close(struct raw *raw)
{
    (void)munmap(raw->area, KVD_WIRE_REQUEST_AREA_BYTES);
    kvd_close_fd(&raw->fd);
}
