/* What the tests of the index share: a folder, an open index, chains of keys, single changes. */
#ifndef TESTS_UNIT_INDEX_INDEX_TEST_H
#define TESTS_UNIT_INDEX_INDEX_TEST_H

#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <unistd.h>

#include "cachesvc/index/entry.h"
#include "cachesvc/index/index.h"
#include "cachesvc/index/internal.h"
#include "kvd_test.h"

enum { CACHE_BYTES = 8 << 20 };

struct bench {
    char folder[64];
    char path[80]; /* of the index */
    struct kvd_index *index;
};

static inline int bench_open_index(struct bench *b, struct kvd_diag *diag)
{
    struct kvd_index_options options = {.path = b->path, .cache_bytes = CACHE_BYTES};
    return kvd_index_open(&options, diag, &b->index);
}

static inline void bench_must_open(struct bench *b)
{
    struct kvd_diag diag = {""};
    if (bench_open_index(b, &diag) != 0) {
        fail_msg("%s", diag.text);
    }
}

static inline int bench_setup_closed(void **state)
{
    struct bench *b = calloc(1, sizeof(*b));
    (void)snprintf(b->folder, sizeof(b->folder), "/tmp/kvd-index-XXXXXX");
    assert_non_null(mkdtemp(b->folder));
    (void)snprintf(b->path, sizeof(b->path), "%s/index", b->folder);
    *state = b;
    return 0;
}

static inline int bench_setup(void **state)
{
    (void)bench_setup_closed(state);
    bench_must_open(*state);
    return 0;
}

static inline int bench_remove_one(const char *path, const struct stat *st, int type,
                                   struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static inline int bench_teardown(void **state)
{
    struct bench *b = *state;
    kvd_index_close(&b->index);
    assert_null(b->index);
    assert_int_equal(nftw(b->folder, bench_remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
    free(b);
    return 0;
}

/* Keys of a chain of n blocks: block i holds token `tokens(i)`. Chains that begin with the same
 * numbers share keys. */
static inline void chain_make(uint32_t fork_at, uint32_t fork, uint32_t n, struct kvd_key *ret_keys)
{
    static const struct kvd_key root = {{1}};
    const struct kvd_key *parent = &root;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t token = i < fork_at ? i : i + 1000000 * (fork + 1);
        kvd_key_block(42, parent, &token, 1, &ret_keys[i]);
        parent = &ret_keys[i];
    }
}

static inline struct kvd_index_id id_of(const struct kvd_key *keys, uint32_t index, uint16_t rank)
{
    struct kvd_index_id id = {.index = index, .key = keys[index], .rank = rank};
    kvd_group_of(keys, index, &id.group);
    return id;
}

static inline struct kvd_index_entry entry_at(uint64_t segment, uint64_t offset)
{
    struct kvd_index_entry e = {.segment = segment,
                                .offset = offset,
                                .extent_bytes = 8192,
                                .block_in_record = 3,
                                .scenario = 1,
                                .last_use_day = 20000,
                                .created_day = 19999,
                                .put_id = segment * 1000 + offset};
    return e;
}

static inline void assert_entry_equal(const struct kvd_index_entry *a,
                                      const struct kvd_index_entry *b)
{
    assert_int_equal(a->segment, b->segment);
    assert_int_equal(a->offset, b->offset);
    assert_int_equal(a->extent_bytes, b->extent_bytes);
    assert_int_equal(a->block_in_record, b->block_in_record);
    assert_int_equal(a->scenario, b->scenario);
    assert_int_equal(a->last_use_day, b->last_use_day);
    assert_int_equal(a->created_day, b->created_day);
    assert_int_equal(a->put_id, b->put_id);
    assert_int_equal(a->gone, b->gone);
    assert_int_equal(a->gone_s, b->gone_s);
}

static inline void submit(struct bench *b, const struct kvd_index_change *changes, uint32_t n)
{
    assert_int_equal(kvd_index_submit(b->index, changes, n, NULL, NULL), 0);
}

static inline void put_chain(struct bench *b, const struct kvd_key *keys, uint32_t first,
                             uint32_t n, uint16_t rank)
{
    for (uint32_t i = first; i < first + n; i++) {
        struct kvd_index_change c = {.kind = KVD_INDEX_PUT,
                                     .id = id_of(keys, i, rank),
                                     .entry = entry_at(7, (uint64_t)i * 4096)};
        submit(b, &c, 1);
    }
    assert_int_equal(kvd_index_sync(b->index, false), 0);
}

/* Looks up one block. */
static inline uint8_t find(struct bench *b, const struct kvd_key *keys, uint32_t index,
                           uint16_t rank, struct kvd_index_entry *ret)
{
    uint8_t found = 99;
    assert_int_equal(kvd_index_lookup(b->index, keys, index, 1, rank, ret, &found), 0);
    return found;
}

#endif
