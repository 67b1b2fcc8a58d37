/* Staging areas under a hostile client: what was copied is what was summed, and the area keeps its
 * size. */
#include "kvd_test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cachesvc/core/service_private.h"
#include "damage.h"

enum { N = 12, TOKENS = N * RIG_BLOCK_TOKENS + 5, ROUNDS = 40 };

/* ---- a client that rewrites its staging while the daemon copies it ---- */

struct scribbler {
    struct rig *rig;
    atomic_bool stop;
    uint64_t writes;
};

static void *scribble(void *arg)
{
    struct scribbler *s = arg;
    uint64_t x = 1;
    while (!atomic_load(&s->stop)) {
        volatile uint64_t *p = (volatile uint64_t *)(void *)s->rig->staging;
        for (uint64_t i = 0; i < s->rig->space.staging_bytes / 8; i += 16) {
            p[i] = x++;
        }
        s->writes++;
    }
    return NULL;
}

struct committed {
    pthread_mutex_t mtx;
    pthread_cond_t cond;
    bool there; /* lock: mtx */
    int result;
    uint32_t n;
};

static void commit_done(int result, uint32_t committed, uint32_t not_written_down, void *user)
{
    struct committed *c = user;
    (void)not_written_down;
    (void)pthread_mutex_lock(&c->mtx);
    c->result = result;
    c->n = committed;
    c->there = true;
    (void)pthread_cond_signal(&c->cond);
    (void)pthread_mutex_unlock(&c->mtx);
}

/* Begins a put of N blocks and commits what lies in staging at that moment. */
static uint32_t put_whatever(struct rig *rig, const uint32_t *tokens)
{
    struct kvd_prompt_ref ref = {.space_handle = rig->space.handle,
                                 .tenant = "",
                                 .scenario = "chat",
                                 .tokens = tokens,
                                 .n_tokens = N * RIG_BLOCK_TOKENS};
    struct kvd_diag diag = {{0}};
    struct kvd_put_out out = {0};
    struct committed c = {.mtx = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    assert_int_equal(kvd_service_put_begin(rig->session, &ref, 0, N, &diag, rig->results, &out), 0);
    assert_true(out.put != 0);
    kvd_service_put_commit(rig->session, out.put, false, commit_done, &c);
    (void)pthread_mutex_lock(&c.mtx);
    while (!c.there) {
        (void)pthread_cond_wait(&c.cond, &c.mtx);
    }
    (void)pthread_mutex_unlock(&c.mtx);
    assert_int_equal(c.result, 0);
    return c.n;
}

/* Whatever bytes it got, each record's sum is of them: in dram, and below. */
static void r_client_scribbles_during_commit(void **state)
{
    (void)state;
    struct rig rig;
    struct scribbler s = {.rig = &rig};
    pthread_t thread;
    uint32_t committed = 0;
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    assert_int_equal(pthread_create(&thread, NULL, scribble, &s), 0);
    for (uint32_t seed = 1; seed <= ROUNDS; seed++) {
        uint32_t tokens[TOKENS];
        rig_tokens(seed, TOKENS, tokens);
        committed += put_whatever(&rig, tokens);
    }
    atomic_store(&s.stop, true);
    (void)pthread_join(thread, NULL);
    assert_true(s.writes > 0 && committed > 0);
    rig_settle(&rig);
    damage_verify(&rig, "");
    assert_true(rig_number(&rig, "verify", "", "now.tiers.1.records") > 0);
    assert_int_equal(rig_number(&rig, "verify", "", "now.tiers.0.bad"), 0);
    assert_int_equal(rig_number(&rig, "verify", "", "now.tiers.1.bad"), 0);
    assert_int_equal(rig_number(&rig, "status", "", "corrupt"), 0);
    rig_fini(&rig);
}

/* ---- a client that resizes it ---- */

static void r_client_cuts_its_staging(void **state)
{
    (void)state;
    struct rig rig;
    struct stat st;
    uint32_t tokens[TOKENS];
    rig_tokens(1, TOKENS, tokens);
    rig_init(&rig, "64MiB", "64MiB");
    rig_open(&rig, false);
    int fd = dup(rig.space.staging_fd); /* what a client is sent */
    off_t bytes = (off_t)rig.space.staging_bytes;
    assert_int_equal(ftruncate(fd, 0), -1);
    assert_int_equal(ftruncate(fd, bytes - 4096), -1);
    assert_int_equal(ftruncate(fd, bytes + 4096), -1);
    assert_int_equal(fallocate(fd, 0, bytes, 4096), -1);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE),
                     -1); /* nor make the daemon's writes fail */
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, bytes);
    /* holes are no cut: they read as zeros, and are committed as such */
    assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, bytes), 0);
    assert_int_equal(put_whatever(&rig, tokens), N);
    (void)close(fd);
    damage_verify(&rig, "dram");
    assert_int_equal(rig_number(&rig, "verify", "", "now.tiers.0.bad"), 0);
    rig_fini(&rig);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(r_client_scribbles_during_commit),
    cmocka_unit_test(r_client_cuts_its_staging),
};

KVD_TEST_MAIN(tests)
