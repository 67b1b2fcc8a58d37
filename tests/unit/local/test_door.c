/*
 * What no library would say to the daemon: garbage, lengths, ranges, descriptors, silence, death.
 * Each costs its sender at most the connection; another client is served before, meanwhile and
 * after.
 */
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvd_test.h"
#include "proto/base/cleanup.h"
#include "proto/base/clock.h"
#include "rig.h"

static void ping_request(Kvd__Wire__Request *ret, Kvd__Wire__PingRequest *body, uint64_t id)
{
    kvd__wire__ping_request__init(body);
    kvd__wire__request__init(ret);
    ret->id = id;
    ret->body_case = KVD__WIRE__REQUEST__BODY_PING;
    ret->ping = body;
}

static void send_ping(int fd, uint64_t id)
{
    Kvd__Wire__Request req;
    Kvd__Wire__PingRequest body;
    ping_request(&req, &body, id);
    raw_send(fd, &req);
}

/* Packets that are no requests, for a client that has said hello and one that has not. */
enum garbage { TEXT, ZEROS, EMPTY, TOO_LONG, NO_ID, TINY_FIELDS, TRUNCATED, GARBAGE_KINDS };

static void send_garbage(int fd, enum garbage kind)
{
    static uint8_t buf[KVD_WIRE_PACKET_MAX + 1];
    size_t n = 0;
    memset(buf, 0, sizeof(buf));
    switch (kind) {
    case TEXT:
        raw_send_bytes(fd, "GET / HTTP/1.1\r\n\r\n", 18);
        break;
    case ZEROS:
        raw_send_bytes(fd, buf, 1000);
        break;
    case EMPTY:
        raw_send_bytes(fd, buf, 0);
        break;
    case TOO_LONG:
        raw_send_bytes(fd, buf, sizeof(buf));
        break;
    case NO_ID:
        send_ping(fd, 0);
        break;
    case TINY_FIELDS: /* field 100, over and over: each would cost a struct */
        while (n + 3 <= KVD_WIRE_PACKET_MAX) {
            buf[n++] = 0xa0;
            buf[n++] = 0x06;
            buf[n++] = 1;
        }
        raw_send_bytes(fd, buf, n);
        break;
    default: /* says that 100 bytes follow */
        raw_send_bytes(fd, "\x08\x01\x12\x64\x01", 5);
        break;
    }
}

static void test_garbage_costs_its_sender(void **state)
{
    (void)state;
    struct rig rig;
    rig_init(&rig);
    rig_start(&rig);
    struct kvd_client *c = rig_client(&rig);
    struct kvd_space *s = rig_space(c);
    assert_int_equal(rig_put(s, 1, 0, 4), 4);
    for (int kind = TEXT; kind < GARBAGE_KINDS; kind++) {
        for (int greeted = 0; greeted < 2; greeted++) {
            int fd = raw_socket(rig.socket);
            if (greeted) {
                raw_hello(fd, 1);
                assert_int_equal(raw_receive_error(fd), 0);
            }
            send_garbage(fd, (enum garbage)kind);
            raw_expect_closed(fd);
            (void)close(fd);
            assert_int_equal(rig_hit(s, 1, 4), 4);
        }
    }
    /* one line each; an empty packet looks like leaving, which is no fault */
    assert_int_equal(rig_logged(&rig, ": closed: "), 2 * (GARBAGE_KINDS - 1));
    assert_int_equal(rig_status(c, "clients"), 1);
    kvd_client_close(&c);
    rig_fini(&rig);
}

static void hello_versions(int fd, uint32_t version, uint32_t min_version)
{
    Kvd__Wire__HelloRequest hello = KVD__WIRE__HELLO_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    hello.version = version;
    hello.min_version = min_version;
    hello.program = "evil\n\x1b[2Jname of more than sixty-three bytes, which is cut off somewhere";
    req.id = 5;
    req.body_case = KVD__WIRE__REQUEST__BODY_HELLO;
    req.hello = &hello;
    raw_send(fd, &req);
}

static void test_hello(void **state)
{
    (void)state;
    struct rig rig;
    rig_init(&rig);
    rig_start(&rig);
    int fd = raw_socket(rig.socket);
    send_ping(fd, 1); /* anything before hello is refused, with the reason */
    assert_int_equal(raw_receive_error(fd), -KVD_E_BAD_REQUEST);
    raw_expect_closed(fd);
    (void)close(fd);
    fd = raw_socket(rig.socket);
    hello_versions(fd, KVD_WIRE_VERSION + 1, KVD_WIRE_VERSION + 1);
    assert_int_equal(raw_receive_error(fd), -KVD_E_NEWER);
    raw_expect_closed(fd);
    (void)close(fd);
    fd = raw_socket(rig.socket);
    hello_versions(fd, 0, 0);
    assert_int_equal(raw_receive_error(fd), -KVD_E_FORMAT);
    raw_expect_closed(fd);
    (void)close(fd);
    fd = raw_socket(rig.socket);
    hello_versions(fd, KVD_WIRE_VERSION + 1, KVD_WIRE_VERSION); /* newer, but speaks ours too */
    assert_int_equal(raw_receive_error(fd), 0);
    send_ping(fd, 6);
    assert_int_equal(raw_receive_error(fd), 0);
    assert_int_equal(rig_logged(&rig, "\x1b"), 0); /* a client's name can't write to a terminal */
    raw_hello(fd, 7);
    raw_expect_closed(fd);
    (void)close(fd);
    rig_fini(&rig);
}

static void test_too_many_clients(void **state)
{
    (void)state;
    struct rig rig;
    rig_init(&rig);
    rig_set(&rig, "client.max", "2");
    rig_start(&rig);
    struct raw a;
    struct raw b;
    raw_open(&a, &rig, false);
    raw_open(&b, &rig, false);
    int fd = raw_socket(rig.socket);
    raw_hello(fd, 1);
    assert_int_equal(raw_receive_error(fd), -KVD_E_OVER_QUOTA);
    raw_expect_closed(fd);
    (void)close(fd);
    send_ping(a.fd, 2);
    assert_int_equal(raw_receive_error(a.fd), 0);
    raw_close(&a);
    raw_close(&b);
    rig_fini(&rig);
}

/* ---- ranges in the request area */

struct ranges {
    uint64_t tokens_at;
    uint64_t tokens_bytes;
    uint64_t results_at;
    uint64_t results_bytes;
};

static int match_error(struct raw *raw, const struct ranges *r)
{
    Kvd__Wire__Range tokens = KVD__WIRE__RANGE__INIT;
    Kvd__Wire__Range results = KVD__WIRE__RANGE__INIT;
    Kvd__Wire__Prompt prompt = KVD__WIRE__PROMPT__INIT;
    Kvd__Wire__MatchRequest match = KVD__WIRE__MATCH_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    tokens.offset = r->tokens_at;
    tokens.bytes = r->tokens_bytes;
    results.offset = r->results_at;
    results.bytes = r->results_bytes;
    prompt.space_handle = raw->space_handle;
    prompt.scenario = "chat";
    prompt.tokens = &tokens;
    match.prompt = &prompt;
    match.results = &results;
    req.id = 10;
    req.body_case = KVD__WIRE__REQUEST__BODY_MATCH;
    req.match = &match;
    raw_send(raw->fd, &req);
    return raw_receive_error(raw->fd);
}

static void test_ranges(void **state)
{
    (void)state;
    enum { AREA = KVD_WIRE_REQUEST_AREA_BYTES, T = 4 * (2 * RIG_BLOCK_TOKENS + 1), R = 2 * 32 };
    static const struct ranges good[] = {
        {0, T, 4096, R},
        {AREA - T, T, 0, R},
        {0, T, AREA - R, R},
    };
    static const struct ranges bad[] = {
        {AREA - T + 4, T, 0, R},          /* ends beyond */
        {AREA, T, 0, R},                  /* begins at the end */
        {UINT64_MAX - 3, T, 0, R},        /* wraps around */
        {0, UINT64_MAX - 3, 4096, R},     /* so does its length */
        {2, T, 4096, R},                  /* unaligned */
        {0, T - 1, 4096, R},              /* no whole number of tokens */
        {0, 0, 4096, R},                  /* none */
        {0, 4 * ((512 << 10) + 1), 0, R}, /* too many */
        {0, T, AREA - R + 8, R},
        {0, T, 4096 + 4, R},
        {0, T, 4096, R - 1},
        {0, T, 4096, 0},
        {0, T, 4096, 32}, /* fewer rows than blocks are asked for */
        {0, T, 4096, UINT64_MAX - 31},
        {0, 8, 4096, 32 * 100}, /* more rows than tokens */
    };
    struct rig rig;
    struct raw raw;
    rig_init(&rig);
    rig_start(&rig);
    raw_open(&raw, &rig, true);
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(match_error(&raw, &good[i]), 0);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        int err = match_error(&raw, &bad[i]);
        if (err != -KVD_E_BAD_REQUEST) {
            fail_msg("range %zu: %d", i, err);
        }
    }
    assert_int_equal(match_error(&raw, &good[0]), 0); /* the connection goes on */
    assert_int_equal(rig_logged(&rig, ": closed: "), 0);
    raw_close(&raw);
    rig_fini(&rig);
}

static int load_error(struct raw *raw, uint32_t first, uint32_t n, uint64_t at, uint64_t bytes,
                      uint32_t deadline_ms)
{
    Kvd__Wire__Range results = KVD__WIRE__RANGE__INIT;
    Kvd__Wire__LoadRequest load = KVD__WIRE__LOAD_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    results.offset = at;
    results.bytes = bytes;
    load.lease = 12345;
    load.first_block = first;
    load.n_blocks = n;
    load.results = bytes ? &results : NULL;
    load.deadline_ms = deadline_ms;
    req.id = 11;
    req.body_case = KVD__WIRE__REQUEST__BODY_LOAD;
    req.load = &load;
    raw_send(raw->fd, &req);
    return raw_receive_error(raw->fd);
}

static void test_loads_of_nothing(void **state)
{
    (void)state;
    struct rig rig;
    struct raw raw;
    rig_init(&rig);
    rig_start(&rig);
    raw_open(&raw, &rig, true);
    assert_int_equal(load_error(&raw, 0, 2, 0, 64, 1000), -KVD_E_STALE); /* no such lease */
    assert_int_equal(load_error(&raw, 0, 2, 0, 0, 1000), -KVD_E_BAD_REQUEST);
    assert_int_equal(load_error(&raw, 0, 3, 0, 64, 1000), -KVD_E_BAD_REQUEST);
    assert_int_equal(load_error(&raw, UINT32_MAX, 2, 0, 64, 1000), -KVD_E_BAD_REQUEST);
    assert_int_equal(load_error(&raw, 0, 2, 0, 64, 0), -KVD_E_BAD_REQUEST);
    assert_int_equal(load_error(&raw, 0, 2, 0, 64, UINT32_MAX), -KVD_E_BAD_REQUEST);
    assert_int_equal(load_error(&raw, 0, 2, KVD_WIRE_REQUEST_AREA_BYTES, 64, 1000),
                     -KVD_E_BAD_REQUEST);
    raw_close(&raw);
    rig_fini(&rig);
}

static void test_requests_without_sense(void **state)
{
    (void)state;
    struct rig rig;
    struct raw raw;
    rig_init(&rig);
    rig_start(&rig);
    raw_open(&raw, &rig, true);
    /* no body; bodies without their parts */
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    Kvd__Wire__SpaceOpenRequest open = KVD__WIRE__SPACE_OPEN_REQUEST__INIT;
    Kvd__Wire__MatchRequest match = KVD__WIRE__MATCH_REQUEST__INIT;
    Kvd__Wire__PutBeginRequest put = KVD__WIRE__PUT_BEGIN_REQUEST__INIT;
    Kvd__Wire__TouchRequest touch = KVD__WIRE__TOUCH_REQUEST__INIT;
    req.id = 1;
    raw_send(raw.fd, &req);
    assert_int_equal(raw_receive_error(raw.fd), -KVD_E_BAD_REQUEST);
    req.body_case = KVD__WIRE__REQUEST__BODY_SPACE_OPEN;
    req.space_open = &open;
    raw_send(raw.fd, &req);
    assert_int_equal(raw_receive_error(raw.fd), -KVD_E_BAD_REQUEST);
    req.body_case = KVD__WIRE__REQUEST__BODY_MATCH;
    req.match = &match;
    raw_send(raw.fd, &req);
    assert_int_equal(raw_receive_error(raw.fd), -KVD_E_BAD_REQUEST);
    req.body_case = KVD__WIRE__REQUEST__BODY_PUT_BEGIN;
    req.put_begin = &put;
    raw_send(raw.fd, &req);
    assert_int_equal(raw_receive_error(raw.fd), -KVD_E_BAD_REQUEST);
    req.body_case = KVD__WIRE__REQUEST__BODY_TOUCH;
    req.touch = &touch;
    raw_send(raw.fd, &req);
    assert_int_equal(raw_receive_error(raw.fd), -KVD_E_BAD_REQUEST);
    raw_close(&raw);
    rig_fini(&rig);
}

/* ---- descriptors */

/* How many descriptors of this process, in which the daemon runs, are the same socket as fd. */
static unsigned same_socket(int fd)
{
    struct stat want;
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    assert_int_equal(fstat(fd, &want), 0);
    for (const struct dirent *e = readdir(d); e; e = readdir(d)) {
        struct stat st;
        n += fstatat(dirfd(d), e->d_name, &st, 0) == 0 && st.st_ino == want.st_ino &&
             st.st_dev == want.st_dev;
    }
    (void)closedir(d);
    return n;
}

static void test_descriptors_are_closed(void **state)
{
    (void)state;
    struct rig rig;
    struct raw raw;
    uint8_t buf[64];
    Kvd__Wire__Request req;
    Kvd__Wire__PingRequest body;
    union {
        char buf[CMSG_SPACE(sizeof(int) * 100)];
        struct cmsghdr align;
    } control = {0};
    rig_init(&rig);
    rig_start(&rig);
    raw_open(&raw, &rig, false);
    assert_int_equal(same_socket(raw.fd), 1);
    ping_request(&req, &body, 3);
    struct iovec iov = {.iov_base = buf, .iov_len = kvd__wire__request__pack(&req, buf)};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.buf,
                         .msg_controllen = sizeof(control.buf)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * 100);
    for (int i = 0; i < 100; i++) {
        memcpy(CMSG_DATA(c) + i * sizeof(int), &raw.fd, sizeof(int));
    }
    assert_int_equal(sendmsg(raw.fd, &msg, MSG_NOSIGNAL), iov.iov_len);
    assert_int_equal(raw_receive_error(raw.fd), 0);
    assert_int_equal(same_socket(raw.fd), 1);
    raw_close(&raw);
    rig_fini(&rig);
}

/* ---- silence */

/* One client that never reads, one that never speaks: both are cut off, and others don't notice. */
static void r_clients_that_never_read_or_speak(void **state)
{
    (void)state;
    struct rig rig;
    struct raw stuck;
    rig_init(&rig);
    rig_start(&rig);
    struct kvd_client *c = rig_client(&rig);
    int silent = raw_socket(rig.socket);
    raw_open(&stuck, &rig, false);
    Kvd__Wire__Request req;
    Kvd__Wire__PingRequest body;
    uint8_t buf[64];
    ping_request(&req, &body, 9);
    size_t n = kvd__wire__request__pack(&req, buf);
    unsigned sent = 0;
    uint64_t until = kvd_mono_ns() + RIG_WAIT_MS * (uint64_t)KVD_NS_PER_MS;
    struct pollfd pfd = {.fd = stuck.fd, .events = POLLOUT};
    /* fills its socket, the daemon's, and the queue; then waits to be cut off */
    while (!(pfd.revents & POLLHUP) && kvd_mono_ns() < until) {
        while (send(stuck.fd, buf, n, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)n) {
            sent++;
        }
        assert_int_equal(kvd_ping(c), 0);
        (void)poll(&pfd, 1, 50);
    }
    assert_true(pfd.revents & POLLHUP);
    assert_true(sent > 100);
    assert_int_equal(rig_logged(&rig, "does not read its replies"), 1);
    raw_expect_closed(silent);
    assert_int_equal(rig_logged(&rig, "did not say hello in time"), 1);
    assert_int_equal(kvd_ping(c), 0);
    (void)close(silent);
    raw_close(&stuck);
    kvd_client_close(&c);
    rig_fini(&rig);
}

static void test_connections_without_hello_are_bounded(void **state)
{
    (void)state;
    enum { MANY = 80 };
    struct rig rig;
    int fds[MANY];
    unsigned closed = 0;
    rig_init(&rig);
    rig_start(&rig);
    for (int i = 0; i < MANY; i++) {
        fds[i] = raw_socket(rig.socket);
    }
    raw_expect_closed(fds[MANY - 1]);
    for (int i = 0; i < MANY; i++) {
        struct pollfd pfd = {.fd = fds[i], .events = POLLIN};
        closed += poll(&pfd, 1, 0) == 1 && pfd.revents & POLLHUP;
        (void)close(fds[i]);
    }
    assert_int_equal(closed, MANY - 64);
    /* once the door has noticed that they left, there is room again */
    int err = -1;
    for (int i = 0; i < 1000 && err; i++) {
        int fd = raw_socket(rig.socket);
        raw_hello(fd, 1);
        Kvd__Wire__Reply *r = raw_receive(fd, NULL, NULL);
        err = r ? (int)r->error : -1;
        if (r) {
            kvd__wire__reply__free_unpacked(r, NULL);
        }
        (void)close(fd);
    }
    assert_int_equal(err, 0);
    rig_fini(&rig);
}

/* ---- leaving */

/* A socket that is closed, by a process that lives on, with a lease and a begun put. */
static void r_client_that_hangs_up(void **state)
{
    (void)state;
    struct rig rig;
    struct raw raw;
    rig_init(&rig);
    rig_start(&rig);
    struct kvd_client *c = rig_client(&rig);
    struct kvd_space *s = rig_space(c);
    uint32_t tokens[2 * RIG_BLOCK_TOKENS + 1] = {0}; /* what an empty request area asks for */
    const uint8_t block[RIG_BLOCK_BYTES] = {1};
    const void *src[2] = {block, block};
    struct kvd_prompt p = rig_prompt(tokens, 2 * RIG_BLOCK_TOKENS + 1);
    assert_int_equal(kvd_put(s, &p, 0, 2, src, NULL), 0);
    raw_open(&raw, &rig, true);
    assert_int_equal(
        match_error(&raw, &(struct ranges){0, 4 * (2 * RIG_BLOCK_TOKENS + 1), 4096, 64}), 0);
    assert_int_equal(rig_status(c, "leases"), 1);
    assert_true(rig_status(c, "leased_bytes") > 0);
    raw_close(&raw);
    uint64_t until = kvd_mono_ns() + RIG_WAIT_MS * (uint64_t)KVD_NS_PER_MS;
    while (rig_status(c, "clients") != 1 && kvd_mono_ns() < until) {
        assert_int_equal(kvd_ping(c), 0);
    }
    assert_int_equal(rig_status(c, "clients"), 1);
    assert_int_equal(rig_status(c, "leases"), 0);
    assert_int_equal(rig_status(c, "leased_bytes"), 0);
    kvd_client_close(&c);
    rig_fini(&rig);
}

/* ---- death */

/* The client's process, started before the daemon has threads: connects when told to, holds a
 * lease, and leaves a child behind that holds the socket too. */
static void victim(struct rig *rig, int go, int ready)
{
    char c;
    struct raw raw;
    if (read(go, &c, 1) != 1) {
        _exit(1);
    }
    raw_open(&raw, rig, true);
    int err = match_error(&raw, &(struct ranges){0, 4 * (2 * RIG_BLOCK_TOKENS + 1), 4096, 64});
    pid_t child = fork();
    if (child == 0) {
        (void)pause();
        _exit(0);
    }
    if (err || child < 0 || write(ready, &child, sizeof(child)) != sizeof(child)) {
        _exit(1);
    }
    (void)pause();
    _exit(0);
}

static void r_client_killed_while_its_child_holds_the_socket(void **state)
{
    (void)state;
    struct rig rig;
    int go[2];
    int ready[2];
    pid_t grandchild = -1;
    rig_init(&rig);
    assert_int_equal(pipe2(go, 0), 0);
    assert_int_equal(pipe2(ready, 0), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        victim(&rig, go[0], ready[1]);
    }
    rig_start(&rig);
    struct kvd_client *c = rig_client(&rig);
    assert_int_equal(write(go[1], "g", 1), 1);
    assert_int_equal(read(ready[0], &grandchild, sizeof(grandchild)), sizeof(grandchild));
    assert_int_equal(rig_status(c, "clients"), 2);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    uint64_t until = kvd_mono_ns() + RIG_WAIT_MS * (uint64_t)KVD_NS_PER_MS;
    while (rig_status(c, "clients") != 1 && kvd_mono_ns() < until) {
        assert_int_equal(kvd_ping(c), 0);
    }
    assert_int_equal(rig_status(c, "clients"), 1);
    assert_int_equal(kill(grandchild, 0), 0); /* and the socket is still open in it */
    assert_int_equal(kill(grandchild, SIGKILL), 0);
    kvd_client_close(&c);
    for (int i = 0; i < 2; i++) {
        (void)close(go[i]);
        (void)close(ready[i]);
    }
    rig_fini(&rig);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_garbage_costs_its_sender),
    cmocka_unit_test(test_hello),
    cmocka_unit_test(test_too_many_clients),
    cmocka_unit_test(test_ranges),
    cmocka_unit_test(test_loads_of_nothing),
    cmocka_unit_test(test_requests_without_sense),
    cmocka_unit_test(test_descriptors_are_closed),
    cmocka_unit_test(r_clients_that_never_read_or_speak),
    cmocka_unit_test(test_connections_without_hello_are_bounded),
    cmocka_unit_test(r_client_that_hangs_up),
    cmocka_unit_test(r_client_killed_while_its_child_holds_the_socket),
};

KVD_TEST_MAIN(tests)
