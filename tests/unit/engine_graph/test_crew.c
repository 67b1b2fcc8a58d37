/* The crew: everybody runs a job, everything is claimed once, nobody passes a barrier early. */
#include <errno.h>
#include <stdatomic.h>

#include "engine/graph/crew.h"
#include "kvd_test.h"

enum { ITEMS = 1000, ROUNDS = 200 };

struct counts {
    atomic_uint here;
    atomic_uint early; /* threads that passed a barrier before all had come */
    uint8_t taken[ROUNDS][ITEMS];
    uint32_t grain;
};

static void claim_everything(void *user, struct kvd_crew *crew, uint32_t thread)
{
    struct counts *c = user;
    const uint32_t threads = kvd_crew_threads(crew);
    (void)thread;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t first;
        uint32_t end;
        while (kvd_crew_claim(crew, ITEMS, c->grain, &first, &end)) {
            for (uint32_t i = first; i < end; i++) {
                c->taken[round][i]++; /* not atomic: whoever shares it shows in TSan and here */
            }
        }
        atomic_fetch_add(&c->here, 1);
        kvd_crew_barrier(crew);
        if (atomic_load(&c->here) < (round + 1) * threads) {
            atomic_fetch_add(&c->early, 1);
        }
    }
}

static void items_are_claimed_once_and_barriers_hold(void **state)
{
    (void)state;
    const uint32_t grains[] = {1, 7, ITEMS, ITEMS + 1};
    for (uint32_t threads = 1; threads <= 4; threads++) {
        struct kvd_crew *crew = NULL;
        assert_int_equal(kvd_crew_create(threads, &crew), 0);
        assert_int_equal(kvd_crew_threads(crew), threads);
        struct counts *c = calloc(1, sizeof(*c));
        assert_non_null(c);
        c->grain = grains[threads - 1];
        kvd_crew_run(crew, claim_everything, c);
        assert_int_equal(atomic_load(&c->early), 0);
        for (uint32_t i = 0; i < ROUNDS * ITEMS; i++) {
            assert_int_equal(c->taken[i / ITEMS][i % ITEMS], 1);
        }
        free(c);
        kvd_crew_destroy(&crew);
        assert_null(crew);
    }
}

static void count_threads(void *user, struct kvd_crew *crew, uint32_t thread)
{
    atomic_uint *ran = user;
    assert_true(thread < kvd_crew_threads(crew));
    atomic_fetch_add(&ran[thread], 1);
}

/* Many short jobs: workers fall asleep between some of them and not between others. */
static void every_thread_runs_every_job(void **state)
{
    (void)state;
    enum { THREADS = 3, JOBS = 3000 };
    struct kvd_crew *crew = NULL;
    atomic_uint ran[THREADS] = {0};
    assert_int_equal(kvd_crew_create(THREADS, &crew), 0);
    for (int i = 0; i < JOBS; i++) {
        kvd_crew_run(crew, count_threads, ran);
    }
    for (int t = 0; t < THREADS; t++) {
        assert_int_equal(atomic_load(&ran[t]), JOBS);
    }
    kvd_crew_destroy(&crew);
}

static void bad_counts_are_refused(void **state)
{
    (void)state;
    struct kvd_crew *crew = NULL;
    assert_int_equal(kvd_crew_create(0, &crew), -EINVAL);
    assert_int_equal(kvd_crew_create(KVD_CREW_THREADS_MAX + 1, &crew), -EINVAL);
    kvd_crew_destroy(&crew);
    assert_int_equal(kvd_crew_create(KVD_CREW_THREADS_MAX, &crew), 0);
    kvd_crew_destroy(&crew);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(items_are_claimed_once_and_barriers_hold),
    cmocka_unit_test(every_thread_runs_every_job),
    cmocka_unit_test(bad_counts_are_refused),
};

KVD_TEST_MAIN(tests)
