/*
 * Clients that end, or stop, at every step of a load and a put: killed, their connection closed,
 * killed while a forked child holds their socket, stopped and going on much later. A real daemon
 * and real client processes (client_steps.c), all steps at once. Afterwards nothing is left of
 * them, nothing half-put was ever seen, and nobody else waited.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client_steps.h"
#include "kvd_test.h"
#include "proc.h"
#include "proto/base/cleanup.h"
#include "proto/base/clock.h"

static const char *const steps[] = {
    "connected",    "hello_sent",      "greeted",     "space_opened", "match_sent", "matched",
    "load_sent",    "mid_copy",        "loaded",      "placed",       "released",   "put_begun",
    "staging_half", "staging_written", "commit_sent", "committed",
};
enum { STEPS = sizeof(steps) / sizeof(steps[0]), WAIT_S = 60, CHURN_BLOCKS = 256, CHURNS = 12 };

static uint32_t step_at(const char *name)
{
    uint32_t i = 0;
    while (strcmp(steps[i], name) != 0) {
        i++;
    }
    return i;
}

/* ---- daemon, and a client that looks on ---- */

struct node {
    char folder[256];
    char socket[300];
    struct proc daemon;
    struct kvd_client *watcher;
    struct kvd_space *space;
    int64_t staging; /* the watcher's own */
    uint32_t churned;
};

static int64_t status(struct node *n, const char *name)
{
    KVD_AUTOFREE char *json = NULL;
    char key[64];
    assert_int_equal(kvd_report(n->watcher, "status", "", "", &json), 0);
    (void)snprintf(key, sizeof(key), "\"%s\":", name);
    const char *at = strstr(json, key);
    assert_non_null(at);
    return strtoll(at + strlen(key), NULL, 10);
}

static void wait_for(struct node *n, const char *name, int64_t value)
{
    uint64_t until = kvd_mono_ns() + WAIT_S * KVD_NS_PER_S;
    int64_t is;
    while ((is = status(n, name)) != value) {
        if (kvd_mono_ns() > until) {
            fail_msg("%s is %lld, not %lld", name, (long long)is, (long long)value);
        }
    }
}

static void node_open(struct node *n)
{
    char store[300];
    char pool[300];
    struct kvd_client_options o;
    struct kvd_space_config config = steps_space();
    memset(n, 0, sizeof(*n));
    proc_folder(n->folder, sizeof(n->folder));
    (void)snprintf(n->socket, sizeof(n->socket), "%s/s", n->folder);
    (void)snprintf(store, sizeof(store), "%s/store", n->folder);
    (void)snprintf(pool, sizeof(pool), "%s/pool", n->folder);
    const char *const argv[] = {proc_program("cachesvc/kvdepotd"),
                                "--dir",
                                store,
                                "--socket",
                                n->socket,
                                "--dram.path",
                                pool,
                                "--dram.cap",
                                "32MiB",
                                "--nvme.cap",
                                "64MiB",
                                "--client.copy-lease",
                                "1500ms", /* short, but no busy machine takes so long in a step */
                                "--client.put-pending",
                                "300ms",
                                NULL};
    proc_start(&n->daemon, argv);
    proc_expect(&n->daemon, "ready");
    kvd_client_options_init(&o);
    o.socket_path = n->socket;
    o.program = "watcher";
    o.connect_ms = o.match_ms = o.io_ms = 20000;
    assert_int_equal(kvd_client_open(&o, &n->watcher), 0);
    assert_int_equal(kvd_space_open(n->watcher, &config, &n->space), 0);
    n->staging = status(n, "staging_bytes");
    assert_true(n->staging > 0);
}

static void node_close(struct node *n)
{
    kvd_client_close(&n->watcher);
    assert_int_equal(proc_end(&n->daemon, SIGTERM), 0);
    proc_remove_folder(n->folder);
}

/* ---- the watcher's puts and loads ---- */

struct blocks {
    uint32_t tokens[STEPS_TOKENS];
    struct kvd_prompt prompt;
    uint8_t bytes[STEPS_BLOCKS][STEPS_BLOCK_BYTES];
};

static void blocks_init(struct blocks *b, uint32_t seed)
{
    steps_tokens(seed, b->tokens);
    b->prompt =
        (struct kvd_prompt){.scenario = "chat", .tokens = b->tokens, .n_tokens = STEPS_TOKENS};
    for (uint32_t i = 0; i < STEPS_BLOCKS; i++) {
        steps_payload(seed, i, b->bytes[i]);
    }
}

/* Puts blocks [first, first + n); how many are stored then. */
static uint32_t put(struct node *n, uint32_t seed, uint32_t first, uint32_t count)
{
    static struct blocks b;
    const void *src[STEPS_BLOCKS];
    struct kvd_put_result r;
    blocks_init(&b, seed);
    for (uint32_t i = 0; i < count; i++) {
        src[i] = b.bytes[first + i];
    }
    assert_int_equal(kvd_put(n->space, &b.prompt, first, count, src, &r), 0);
    return r.committed + r.stored_already;
}

/* Matches and loads; every byte of what is found must be right. How many blocks were found. */
static uint32_t hit(struct node *n, uint32_t seed)
{
    static struct blocks b;
    static uint8_t memory[STEPS_BLOCKS][STEPS_BLOCK_BYTES];
    void *dest[STEPS_BLOCKS];
    struct kvd_match_result m;
    uint32_t good = 0;
    blocks_init(&b, seed);
    for (uint32_t i = 0; i < STEPS_BLOCKS; i++) {
        dest[i] = memory[i];
    }
    assert_int_equal(kvd_match(n->space, &b.prompt, &m), 0);
    if (m.hit_blocks > 0) {
        assert_int_equal(kvd_load(m.lease, 0, m.hit_blocks, dest, &good), 0);
        assert_int_equal(good, m.hit_blocks);
        assert_memory_equal(memory, b.bytes, good * (size_t)STEPS_BLOCK_BYTES);
        kvd_lease_release(&m.lease);
    }
    return good;
}

/* More than the pool holds: what isn't pinned is gone from it. */
static void churn(struct node *n)
{
    static uint8_t block[STEPS_BLOCK_BYTES];
    static uint32_t tokens[CHURN_BLOCKS * STEPS_BLOCK_TOKENS];
    static const void *src[CHURN_BLOCKS];
    for (uint32_t i = 0; i < CHURN_BLOCKS; i++) {
        src[i] = block;
    }
    for (uint32_t i = 0; i < CHURNS; i++) {
        for (uint32_t t = 0; t < CHURN_BLOCKS * STEPS_BLOCK_TOKENS; t++) {
            tokens[t] = 900000 + n->churned * 7919 + t;
        }
        n->churned++;
        struct kvd_prompt p = {
            .scenario = "batch", .tokens = tokens, .n_tokens = CHURN_BLOCKS * STEPS_BLOCK_TOKENS};
        assert_int_equal(kvd_put(n->space, &p, 0, CHURN_BLOCKS, src, NULL), 0);
    }
}

/* ---- the clients ---- */

struct stepper {
    struct proc proc;
    int in;
    pid_t child;
};

struct crowd {
    struct node node;
    uint32_t seeds; /* of the first one */
    struct stepper who[STEPS];
};

static void stepper_start(struct node *n, struct stepper *s, uint32_t seed, const char *step)
{
    char number[16];
    char expect[64];
    int in[2];
    (void)snprintf(number, sizeof(number), "%u", seed);
    (void)snprintf(expect, sizeof(expect), "at %s\n", step);
    const char *const argv[] = {proc_program("tests/scenario/client_steps"), n->socket, number,
                                step, NULL};
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    int saved = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    assert_int_equal(dup2(in[0], STDIN_FILENO), STDIN_FILENO);
    proc_start(&s->proc, argv);
    if (saved >= 0) {
        (void)dup2(saved, STDIN_FILENO);
        (void)close(saved);
    } else {
        (void)close(STDIN_FILENO);
    }
    (void)close(in[0]);
    s->in = in[1];
    proc_expect(&s->proc, expect);
}

static void tell(struct stepper *s, const char *command, const char *expect)
{
    assert_int_equal(write(s->in, command, strlen(command)), strlen(command));
    proc_expect(&s->proc, expect);
}

static void stepper_end(struct stepper *s, int sig, int want)
{
    if (sig == 0) {
        kvd_close_fd(&s->in);
    }
    assert_int_equal(proc_end(&s->proc, sig), want);
    kvd_close_fd(&s->in);
}

static void crowd_open(struct crowd *c, uint32_t seeds)
{
    memset(c, 0, sizeof(*c));
    node_open(&c->node);
    c->seeds = seeds;
    for (uint32_t i = 0; i < STEPS; i++) {
        assert_int_equal(put(&c->node, seeds + i, 0, STEPS_OLD), STEPS_OLD);
    }
    for (uint32_t i = 0; i < STEPS; i++) {
        stepper_start(&c->node, &c->who[i], seeds + i, steps[i]);
    }
}

/* Of those who have left, nothing is left. */
static void assert_nothing_left(struct node *n)
{
    wait_for(n, "clients", 1);
    assert_int_equal(status(n, "leases"), 0);
    wait_for(n, "begun", 0); /* a commit that was sent is finished */
    assert_int_equal(status(n, "leased_bytes"), 0);
    assert_int_equal(status(n, "placed_leases"), 0);
    wait_for(n, "staging_bytes", n->staging);
    wait_for(n, "pinned_bytes", 0); /* when what is queued is written below */
}

/* What each of those who ended at its step has put: all of it, or nothing. */
static void assert_whole_puts(struct crowd *c)
{
    for (uint32_t i = 0; i < STEPS; i++) {
        uint32_t found = hit(&c->node, c->seeds + i);
        if (i == step_at("commit_sent")) {
            assert_true(found == STEPS_OLD || found == STEPS_BLOCKS);
        } else {
            assert_int_equal(found, i < step_at("commit_sent") ? STEPS_OLD : STEPS_BLOCKS);
        }
        /* and nobody stands in the way of another put */
        assert_int_equal(put(&c->node, c->seeds + i, STEPS_OLD, STEPS_NEW), STEPS_NEW);
        assert_int_equal(hit(&c->node, c->seeds + i), STEPS_BLOCKS);
    }
}

static void r_client_killed_at_every_step(void **state)
{
    (void)state;
    static struct crowd c;
    crowd_open(&c, 100);
    for (uint32_t i = 0; i < STEPS; i++) {
        stepper_end(&c.who[i], SIGKILL, 128 + SIGKILL);
    }
    assert_nothing_left(&c.node);
    assert_whole_puts(&c);
    node_close(&c.node);
}

static void r_client_closes_at_every_step(void **state)
{
    (void)state;
    static struct crowd c;
    crowd_open(&c, 200);
    for (uint32_t i = 0; i < STEPS; i++) {
        if (i != step_at("mid_copy")) { /* which can't close: it is in the copy */
            tell(&c.who[i], "close\n", "closed");
        } else {
            stepper_end(&c.who[i], SIGKILL, 128 + SIGKILL);
        }
    }
    assert_nothing_left(&c.node);
    assert_whole_puts(&c);
    for (uint32_t i = 0; i < STEPS; i++) {
        if (i != step_at("mid_copy")) {
            stepper_end(&c.who[i], 0, 0); /* they lived on until now */
        }
    }
    node_close(&c.node);
}

static void r_child_holds_the_socket_at_every_step(void **state)
{
    (void)state;
    static struct crowd c;
    crowd_open(&c, 300);
    for (uint32_t i = 0; i < STEPS; i++) {
        tell(&c.who[i], "fork\n", ";");
        c.who[i].child = (pid_t)strtol(strstr(c.who[i].proc.output, "forked ") + 7, NULL, 10);
        assert_true(c.who[i].child > 1);
        stepper_end(&c.who[i], SIGKILL, 128 + SIGKILL);
    }
    assert_nothing_left(&c.node);
    assert_whole_puts(&c);
    for (uint32_t i = 0; i < STEPS; i++) {
        assert_int_equal(kill(c.who[i].child, SIGKILL), 0); /* there it was, with the socket */
    }
    node_close(&c.node);
}

/* ---- stopped ---- */

/* Whoever hangs in a put keeps its blocks from others for a time only. */
static void put_what_the_stopped_began(struct crowd *c)
{
    for (uint32_t i = step_at("put_begun"); i < STEPS; i++) {
        uint64_t until = kvd_mono_ns() + WAIT_S * KVD_NS_PER_S;
        while (put(&c->node, c->seeds + i, STEPS_OLD, STEPS_NEW) < STEPS_NEW) {
            assert_true(kvd_mono_ns() < until);
        }
        assert_int_equal(hit(&c->node, c->seeds + i), STEPS_BLOCKS);
    }
}

static void assert_harmless(struct crowd *c, uint32_t i)
{
    int load;
    unsigned good;
    int put_status;
    unsigned committed;
    int check;
    unsigned wrong;
    const char *said = strstr(c->who[i].proc.output, "done: ");
    if (sscanf(said, "done: load %d %u, put %d %u, check %d, wrong %u", &load, &good, &put_status,
               &committed, &check, &wrong) != 6) {
        fail_msg("%s: %s", steps[i], said);
    }
    if (wrong || check) {
        fail_msg("%s: %s", steps[i], said);
    }
    if (i == step_at("mid_copy")) {
        assert_int_equal(load, 0);
        assert_int_equal(good, 1); /* what it had copied; then it saw another generation */
    }
    if (i == step_at("match_sent") || i == step_at("matched")) {
        assert_int_equal(load, KVD_STALE);
    }
    if (i == step_at("placed")) {
        assert_int_equal(good, STEPS_OLD);
    }
}

static void r_client_stopped_at_every_step(void **state)
{
    (void)state;
    static struct crowd c;
    crowd_open(&c, 400);
    for (uint32_t i = 0; i < STEPS; i++) {
        assert_int_equal(kill(c.who[i].proc.pid, SIGSTOP), 0);
    }
    /* others are served, at once */
    assert_int_equal(put(&c.node, 499, 0, STEPS_BLOCKS), STEPS_BLOCKS);
    assert_int_equal(hit(&c.node, 499), STEPS_BLOCKS);
    put_what_the_stopped_began(&c);
    /* leases end; but for the one whose blocks are in use in place, which is told of */
    wait_for(&c.node, "overdue", 1);
    wait_for(&c.node, "leased_bytes", STEPS_OLD * (STEPS_BLOCK_BYTES + 4096));
    churn(&c.node);
    for (uint32_t i = 0; i < STEPS; i++) {
        assert_int_equal(kill(c.who[i].proc.pid, SIGCONT), 0);
        tell(&c.who[i], "go\n", ";");
    }
    for (uint32_t i = step_at("greeted"); i < STEPS; i++) {
        stepper_end(&c.who[i], 0, 0);
        assert_harmless(&c, i);
        assert_int_equal(hit(&c.node, c.seeds + i), STEPS_BLOCKS);
    }
    stepper_end(&c.who[step_at("connected")], 0, 0);
    stepper_end(&c.who[step_at("hello_sent")], 0, 0);
    assert_nothing_left(&c.node);
    node_close(&c.node);
}

/* ---- a daemon that dies under blocks in use in place ---- */

static void r_daemon_killed_under_a_place(void **state)
{
    (void)state;
    static struct node n;
    char store[300];
    char pool[300];
    const void *at[STEPS_OLD];
    static uint8_t want[STEPS_BLOCK_BYTES];
    static struct blocks b;
    struct kvd_match_result m;
    uint32_t good = 0;
    node_open(&n);
    assert_int_equal(put(&n, 1, 0, STEPS_OLD), STEPS_OLD);
    blocks_init(&b, 1);
    assert_int_equal(kvd_match(n.space, &b.prompt, &m), 0);
    assert_int_equal(kvd_place(m.lease, 0, STEPS_OLD, at, &good), 0);
    assert_int_equal(good, STEPS_OLD);
    assert_int_equal(proc_end(&n.daemon, SIGKILL), 128 + SIGKILL);
    steps_payload(1, 0, want);
    assert_memory_equal(at[0], want, STEPS_BLOCK_BYTES); /* the mapping stays, and its bytes */
    assert_int_equal(kvd_place_check(m.lease), 0);
    (void)snprintf(store, sizeof(store), "%s/store", n.folder);
    (void)snprintf(pool, sizeof(pool), "%s/pool", n.folder);
    const char *const argv[] = {proc_program("cachesvc/kvdepotd"),
                                "--dir",
                                store,
                                "--socket",
                                n.socket,
                                "--dram.path",
                                pool,
                                "--dram.cap",
                                "32MiB",
                                "--nvme.cap",
                                "64MiB",
                                NULL};
    proc_start(&n.daemon, argv);
    proc_expect(&n.daemon, "ready");
    assert_int_equal(kvd_place_check(m.lease), 0);
    uint64_t until = kvd_mono_ns() + WAIT_S * KVD_NS_PER_S;
    while (kvd_ping(n.watcher) != 0) { /* the same client, connected again */
        assert_true(kvd_mono_ns() < until);
    }
    churn(&n);
    assert_int_equal(kvd_place_check(m.lease), KVD_STALE);
    kvd_lease_release(&m.lease);
    node_close(&n);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(r_client_killed_at_every_step),
    cmocka_unit_test(r_client_closes_at_every_step),
    cmocka_unit_test(r_child_holds_the_socket_at_every_step),
    cmocka_unit_test(r_client_stopped_at_every_step),
    cmocka_unit_test(r_daemon_killed_under_a_place),
};

KVD_TEST_MAIN(tests)
