/*
 * A client that goes through a put and a load step by step, and stops at the one it is told; built
 * for test_clients.c, not installed.
 *
 *     client_steps SOCKET SEED STEP
 *
 * At the step it says "at STEP" and waits for a line on its standard input:
 *     close   closes its connection, says "closed" and waits for the end of the input
 *     fork    leaves a child behind that holds the connection's descriptor, says "forked PID"
 *     go      goes on to the end of the sequence, and says what came of it: "done: load STATUS
 *             GOOD, put STATUS COMMITTED, check STATUS, wrong N", where wrong counts blocks that
 *             were called good and are not the bytes that were put
 * The end of the input ends it.
 *
 * Its prompt is SEED's: blocks [0, STEPS_OLD) were put by the test before, and are loaded; blocks
 * [STEPS_OLD, STEPS_BLOCKS) are put here.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client_steps.h"
#include "proto/wire/wire.h"

struct steps {
    const char *socket;
    const char *stop_at;
    uint32_t seed;
    struct kvd_client *client;
    struct kvd_space *space;
    uint32_t tokens[STEPS_TOKENS];
    struct kvd_prompt prompt;
    struct kvd_lease *lease;
    struct kvd_put *put;
    uint8_t *memory; /* of the blocks that are loaded */
    void *dest[STEPS_OLD];
    const void *placed[STEPS_OLD];
    int load;
    uint32_t good;
    uint32_t n_placed;
    int put_status;
    uint32_t committed;
    int check;
    uint32_t wrong;
};

/* For the copy that stops in its middle: the handler has nothing else to go by. */
static struct steps *the_steps;

static void die(const char *what)
{
    (void)fprintf(stderr, "client_steps: %s\n", what);
    exit(1);
}

static void say(const char *text)
{
    (void)printf("%s\n", text);
    (void)fflush(stdout);
}

/* ---- commands ---- */

static void wait_for_end(void)
{
    char c;
    while (read(STDIN_FILENO, &c, 1) == 1) {
    }
    _exit(0);
}

static void leave_a_child(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        (void)close(STDIN_FILENO); /* only signals end it */
        (void)close(STDOUT_FILENO);
        (void)close(STDERR_FILENO);
        for (;;) {
            (void)pause();
        }
    }
    (void)printf("forked %d;\n", (int)pid);
    (void)fflush(stdout);
}

static void obey(struct steps *s)
{
    char line[64];
    size_t n = 0;
    for (;;) {
        if (read(STDIN_FILENO, line + n, 1) != 1) {
            _exit(0);
        }
        if (line[n] != '\n') {
            n += n < sizeof(line) - 2;
            continue;
        }
        line[n] = 0;
        n = 0;
        if (strcmp(line, "go") == 0) {
            return;
        }
        if (strcmp(line, "fork") == 0) {
            leave_a_child();
        } else if (strcmp(line, "close") == 0) {
            kvd_client_close(&s->client);
            say("closed");
            wait_for_end();
        }
    }
}

/* ThreadSanitizer asks this where it is built in. The step mid_copy goes on inside a signal
 * handler, of an access that this program makes on purpose, while it holds no lock. */
const char *__tsan_default_options(void);
__attribute__((visibility("default"), used)) const char *__tsan_default_options(void)
{
    return "report_signal_unsafe=0";
}

static void at(struct steps *s, const char *step)
{
    if (strcmp(s->stop_at, step) == 0) {
        (void)printf("at %s\n", step);
        (void)fflush(stdout);
        obey(s);
    }
}

/* ---- hello without reading its answer: no library does that ---- */

static void hello_only(struct steps *s)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    uint8_t buf[256];
    Kvd__Wire__HelloRequest hello = KVD__WIRE__HELLO_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    (void)snprintf(addr.sun_path, sizeof(addr.sun_path), "%.100s", s->socket);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&addr, sizeof(addr))) {
        die("connecting failed");
    }
    if (strcmp(s->stop_at, "connected") != 0) {
        hello.version = KVD_WIRE_VERSION;
        hello.min_version = KVD_WIRE_VERSION;
        hello.program = "client_steps";
        req.id = 1;
        req.body_case = KVD__WIRE__REQUEST__BODY_HELLO;
        req.hello = &hello;
        size_t n = kvd__wire__request__pack(&req, buf);
        if (send(fd, buf, n, MSG_NOSIGNAL) != (ssize_t)n) {
            die("sending failed");
        }
    }
    (void)printf("at %s\n", s->stop_at);
    (void)fflush(stdout);
    char c;
    while (read(STDIN_FILENO, &c, 1) == 1) {
        if (c == 'f') {
            leave_a_child();
        } else if (c == 'c') {
            (void)close(fd);
            say("closed");
        } else if (c == 'g') {
            say("done: nothing;");
        }
        while (c != '\n' && read(STDIN_FILENO, &c, 1) == 1) {
        }
    }
    _exit(0);
}

/* ---- load ---- */

/* The copy has come to a page that can't be written. */
static void trapped(int sig, siginfo_t *info, void *context)
{
    struct steps *s = the_steps;
    const uint8_t *where = info->si_addr;
    (void)sig;
    (void)context;
    if (where < s->memory || where >= s->memory + STEPS_OLD * (size_t)STEPS_BLOCK_BYTES) {
        _exit(98);
    }
    at(s, "mid_copy"); /* in a signal handler, but of an access that this program made on purpose */
    if (mprotect(s->memory, STEPS_OLD * (size_t)STEPS_BLOCK_BYTES, PROT_READ | PROT_WRITE)) {
        _exit(97);
    }
}

static void memory_open(struct steps *s)
{
    const size_t bytes = STEPS_OLD * (size_t)STEPS_BLOCK_BYTES;
    s->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s->memory == MAP_FAILED) {
        die("no memory");
    }
    for (uint32_t i = 0; i < STEPS_OLD; i++) {
        s->dest[i] = s->memory + i * (size_t)STEPS_BLOCK_BYTES;
    }
    if (strcmp(s->stop_at, "mid_copy") == 0) {
        struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO};
        const size_t from = STEPS_BLOCK_BYTES + 4096; /* the second page of block 1 */
        if (sigaction(SIGSEGV, &action, NULL) ||
            mprotect(s->memory + from, bytes - from, PROT_NONE)) {
            die("no trap");
        }
    }
}

static int drain_one(struct steps *s, struct kvd_completion *done)
{
    for (int i = 0; i < 6000; i++) {
        struct pollfd pfd = {.fd = kvd_client_fd(s->client), .events = POLLIN};
        (void)poll(&pfd, 1, 100);
        if (kvd_drain(s->client, done, 1) == 1) {
            return done->status;
        }
    }
    die("a submission never completes");
    return 0;
}

static void match_step(struct steps *s)
{
    struct kvd_completion done;
    int err = kvd_submit_match(s->space, &s->prompt, NULL);
    at(s, "match_sent");
    err = err ? err : drain_one(s, &done);
    s->lease = err ? NULL : done.match.lease;
    s->load = err;
    at(s, "matched");
}

static void count_wrong(struct steps *s, const void *const *blocks, uint32_t n)
{
    static uint8_t want[STEPS_BLOCK_BYTES];
    for (uint32_t i = 0; i < n; i++) {
        steps_payload(s->seed, i, want);
        s->wrong += memcmp(blocks[i], want, STEPS_BLOCK_BYTES) != 0;
    }
}

static void load_step(struct steps *s)
{
    struct kvd_completion done;
    if (!s->lease) {
        return;
    }
    s->load = kvd_submit_load(s->lease, 0, STEPS_OLD, s->dest, NULL);
    at(s, "load_sent");
    if (!s->load) {
        s->load = drain_one(s, &done);
        s->good = s->load ? 0 : done.good;
    }
    count_wrong(s, (const void *const *)s->dest, s->good);
    at(s, "loaded");
}

static void place_step(struct steps *s)
{
    if (!s->lease || kvd_place(s->lease, 0, STEPS_OLD, s->placed, &s->n_placed)) {
        return;
    }
    at(s, "placed");
    uint32_t before = s->wrong;
    count_wrong(s, s->placed, s->n_placed);
    s->check = kvd_place_check(s->lease);
    s->wrong = s->check ? before : s->wrong; /* it was told: nothing of that counts */
}

/* ---- put ---- */

static void put_step(struct steps *s)
{
    struct kvd_put_result result = {0};
    struct kvd_completion done;
    s->put_status = kvd_put_begin(s->space, &s->prompt, STEPS_OLD, STEPS_NEW, &s->put, NULL);
    at(s, "put_begun");
    for (uint32_t i = 0; s->put && i < STEPS_NEW; i++) {
        static uint8_t payload[STEPS_BLOCK_BYTES];
        uint8_t *to = kvd_put_buffer(s->put, i);
        steps_payload(s->seed, STEPS_OLD + i, payload);
        if (to) {
            memcpy(to, payload, STEPS_BLOCK_BYTES / 2);
            if (i == STEPS_NEW - 1) {
                at(s, "staging_half");
            }
            memcpy(to, payload, STEPS_BLOCK_BYTES);
        }
    }
    at(s, "staging_written");
    if (s->put) {
        s->put_status = kvd_submit_put_commit(&s->put, NULL);
        at(s, "commit_sent");
        if (!s->put_status) {
            s->put_status = drain_one(s, &done);
            result = done.put;
        }
        s->committed = s->put_status ? 0 : result.committed;
    }
    at(s, "committed");
}

static void client_step(struct steps *s)
{
    struct kvd_client_options o;
    struct kvd_space_config config = steps_space();
    kvd_client_options_init(&o);
    o.socket_path = s->socket;
    o.program = "client_steps";
    o.connect_ms = o.match_ms = o.io_ms = 300000; /* it may be stopped for long */
    if (kvd_client_open(&o, &s->client) || !kvd_client_connected(s->client)) {
        die("not connected");
    }
    at(s, "greeted");
    if (kvd_space_open(s->client, &config, &s->space)) {
        die(kvd_client_message(s->client));
    }
    at(s, "space_opened");
}

int main(int argc, char **argv)
{
    static struct steps s;
    if (argc != 4) {
        die("SOCKET SEED STEP");
    }
    s.socket = argv[1];
    s.seed = (uint32_t)strtoul(argv[2], NULL, 10);
    s.stop_at = argv[3];
    the_steps = &s;
    if (strcmp(s.stop_at, "connected") == 0 || strcmp(s.stop_at, "hello_sent") == 0) {
        hello_only(&s);
    }
    memory_open(&s);
    steps_tokens(s.seed, s.tokens);
    s.prompt = (struct kvd_prompt){
        .scenario = "chat", .tokens = s.tokens, .n_tokens = STEPS_OLD * STEPS_BLOCK_TOKENS + 1};
    client_step(&s);
    match_step(&s);
    load_step(&s);
    place_step(&s);
    kvd_lease_release(&s.lease);
    at(&s, "released");
    s.prompt.n_tokens = STEPS_TOKENS;
    put_step(&s);
    (void)printf("done: load %d %u, put %d %u, check %d, wrong %u;\n", s.load, s.good, s.put_status,
                 s.committed, s.check, s.wrong);
    (void)fflush(stdout);
    wait_for_end();
}
