/* Private pages of KV in one mapping, with a stack of the free ones; see arena.h. */
#include "engine/graph/arena.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "proto/base/assert.h"
#include "proto/base/bytes.h"

enum { ARENA_MAGIC = 0x6e657261, ALIGN = 4096 };

struct kvd_arena {
    uint32_t magic;
    uint32_t pages;
    uint64_t stride; /* page_bytes, rounded up for direct I/O */
    uint8_t *base;
    pthread_mutex_t mtx;
    int *free;       /* lock: mtx; a stack */
    uint32_t n_free; /* lock: mtx */
    bool *taken;     /* lock: mtx; by page */
};

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static void fill_free(struct kvd_arena *arena, uint64_t seed)
{
    for (uint32_t i = 0; i < arena->pages; i++) {
        arena->free[i] = (int)(arena->pages - 1 - i);
    }
    uint64_t state = seed;
    for (uint32_t left = seed ? arena->pages : 0; left > 1; left--) {
        const uint32_t j = (uint32_t)(next_random(&state) % left);
        const int page = arena->free[left - 1];
        arena->free[left - 1] = arena->free[j];
        arena->free[j] = page;
    }
    arena->n_free = arena->pages;
}

int kvd_arena_create(const struct kvd_arena_options *options, struct kvd_arena **ret)
{
    if (options->pages == 0 || options->pages > INT32_MAX || options->page_bytes == 0 ||
        options->page_bytes > UINT64_MAX / 2 / options->pages) {
        return -EINVAL;
    }
    struct kvd_arena *arena = calloc(1, sizeof(*arena));
    if (!arena) {
        return -ENOMEM;
    }
    arena->magic = ARENA_MAGIC;
    arena->pages = options->pages;
    arena->stride = kvd_round_up(options->page_bytes, ALIGN);
    (void)pthread_mutex_init(&arena->mtx, NULL);
    arena->free = calloc(options->pages, sizeof(*arena->free));
    arena->taken = calloc(options->pages, sizeof(*arena->taken));
    void *base = mmap(NULL, arena->stride * arena->pages, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    arena->base = base == MAP_FAILED ? NULL : base;
    if (!arena->free || !arena->taken || !arena->base) {
        kvd_arena_destroy(&arena);
        return -ENOMEM;
    }
    fill_free(arena, options->shuffle_seed);
    *ret = arena;
    return 0;
}

void kvd_arena_destroy(struct kvd_arena **arena)
{
    if (!arena || !*arena) {
        return;
    }
    struct kvd_arena *a = *arena;
    KVD_MAGIC_CHECK(a, ARENA_MAGIC);
    if (a->base) {
        (void)munmap(a->base, a->stride * a->pages);
    }
    (void)pthread_mutex_destroy(&a->mtx);
    free(a->free);
    free(a->taken);
    KVD_MAGIC_CLEAR(a);
    free(a);
    *arena = NULL;
}

int kvd_arena_get(struct kvd_arena *arena)
{
    KVD_MAGIC_CHECK(arena, ARENA_MAGIC);
    int page = -KVD_E_FULL;
    (void)pthread_mutex_lock(&arena->mtx);
    if (arena->n_free > 0) {
        page = arena->free[--arena->n_free];
        arena->taken[page] = true;
    }
    (void)pthread_mutex_unlock(&arena->mtx);
    return page;
}

void kvd_arena_put(struct kvd_arena *arena, int page)
{
    KVD_MAGIC_CHECK(arena, ARENA_MAGIC);
    KVD_ASSERT(page >= 0 && (uint32_t)page < arena->pages);
    (void)pthread_mutex_lock(&arena->mtx);
    KVD_ASSERT(arena->taken[page]);
    arena->taken[page] = false;
    arena->free[arena->n_free++] = page;
    (void)pthread_mutex_unlock(&arena->mtx);
}

void *kvd_arena_page(struct kvd_arena *arena, int page)
{
    KVD_MAGIC_CHECK(arena, ARENA_MAGIC);
    KVD_ASSERT(page >= 0 && (uint32_t)page < arena->pages);
    return arena->base + (uint64_t)page * arena->stride;
}

uint32_t kvd_arena_free_pages(struct kvd_arena *arena)
{
    KVD_MAGIC_CHECK(arena, ARENA_MAGIC);
    (void)pthread_mutex_lock(&arena->mtx);
    const uint32_t n = arena->n_free;
    (void)pthread_mutex_unlock(&arena->mtx);
    return n;
}
