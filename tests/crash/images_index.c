/*
 * What the index does, as marks in the record. RocksDB's own files don't pass through the I/O
 * interface, so its writes are seen where the store calls it, through the linker; their order among
 * all else is what counts. One thread writes the index, so the size of its log after a write is
 * that write's. And the promises that rest on it: an entry that was reported written, a segment
 * that may go from here on.
 */
#include <rocksdb/c.h>

#include "cachesvc/index/index.h"
#include "cachesvc/tier/tier.h"
#include "images_index.h"
#include "images_world.h"
#include "kvd_test.h"
#include "proto/base/assert.h"
#include "proto/base/bytes.h"

static struct {
    char history[WORLD_PATH_BYTES];
    char index[WORLD_PATH_BYTES];
    uint64_t nth;
    uint64_t shape;
} watch;

void images_index_watch(const char *history, uint64_t nth)
{
    (void)snprintf(watch.history, sizeof(watch.history), "%s", history);
    watch.nth = nth;
}

/* ---- RocksDB ---- */

rocksdb_t *__real_rocksdb_open_column_families(const rocksdb_options_t *options, const char *name,
                                               int n, const char *const *names,
                                               const rocksdb_options_t *const *family_options,
                                               rocksdb_column_family_handle_t **handles,
                                               char **error);
rocksdb_t *__wrap_rocksdb_open_column_families(const rocksdb_options_t *options, const char *name,
                                               int n, const char *const *names,
                                               const rocksdb_options_t *const *family_options,
                                               rocksdb_column_family_handle_t **handles,
                                               char **error);

rocksdb_t *__wrap_rocksdb_open_column_families(const rocksdb_options_t *options, const char *name,
                                               int n, const char *const *names,
                                               const rocksdb_options_t *const *family_options,
                                               rocksdb_column_family_handle_t **handles,
                                               char **error)
{
    for (int i = 0; i < n; i++) { /* they would change its files behind the copy */
        rocksdb_options_set_disable_auto_compactions(
            (rocksdb_options_t *)(uintptr_t)family_options[i], 1);
    }
    rocksdb_t *db = __real_rocksdb_open_column_families(options, name, n, names, family_options,
                                                        handles, error);
    if (!db) {
        return NULL;
    }
    struct world_index mark = {0};
    char root[WORLD_PATH_BYTES];
    char copy[WORLD_PATH_BYTES + 32];
    uint64_t seed;
    world_path(root, watch.history, "disk");
    assert_true(world_identity(root, &seed, &mark.boot));
    (void)snprintf(watch.index, sizeof(watch.index), "%s", name);
    (void)snprintf(copy, sizeof(copy), "%s/index-%u", watch.history, (unsigned)watch.nth);
    world_copy_index(name, copy);
    watch.shape = world_index_shape(name);
    (void)world_wal(name, mark.wal);
    (void)record_mark(MARK_INDEX_OPEN, watch.nth, &mark, sizeof(mark));
    return db;
}

void __real_rocksdb_write_writebatch_wi(rocksdb_t *db, const rocksdb_writeoptions_t *options,
                                        rocksdb_writebatch_wi_t *batch, char **error);
void __wrap_rocksdb_write_writebatch_wi(rocksdb_t *db, const rocksdb_writeoptions_t *options,
                                        rocksdb_writebatch_wi_t *batch, char **error);

void __wrap_rocksdb_write_writebatch_wi(rocksdb_t *db, const rocksdb_writeoptions_t *options,
                                        rocksdb_writebatch_wi_t *batch, char **error)
{
    char name[64];
    uint64_t id = record_mark(MARK_INDEX_WRITE, 0, NULL, 0);
    __real_rocksdb_write_writebatch_wi(db, options, batch, error);
    uint64_t bytes = world_wal(watch.index, name);
    /* only its log may have changed, or the copy with a cut log would be no image */
    KVD_ASSERT(world_index_shape(watch.index) == watch.shape);
    record_end(id, (int64_t)bytes);
}

void __real_rocksdb_flush_wal(rocksdb_t *db, unsigned char sync, char **error);
void __wrap_rocksdb_flush_wal(rocksdb_t *db, unsigned char sync, char **error);

void __wrap_rocksdb_flush_wal(rocksdb_t *db, unsigned char sync, char **error)
{
    char name[64];
    uint64_t bytes = world_wal(watch.index, name); /* the one thread that writes it is here */
    __real_rocksdb_flush_wal(db, sync, error);
    if (sync && !*error) {
        (void)record_mark(MARK_INDEX_SYNCED, bytes, NULL, 0);
    }
}

/* ---- promises ---- */

struct promise {
    kvd_index_done_fn *done;
    void *user;
    uint32_t n;
    struct kvd_index_change changes[];
};

static void promised(int result, void *user)
{
    struct promise *p = user;
    for (uint32_t i = 0; i < p->n && result == 0; i++) {
        const struct kvd_index_change *c = &p->changes[i];
        if (c->kind == KVD_INDEX_PUT && c->entry.segment) {
            (void)record_mark(MARK_PROMISED, c->entry.segment, c->id.key.b, KVD_KEY_BYTES);
        }
    }
    if (p->done) {
        p->done(result, p->user);
    }
    free(p);
}

int __real_kvd_index_submit(struct kvd_index *index, const struct kvd_index_change *changes,
                            uint32_t n, kvd_index_done_fn *done, void *user);
int __wrap_kvd_index_submit(struct kvd_index *index, const struct kvd_index_change *changes,
                            uint32_t n, kvd_index_done_fn *done, void *user);

int __wrap_kvd_index_submit(struct kvd_index *index, const struct kvd_index_change *changes,
                            uint32_t n, kvd_index_done_fn *done, void *user)
{
    struct promise *p = malloc(sizeof(*p) + n * sizeof(*changes));
    assert_non_null(p);
    *p = (struct promise){.done = done, .user = user, .n = n};
    memcpy(p->changes, changes, n * sizeof(*changes));
    int err = __real_kvd_index_submit(index, changes, n, promised, p);
    if (err) {
        free(p);
    }
    return err;
}

int __real_kvd_index_row_put(struct kvd_index *index, enum kvd_index_table table, const void *key,
                             uint32_t key_bytes, const void *value, uint32_t value_bytes,
                             bool sync);
int __wrap_kvd_index_row_put(struct kvd_index *index, enum kvd_index_table table, const void *key,
                             uint32_t key_bytes, const void *value, uint32_t value_bytes,
                             bool sync);

/* A segment's row: state and reason stand at bytes 1 and 2, its number is the key (see recover.c).
 */
int __wrap_kvd_index_row_put(struct kvd_index *index, enum kvd_index_table table, const void *key,
                             uint32_t key_bytes, const void *value, uint32_t value_bytes, bool sync)
{
    if (table == KVD_INDEX_SEGMENTS && value && ((const uint8_t *)value)[1] >= KVD_SEGMENT_DYING) {
        const uint8_t *k = key;
        uint64_t segment = (uint64_t)kvd_get_be32(k) << 32 | kvd_get_be32(k + 4);
        uint8_t gone = ((const uint8_t *)value)[2];
        KVD_ASSERT(gone != KVD_GONE_LOST && gone != KVD_GONE_CORRUPT); /* kills lose nothing */
        (void)record_mark(MARK_DYING, segment, NULL, 0);
    }
    return __real_kvd_index_row_put(index, table, key, key_bytes, value, value_bytes, sync);
}
