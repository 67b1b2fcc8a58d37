/* The pool under several threads, and readers in other processes that rely on generations. */
#include "pool_fixture.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

enum { THREADS = 4, ROUNDS = 3000, NUMBERS = 400 };

struct worker {
    struct fixture *f;
    uint32_t seed;
    unsigned wrong;
    unsigned put;
    unsigned hit;
};

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static uint32_t payload_of(uint32_t n)
{
    return n % 5 == 0 ? 300000 : 20000 + n % 3 * 10000;
}

/* What is found must be right as long as it is pinned, whatever the others put meanwhile. */
static void work_once(struct worker *w, uint32_t n)
{
    struct kvd_pool *pool = w->f->pool;
    struct kvd_slot *slot = block_pin(pool, n);
    if (!slot) {
        const int err = block_put(pool, n, payload_of(n), &slot);
        w->put += err == 0;
        w->wrong += err != 0 && err != -KVD_E_EXISTS;
        if (err) {
            return;
        }
    } else {
        w->hit++;
    }
    w->wrong += !bytes_right(slot->base, HEADER_BYTES + payload_of(n), n);
    if (next_random(&w->seed) % 16 == 0) {
        kvd_pool_remove(pool, slot);
    } else {
        kvd_pool_touch(pool, slot, (uint16_t)(n % 7), n);
        kvd_pool_set_nvme_segment(pool, slot, n % 2);
    }
    kvd_pool_pin_again(pool, slot);
    kvd_pool_unpin(pool, slot);
    kvd_pool_unpin(pool, slot);
}

static void *work(void *arg)
{
    struct worker *w = arg;
    for (unsigned i = 0; i < ROUNDS; i++) {
        work_once(w, next_random(&w->seed) % NUMBERS);
    }
    return NULL;
}

static void walk_check(struct kvd_slot *slot, void *user)
{
    const uint32_t n = slot->meta.index;
    *(unsigned *)user += !bytes_right(slot->base, HEADER_BYTES + payload_of(n), n);
}

static void test_threads(void **state)
{
    (void)state;
    struct fixture f;
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    struct kvd_pool_stat st;
    unsigned wrong = 0;
    unsigned put = 0;
    fixture_begin(&f, 16 * MIB);
    fixture_open(&f);
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.f = &f, .seed = 77 * i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < 20; i++) {
        kvd_pool_walk(f.pool, walk_check, &wrong);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        wrong += workers[i].wrong;
        put += workers[i].put;
        assert_true(workers[i].hit > 0);
    }
    assert_int_equal(wrong, 0);
    assert_true(f.evicted > 0 && put > NUMBERS);
    uint64_t per[7] = {0};
    uint64_t sum = 0;
    kvd_pool_stat(f.pool, &st);
    kvd_pool_scenario_bytes(f.pool, per, 7);
    for (int i = 0; i < 7; i++) {
        sum += per[i];
    }
    assert_int_equal(sum, st.used_bytes);
    assert_int_equal(st.pinned_bytes, 0);
    fixture_end(&f);
}

/* ---- a reader in another process, without pins ---- */

/* One block's place, written by the parent under a sequence number; odd while it changes. */
struct shared {
    _Atomic uint32_t sequence;
    _Atomic uint64_t offset;
    _Atomic uint64_t generation_offset;
    _Atomic uint32_t generation;
    _Atomic uint32_t number;
    atomic_bool stop;
    _Atomic uint64_t good;
    _Atomic uint64_t stale;
    _Atomic uint64_t wrong;
};

enum { READ_BYTES = HEADER_BYTES + 100000 };

static void read_once(struct shared *s, const uint8_t *map, uint8_t *copy)
{
    const uint32_t sequence = atomic_load(&s->sequence);
    const uint64_t offset = atomic_load(&s->offset);
    const uint64_t at = atomic_load(&s->generation_offset);
    const uint32_t generation = atomic_load(&s->generation);
    const uint32_t number = atomic_load(&s->number);
    if (sequence % 2 || sequence != atomic_load(&s->sequence) || at == 0) {
        return;
    }
    memcpy(copy, map + offset, READ_BYTES);
    atomic_thread_fence(memory_order_acquire);
    if (__atomic_load_n((const uint32_t *)(const void *)(map + at), __ATOMIC_RELAXED) !=
        generation) {
        atomic_fetch_add(&s->stale, 1);
    } else if (bytes_right(copy, READ_BYTES, number)) {
        atomic_fetch_add(&s->good, 1);
    } else {
        atomic_fetch_add(&s->wrong, 1);
    }
}

static void reader(struct shared *s, int fd, uint64_t bytes)
{
    const uint8_t *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    uint8_t *copy = malloc(READ_BYTES);
    if (map == MAP_FAILED || !copy) {
        _exit(1);
    }
    const pid_t parent = getppid();
    while (!atomic_load(&s->stop) && getppid() == parent) {
        read_once(s, map, copy);
    }
    _exit(0);
}

static void announce(struct shared *s, const struct kvd_slot *slot)
{
    atomic_fetch_add(&s->sequence, 1);
    atomic_store(&s->offset, slot->file_offset);
    atomic_store(&s->generation_offset, slot->generation_offset);
    atomic_store(&s->generation, slot->generation);
    atomic_store(&s->number, slot->meta.index);
    atomic_fetch_add(&s->sequence, 1);
}

/* Blocks are announced and at once evicted by later ones, of this size and of others, so that pages
 * change their class under the readers. A copy with the right generation must be right. */
static void test_readers_without_pins(void **state)
{
    (void)state;
    struct fixture f;
    int status;
    fixture_begin(&f, 16 * MIB);
    fixture_open(&f);
    struct shared *s =
        mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(s, MAP_FAILED);
    const pid_t pid = fork();
    if (pid == 0) {
        reader(s, kvd_pool_fd_readonly(f.pool), kvd_pool_map_bytes(f.pool));
    }
    const uint64_t deadline = kvd_mono_ns() + 20 * KVD_NS_PER_S;
    for (uint32_t n = 0;
         (atomic_load(&s->good) < 200 || atomic_load(&s->stale) < 200 || n < 20000) &&
         kvd_mono_ns() < deadline;
         n++) {
        struct kvd_slot *slot = NULL;
        const uint32_t phase = n / 512 % 2; /* all of one size, then all of the other */
        assert_int_equal(block_put(f.pool, n, phase ? 400000 : 100000, &slot), 0);
        assert_non_null(slot);
        if (n % 64 == 0) {
            announce(s, slot);
        }
        kvd_pool_unpin(f.pool, slot);
    }
    atomic_store(&s->stop, true);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    (void)printf("copies: %llu good, %llu stale\n", (unsigned long long)s->good,
                 (unsigned long long)s->stale);
    assert_int_equal(s->wrong, 0);
    assert_true(s->good > 0 && s->stale > 0);
    (void)munmap(s, sizeof(*s));
    fixture_end(&f);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_threads),
    cmocka_unit_test(test_readers_without_pins),
};
KVD_TEST_MAIN(tests)
