/* For the tests of the pool: a folder, a pool in it, and blocks whose bytes say who they are. */
#ifndef TESTS_UNIT_TIER_POOL_FIXTURE_H
#define TESTS_UNIT_TIER_POOL_FIXTURE_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cachesvc/tier/pool.h"
#include "kvd_test.h"
#include "proto/base/bytes.h"
#include "proto/base/clock.h"

#define MIB (UINT64_C(1) << 20)
#define HEADER_BYTES 4096u

struct fixture {
    char folder[128];
    char path[160];
    struct kvd_pool_options options;
    struct kvd_pool *pool;
    struct kvd_diag diag;
    unsigned evicted;
    uint64_t evicted_index_sum; /* tells which, when few */
};

static void fixture_begin(struct fixture *f, uint64_t cap_bytes)
{
    const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : getenv("TMPDIR");
    memset(f, 0, sizeof(*f));
    (void)snprintf(f->folder, sizeof(f->folder), "%s/kvd_pool_XXXXXX", base ? base : "/tmp");
    assert_non_null(mkdtemp(f->folder));
    (void)snprintf(f->path, sizeof(f->path), "%s/pool", f->folder);
    f->options = (struct kvd_pool_options){
        .path = f->path,
        .cap_bytes = cap_bytes,
        .store = {.b = {1, 2, 3}},
        .eviction = &kvd_evict_lru,
    };
}

static void fixture_evicted(const struct kvd_slot_meta *meta, void *user)
{
    struct fixture *f = user;
    f->evicted++;
    f->evicted_index_sum += meta->index;
}

static void fixture_open(struct fixture *f)
{
    const int err = kvd_pool_open(&f->options, &f->diag, &f->pool);
    if (err) {
        fail_msg("open: %d: %s", err, f->diag.text);
    }
    kvd_pool_on_evicted(f->pool, fixture_evicted, f);
}

static void fixture_end(struct fixture *f)
{
    kvd_pool_close(&f->pool);
    (void)unlink(f->path);
    assert_int_equal(rmdir(f->folder), 0);
}

static inline struct kvd_addr addr_of(uint32_t n)
{
    struct kvd_addr addr = {.rank = (uint16_t)(n % 3)};
    /* keys are hashes: spread the number over the first bytes */
    kvd_put_le32(addr.key.b, n * 2654435761u);
    kvd_put_le32(addr.key.b + 8, n);
    return addr;
}

static inline struct kvd_slot_meta meta_of(uint32_t n, uint32_t payload_bytes)
{
    return (struct kvd_slot_meta){
        .addr = addr_of(n),
        .group = {.b = {(uint8_t)n, 7}},
        .index = n,
        .scenario = (uint16_t)(n % 4),
        .last_use_day = 100,
        .created_day = 90,
        .put_id = UINT64_C(1000000) + n,
        .header_bytes = HEADER_BYTES,
        .payload_bytes = payload_bytes,
    };
}

/* Every 64th byte says the number: enough to see a foreign slot, and quick. */
static inline void bytes_write(uint8_t *at, uint32_t bytes, uint32_t n)
{
    for (uint32_t i = 0; i + 4 <= bytes; i += 64) {
        kvd_put_le32(at + i, n);
    }
}

static inline bool bytes_right(const uint8_t *at, uint32_t bytes, uint32_t n)
{
    for (uint32_t i = 0; i + 4 <= bytes; i += 64) {
        if (kvd_get_le32(at + i) != n) {
            return false;
        }
    }
    return true;
}

/* Puts block n; leaves it pinned (caller unpins) in *ret. */
static inline int block_put(struct kvd_pool *pool, uint32_t n, uint32_t payload_bytes,
                            struct kvd_slot **ret)
{
    struct kvd_slot *slot;
    const struct kvd_slot_meta meta = meta_of(n, payload_bytes);
    int err = kvd_pool_alloc(pool, HEADER_BYTES + (uint64_t)payload_bytes, meta.scenario, &slot);
    if (err) {
        return err;
    }
    bytes_write(slot->base, HEADER_BYTES + payload_bytes, n);
    err = kvd_pool_publish(pool, slot, &meta);
    if (err) {
        kvd_pool_cancel(pool, slot);
        return err;
    }
    *ret = slot;
    return 0;
}

static inline int block_put_unpinned(struct kvd_pool *pool, uint32_t n, uint32_t payload_bytes)
{
    struct kvd_slot *slot;
    const int err = block_put(pool, n, payload_bytes, &slot);
    if (!err) {
        kvd_pool_unpin(pool, slot);
    }
    return err;
}

static inline struct kvd_slot *block_pin(struct kvd_pool *pool, uint32_t n)
{
    const struct kvd_addr addr = addr_of(n);
    return kvd_pool_pin(pool, &addr);
}

static inline bool block_there(struct kvd_pool *pool, uint32_t n)
{
    const struct kvd_addr addr = addr_of(n);
    return kvd_pool_contains(pool, &addr);
}

/* Bytes that the file takes of its file system. */
static inline uint64_t file_taken(const struct fixture *f)
{
    struct stat st;
    assert_int_equal(stat(f->path, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

#endif
