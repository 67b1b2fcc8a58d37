/*
 * The crew; see crew.h. Two words are waited on, both counters that only grow: `start` (jobs begun)
 * and `passed` (barriers passed). A waiter that found its word unchanged after spinning announces
 * itself in `sleepers` and sleeps on the word; whoever changes a word afterwards looks at
 * `sleepers`. Both orders are sequentially consistent, so one of the two sees the other. The waits
 * have no deadline: a worker that computes is never waiting for anything but the crew itself, and a
 * worker without a job waits until the crew is destroyed.
 */
#include "engine/graph/crew.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/base/assert.h"

enum { CREW_MAGIC = 0x77657263, SPINS = 1500 /* about 20 us */, LINE = 64 };

struct worker {
    struct kvd_crew *crew;
    pthread_t thread;
    uint32_t index;
};

struct kvd_crew {
    uint32_t magic;
    uint32_t threads;
    kvd_crew_fn *fn; /* NULL in a job: the workers end. Written before start changes */
    void *user;
    uint32_t n_workers; /* that were started */
    struct worker workers[KVD_CREW_THREADS_MAX - 1];
    /* Lines of their own: these are written by all. */
    _Alignas(LINE) atomic_uint start;
    _Alignas(LINE) atomic_uint passed;
    atomic_uint arrived;
    _Alignas(LINE) atomic_uint sleepers;
    _Alignas(LINE) atomic_uint next; /* first that is not claimed */
};

static void pause_core(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void wait_change(struct kvd_crew *crew, atomic_uint *word, unsigned was)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != was) {
            return;
        }
        pause_core();
    }
    atomic_fetch_add(&crew->sleepers, 1);
    while (atomic_load(word) == was) {
        (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, was, NULL, NULL, 0);
    }
    atomic_fetch_sub(&crew->sleepers, 1);
}

static void change(struct kvd_crew *crew, atomic_uint *word)
{
    atomic_fetch_add(word, 1);
    if (atomic_load(&crew->sleepers) > 0) {
        (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
}

void kvd_crew_barrier(struct kvd_crew *crew)
{
    const unsigned was = atomic_load(&crew->passed);
    if (atomic_fetch_add(&crew->arrived, 1) + 1 < crew->threads) {
        wait_change(crew, &crew->passed, was);
        return;
    }
    atomic_store_explicit(&crew->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&crew->next, 0, memory_order_relaxed);
    change(crew, &crew->passed);
}

bool kvd_crew_claim(struct kvd_crew *crew, uint32_t total, uint32_t grain, uint32_t *ret_first,
                    uint32_t *ret_end)
{
    const uint32_t first = atomic_fetch_add_explicit(&crew->next, grain, memory_order_relaxed);
    if (first >= total) {
        return false;
    }
    *ret_first = first;
    *ret_end = total - first < grain ? total : first + grain;
    return true;
}

static void *worker_main(void *arg)
{
    const struct worker *w = arg;
    struct kvd_crew *crew = w->crew;
    for (unsigned jobs = 0;; jobs++) {
        wait_change(crew, &crew->start, jobs);
        if (!crew->fn) {
            return NULL;
        }
        crew->fn(crew->user, crew, w->index);
        kvd_crew_barrier(crew);
    }
}

void kvd_crew_run(struct kvd_crew *crew, kvd_crew_fn *fn, void *user)
{
    KVD_MAGIC_CHECK(crew, CREW_MAGIC);
    crew->fn = fn;
    crew->user = user;
    change(crew, &crew->start);
    fn(user, crew, 0);
    kvd_crew_barrier(crew);
}

uint32_t kvd_crew_threads(const struct kvd_crew *crew)
{
    return crew->threads;
}

int kvd_crew_create(uint32_t threads, struct kvd_crew **ret)
{
    if (threads == 0 || threads > KVD_CREW_THREADS_MAX) {
        return -EINVAL;
    }
    struct kvd_crew *crew = aligned_alloc(LINE, sizeof(*crew));
    if (!crew) {
        return -ENOMEM;
    }
    *crew = (struct kvd_crew){.magic = CREW_MAGIC, .threads = threads};
    for (uint32_t i = 0; i + 1 < threads; i++) {
        struct worker *w = &crew->workers[i];
        w->crew = crew;
        w->index = i + 1;
        const int err = pthread_create(&w->thread, NULL, worker_main, w);
        if (err) {
            kvd_crew_destroy(&crew);
            return -err;
        }
        crew->n_workers++;
    }
    *ret = crew;
    return 0;
}

void kvd_crew_destroy(struct kvd_crew **crew)
{
    if (!crew || !*crew) {
        return;
    }
    struct kvd_crew *c = *crew;
    KVD_MAGIC_CHECK(c, CREW_MAGIC);
    c->fn = NULL;
    change(c, &c->start);
    for (uint32_t i = 0; i < c->n_workers; i++) {
        (void)pthread_join(c->workers[i].thread, NULL);
    }
    KVD_MAGIC_CLEAR(c);
    free(c);
    *crew = NULL;
}
