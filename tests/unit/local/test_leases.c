/*
 * Leases as a client has them: copies that are too slow for their lease, blocks in use where they
 * lie, a client that leaves while its reads hang, puts that never finish. The daemon runs in this
 * process; what lies in its pool is churned until every slot was given to somebody else.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fault_io.h"
#include "kvd_test.h"
#include "proto/base/clock.h"
#include "rig.h"

enum { BLOCKS = 4, N_TOKENS = BLOCKS * RIG_BLOCK_TOKENS + 1, CHURN_BLOCKS = 256, CHURNS = 12 };

struct node {
    struct rig rig;
    struct kvd_client *watcher; /* another client: sees status, and churns */
    struct kvd_space *watcher_space;
    uint32_t churned;
};

static void node_watch(struct node *n)
{
    n->watcher = rig_client(&n->rig);
    n->watcher_space = rig_space(n->watcher);
}

static void node_open(struct node *n)
{
    memset(n, 0, sizeof(*n));
    rig_init(&n->rig);
    /* short, but longer than a busy machine takes from a match to the load behind it */
    rig_set(&n->rig, "client.copy-lease", "700ms");
    rig_start(&n->rig);
    node_watch(n);
}

static void node_close(struct node *n)
{
    kvd_client_close(&n->watcher);
    rig_fini(&n->rig);
}

static void wait_for(struct node *n, const char *name, int64_t value)
{
    uint64_t until = kvd_mono_ns() + RIG_WAIT_MS * (uint64_t)KVD_NS_PER_MS;
    while (rig_status(n->watcher, name) != value) {
        if (kvd_mono_ns() > until) {
            fail_msg("%s is %lld, not %lld", name, (long long)rig_status(n->watcher, name),
                     (long long)value);
        }
    }
}

static void wait_for_log(struct node *n, const char *text)
{
    uint64_t until = kvd_mono_ns() + RIG_WAIT_MS * (uint64_t)KVD_NS_PER_MS;
    while (rig_logged(&n->rig, text) == 0) {
        assert_true(kvd_mono_ns() < until);
    }
}

/* More than the pool holds, so that what isn't pinned is gone from it. */
static void churn(struct node *n)
{
    for (uint32_t i = 0; i < CHURNS; i++) {
        (void)rig_put(n->watcher_space, 5000 + n->churned++, 0, CHURN_BLOCKS);
    }
}

static struct kvd_lease *match(struct kvd_space *s, uint32_t seed, uint32_t n)
{
    uint32_t tokens[CHURN_BLOCKS * RIG_BLOCK_TOKENS + 1];
    struct kvd_match_result m;
    rig_tokens(seed, n * RIG_BLOCK_TOKENS + 1, tokens);
    struct kvd_prompt p = rig_prompt(tokens, n * RIG_BLOCK_TOKENS + 1);
    assert_int_equal(kvd_match(s, &p, &m), 0);
    assert_int_equal(m.hit_blocks, n);
    return m.lease;
}

static bool is_right(uint32_t seed, uint32_t index, const void *bytes)
{
    uint8_t want[RIG_BLOCK_BYTES];
    rig_payload(seed, index, want);
    return memcmp(bytes, want, RIG_BLOCK_BYTES) == 0;
}

/* ---- a copy that is slower than its lease ---- */

/* The second page of the memory that a block is copied to can't be written until the test says so:
 * the copy stops in the middle of the block. */
static struct {
    uint8_t *page;
    size_t bytes;
    int stopped[2]; /* the copy has come there */
    int go[2];
} trap;

static void trapped(int sig, siginfo_t *info, void *context)
{
    char c = 't';
    (void)sig;
    (void)context;
    const uint8_t *at = info->si_addr;
    if (at < trap.page || at >= trap.page + trap.bytes || write(trap.stopped[1], &c, 1) != 1 ||
        read(trap.go[0], &c, 1) != 1 ||
        mprotect(trap.page, trap.bytes, PROT_READ | PROT_WRITE) != 0) {
        _exit(99);
    }
}

struct slow_copy {
    pthread_t thread;
    struct kvd_lease *lease;
    uint8_t *memory;
    uint32_t good;
    int status;
};

static void *copy_slowly(void *arg)
{
    struct slow_copy *c = arg;
    void *dest[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        dest[i] = c->memory + (size_t)i * RIG_BLOCK_BYTES;
    }
    c->status = kvd_load(c->lease, 0, BLOCKS, dest, &c->good);
    return NULL;
}

static void copy_until_trapped(struct slow_copy *c, uint32_t block)
{
    struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO};
    struct pollfd pfd;
    char byte;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t bytes = (size_t)BLOCKS * RIG_BLOCK_BYTES;
    c->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(c->memory, MAP_FAILED);
    trap.page = c->memory + (size_t)block * RIG_BLOCK_BYTES + page;
    trap.bytes = bytes - (size_t)(trap.page - c->memory);
    assert_int_equal(pipe2(trap.stopped, O_CLOEXEC), 0);
    assert_int_equal(pipe2(trap.go, O_CLOEXEC), 0);
    assert_int_equal(sigaction(SIGSEGV, &action, NULL), 0);
    assert_int_equal(mprotect(trap.page, trap.bytes, PROT_NONE), 0);
    assert_int_equal(pthread_create(&c->thread, NULL, copy_slowly, c), 0);
    pfd = (struct pollfd){.fd = trap.stopped[0], .events = POLLIN};
    assert_int_equal(poll(&pfd, 1, RIG_WAIT_MS), 1);
    assert_int_equal(read(trap.stopped[0], &byte, 1), 1);
}

static void copy_goes_on(struct slow_copy *c)
{
    assert_int_equal(write(trap.go[1], "g", 1), 1);
    assert_int_equal(pthread_join(c->thread, NULL), 0);
    (void)signal(SIGSEGV, SIG_DFL);
    for (int i = 0; i < 2; i++) {
        (void)close(trap.stopped[i]);
        (void)close(trap.go[i]);
    }
}

static void r_slot_reused_under_a_slow_reader(void **state)
{
    (void)state;
    struct node n;
    struct slow_copy copy = {.good = 99};
    struct kvd_stats stats = {.size = sizeof(stats)};
    node_open(&n);
    struct kvd_client *c = rig_client(&n.rig);
    struct kvd_space *s = rig_space(c);
    assert_int_equal(rig_put(s, 1, 0, BLOCKS), BLOCKS);
    copy.lease = match(s, 1, BLOCKS);
    copy_until_trapped(&copy, 2);
    wait_for(&n, "leased_bytes", 0); /* its lease has ended */
    churn(&n);
    copy_goes_on(&copy);
    assert_int_equal(copy.status, 0);
    assert_int_equal(copy.good, 2); /* those were copied, and looked at, before */
    for (uint32_t i = 0; i < copy.good; i++) {
        assert_true(is_right(1, i, copy.memory + (size_t)i * RIG_BLOCK_BYTES));
    }
    assert_false(is_right(1, 2, copy.memory + 2 * (size_t)RIG_BLOCK_BYTES));
    kvd_stats(c, &stats);
    assert_int_equal(stats.failed_blocks, BLOCKS - 2);
    kvd_lease_release(&copy.lease);
    wait_for(&n, "leases", 0);
    (void)munmap(copy.memory, (size_t)BLOCKS * RIG_BLOCK_BYTES);
    kvd_client_close(&c);
    node_close(&n);
}

/* ---- in place ---- */

static void test_place(void **state)
{
    (void)state;
    struct node n;
    const void *at[BLOCKS];
    uint32_t good = 0;
    struct kvd_completion done;
    node_open(&n);
    struct kvd_client *c = rig_client(&n.rig);
    struct kvd_space *s = rig_space(c);
    assert_int_equal(rig_put(s, 2, 0, BLOCKS), BLOCKS);
    struct kvd_lease *lease = match(s, 2, BLOCKS);
    assert_int_equal(kvd_place_check(lease), 0); /* nothing is placed */
    assert_int_equal(kvd_place(lease, 1, BLOCKS, at, &good), KVD_BAD_REQUEST);
    assert_int_equal(kvd_place(lease, 0, 2, at, &good), 0);
    assert_int_equal(good, 2);
    assert_int_equal(kvd_submit_place(lease, 2, 2, at + 2, &n), 0);
    struct pollfd pfd = {.fd = kvd_client_fd(c), .events = POLLIN};
    do {
        assert_int_equal(poll(&pfd, 1, RIG_WAIT_MS), 1);
    } while (kvd_drain(c, &done, 1) == 0);
    assert_int_equal(done.op, KVD_OP_PLACE);
    assert_int_equal(done.status, 0);
    assert_int_equal(done.good, 2);
    assert_ptr_equal(done.cookie, &n);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        assert_true(is_right(2, i, at[i]));
        assert_int_equal((uintptr_t)at[i] % 4096, 0);
    }
    assert_int_equal(rig_status(n.watcher, "placed_leases"), 1);
    assert_int_equal(kvd_place_check(lease), 0);
    kvd_lease_release(&lease);
    wait_for(&n, "placed_leases", 0);
    wait_for(&n, "leased_bytes", 0);
    kvd_client_close(&c);
    node_close(&n);
}

static void r_placed_blocks_past_their_deadline(void **state)
{
    (void)state;
    struct node n;
    const void *at[BLOCKS];
    uint32_t good = 0;
    node_open(&n);
    struct kvd_client *c = rig_client(&n.rig);
    struct kvd_space *s = rig_space(c);
    assert_int_equal(rig_put(s, 3, 0, BLOCKS), BLOCKS);
    struct kvd_lease *lease = match(s, 3, BLOCKS);
    assert_int_equal(kvd_place(lease, 0, BLOCKS - 1, at, &good), 0);
    assert_int_equal(good, BLOCKS - 1);
    const int64_t all = rig_status(n.watcher, "leased_bytes");
    wait_for(&n, "leased_bytes", all / BLOCKS * (BLOCKS - 1)); /* the last one had a deadline */
    wait_for(&n, "overdue", 1);
    churn(&n);
    for (uint32_t i = 0; i < BLOCKS - 1; i++) {
        assert_true(is_right(3, i, at[i]));
    }
    assert_int_equal(kvd_place_check(lease), 0);
    wait_for_log(&n, "in use in place");
    uint64_t until = kvd_mono_ns() + RIG_WAIT_MS * (uint64_t)KVD_NS_PER_MS;
    while (rig_status(n.watcher, "oldest_s") < 3) { /* more looks at it: it is said once */
        assert_true(kvd_mono_ns() < until);
    }
    assert_int_equal(rig_logged(&n.rig, "in use in place"), 1);
    /* it goes on: what was not placed is found again */
    assert_int_equal(kvd_place(lease, BLOCKS - 1, 1, at + BLOCKS - 1, &good), 0);
    assert_int_equal(good, 1);
    assert_true(is_right(3, BLOCKS - 1, at[BLOCKS - 1]));
    wait_for(&n, "overdue", 1); /* anew, but that is said once a lease */
    assert_int_equal(rig_logged(&n.rig, "in use in place"), 1);
    kvd_client_close(&c); /* as its death: nothing is left */
    wait_for(&n, "leased_bytes", 0);
    assert_int_equal(rig_status(n.watcher, "overdue"), 0);
    node_close(&n);
}

static void r_daemon_restarted_under_a_place(void **state)
{
    (void)state;
    struct node n;
    const void *at[BLOCKS];
    uint32_t good = 0;
    node_open(&n);
    struct kvd_client *c = rig_client(&n.rig);
    struct kvd_space *s = rig_space(c);
    assert_int_equal(rig_put(s, 4, 0, BLOCKS), BLOCKS);
    struct kvd_lease *lease = match(s, 4, BLOCKS);
    assert_int_equal(kvd_place(lease, 0, BLOCKS, at, &good), 0);
    assert_int_equal(good, BLOCKS);
    kvd_client_close(&n.watcher);
    rig_stop(&n.rig);
    assert_int_equal(kvd_place_check(lease), 0); /* nobody has touched the pool */
    assert_true(is_right(4, 0, at[0]));
    rig_start(&n.rig);
    node_watch(&n);
    assert_int_equal(kvd_place_check(lease), 0);
    assert_true(is_right(4, BLOCKS - 1, at[BLOCKS - 1]));
    churn(&n);
    assert_false(is_right(4, 0, at[0]));                 /* another's bytes: the use was in vain, */
    assert_int_equal(kvd_place_check(lease), KVD_STALE); /* and it is said */
    assert_int_equal(kvd_place_check(lease), KVD_STALE);
    uint64_t until = kvd_mono_ns() + RIG_WAIT_MS * (uint64_t)KVD_NS_PER_MS;
    int err;
    while ((err = kvd_place(lease, 0, 1, at, &good)) == KVD_UNAVAILABLE && kvd_mono_ns() < until) {
    }
    assert_int_equal(err, KVD_STALE);
    kvd_lease_release(&lease);
    assert_int_equal(rig_hit(s, 4, BLOCKS), BLOCKS); /* from below */
    kvd_client_close(&c);
    node_close(&n);
}

/* More than a client may hold: a shorter prefix in place; the rest by copying. Others go on. */
static void test_place_within_limits(void **state)
{
    (void)state;
    struct node n;
    static const void *at[CHURN_BLOCKS];
    static uint8_t memory[CHURN_BLOCKS][RIG_BLOCK_BYTES];
    static void *dest[CHURN_BLOCKS];
    uint32_t good = 0;
    uint32_t rest = 0;
    memset(&n, 0, sizeof(n));
    rig_init(&n.rig);
    rig_set(&n.rig, "client.pin-share", "5");
    rig_start(&n.rig);
    node_watch(&n);
    struct kvd_client *c = rig_client(&n.rig);
    struct kvd_space *s = rig_space(c);
    assert_int_equal(rig_put(s, 5, 0, CHURN_BLOCKS), CHURN_BLOCKS);
    struct kvd_lease *lease = match(s, 5, CHURN_BLOCKS);
    assert_int_equal(kvd_place(lease, 0, CHURN_BLOCKS, at, &good), 0);
    assert_in_range(good, 10, CHURN_BLOCKS / 2);
    assert_null(at[good]);
    assert_in_range(rig_status(n.watcher, "leased_bytes"), 1, (28 << 20) / 20);
    for (uint32_t i = 0; i < CHURN_BLOCKS; i++) {
        dest[i] = memory[i];
    }
    /* there is no room beside what is placed */
    assert_int_equal(kvd_load(lease, good, CHURN_BLOCKS - good, dest, &rest), 0);
    assert_int_equal(rest, 0);
    churn(&n);
    for (uint32_t i = 0; i < good; i++) {
        assert_true(is_right(5, i, at[i]));
    }
    assert_int_equal(kvd_place_check(lease), 0);
    kvd_lease_release(&lease);
    assert_int_equal(rig_hit(s, 5, CHURN_BLOCKS), CHURN_BLOCKS);
    kvd_client_close(&c);
    node_close(&n);
}

/* ---- a client that leaves while its reads hang ---- */

static void r_client_leaves_while_its_read_hangs(void **state)
{
    (void)state;
    struct node n;
    static uint8_t memory[BLOCKS][RIG_BLOCK_BYTES];
    void *dest[BLOCKS] = {memory[0], memory[1], memory[2], memory[3]};
    node_open(&n);
    assert_int_equal(rig_put(n.watcher_space, 6, 0, BLOCKS), BLOCKS);
    churn(&n); /* it is below dram only */
    wait_for(&n, "queue_bytes", 0);
    struct kvd_client *c = rig_client(&n.rig);
    struct kvd_lease *lease = match(rig_space(c), 6, BLOCKS);
    int held = fault_hold(FAULT_READ, ".seg");
    assert_int_equal(kvd_submit_load(lease, 0, BLOCKS, dest, NULL), 0);
    assert_true(fault_wait_held(held, BLOCKS));
    kvd_client_close(&c);
    wait_for(&n, "clients", 1);
    assert_int_equal(rig_status(n.watcher, "leases"), 0);
    /* the device may still write there: these slots are nobody's until it has */
    assert_true(rig_status(n.watcher, "leased_bytes") > 0);
    churn(&n);
    assert_int_equal(rig_hit(n.watcher_space, 5000 + n.churned - 1, BLOCKS), BLOCKS);
    fault_release(held);
    wait_for(&n, "leased_bytes", 0);
    assert_int_equal(rig_hit(n.watcher_space, 6, BLOCKS), BLOCKS);
    fault_clear();
    node_close(&n);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(r_slot_reused_under_a_slow_reader),
    cmocka_unit_test(test_place),
    cmocka_unit_test(r_placed_blocks_past_their_deadline),
    cmocka_unit_test(r_daemon_restarted_under_a_place),
    cmocka_unit_test(test_place_within_limits),
    cmocka_unit_test(r_client_leaves_while_its_read_hangs),
};

KVD_TEST_MAIN(tests)
