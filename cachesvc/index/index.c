/* Opening and closing, walks, rows, the compaction filter, figures. Look-ups are in lookup.c,
 * changes in writer.c. */
#include "cachesvc/index/index.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cachesvc/index/entry.h"
#include "cachesvc/index/internal.h"
#include "proto/base/assert.h"
#include "proto/base/cleanup.h"
#include "proto/base/protect.h"

/* ---- reading ---- */

int index_read_failed(struct kvd_index *index, char *error)
{
    uint64_t nth = atomic_fetch_add(&index->read_errors, 1) + 1;
    if (index_worth_a_line(nth)) {
        kvd_log_error(index->log, "index: reading %s failed (%llu times so far): %s", index->path,
                      (unsigned long long)nth, error);
    }
    rocksdb_free(error);
    return -KVD_E_IO;
}

bool index_entry_read(struct kvd_index *index, const void *value, size_t bytes,
                      struct kvd_index_entry *ret)
{
    if (kvd_entry_decode(value, bytes, ret) == 0) {
        return true;
    }
    uint64_t nth = atomic_fetch_add(&index->undecodable, 1) + 1;
    if (index_worth_a_line(nth)) {
        kvd_log_warn(index->log,
                     "index: %s holds entries that this version cannot read (met %llu times so "
                     "far); they count as absent",
                     index->path, (unsigned long long)nth);
    }
    return false;
}

/* As walk_family, on an open store. */
static int walk_open(struct kvd_index *index, enum index_family family,
                     int (*fn)(const void *key, uint32_t key_bytes, const void *value,
                               uint32_t value_bytes, void *user),
                     void *user)
{
    const struct index_store *s = &index->store;
    rocksdb_iterator_t *it = rocksdb_create_iterator_cf(s->db, s->read_all, s->families[family]);
    int result = 0;
    rocksdb_iter_seek_to_first(it);
    while (!result && rocksdb_iter_valid(it)) {
        size_t key_bytes = 0;
        size_t value_bytes = 0;
        const char *key = rocksdb_iter_key(it, &key_bytes);
        const char *value = rocksdb_iter_value(it, &value_bytes);
        result = fn(key, (uint32_t)key_bytes, value, (uint32_t)value_bytes, user);
        rocksdb_iter_next(it);
    }
    char *error = NULL;
    rocksdb_iter_get_error(it, &error);
    rocksdb_iter_destroy(it);
    int err = error ? index_read_failed(index, error) : 0;
    return result ? result : err;
}

/* Calls fn for every row of a family, in order. */
static int walk_family(struct kvd_index *index, enum index_family family,
                       int (*fn)(const void *key, uint32_t key_bytes, const void *value,
                                 uint32_t value_bytes, void *user),
                       void *user)
{
    if (!index_store_get(index)) {
        return -KVD_E_IO;
    }
    int result = walk_open(index, family, fn, user);
    index_store_put(index);
    return result;
}

struct walk {
    struct kvd_index *index;
    int (*fn)(const struct kvd_index_id *id, const struct kvd_index_entry *entry, void *user);
    void *user;
};

static int walk_one(const void *key, uint32_t key_bytes, const void *value, uint32_t value_bytes,
                    void *user)
{
    const struct walk *w = user;
    struct kvd_index_id id;
    struct kvd_index_entry entry;
    if (kvd_entry_key_decode(key, key_bytes, &id) != 0 ||
        !index_entry_read(w->index, value, value_bytes, &entry)) {
        return 0;
    }
    return w->fn(&id, &entry, w->user);
}

int kvd_index_walk(struct kvd_index *index,
                   int (*fn)(const struct kvd_index_id *id, const struct kvd_index_entry *entry,
                             void *user),
                   void *user)
{
    KVD_MAGIC_CHECK(index, INDEX_MAGIC);
    struct walk w = {.index = index, .fn = fn, .user = user};
    return walk_family(index, FAMILY_BLOCKS, walk_one, &w);
}

int kvd_index_row_walk(struct kvd_index *index, enum kvd_index_table table,
                       int (*fn)(const void *key, uint32_t key_bytes, const void *value,
                                 uint32_t value_bytes, void *user),
                       void *user)
{
    KVD_MAGIC_CHECK(index, INDEX_MAGIC);
    return walk_family(index, index_family_of(table), fn, user);
}

int kvd_index_row_get(struct kvd_index *index, enum kvd_index_table table, const void *key,
                      uint32_t key_bytes, void **ret_value, uint32_t *ret_value_bytes)
{
    KVD_MAGIC_CHECK(index, INDEX_MAGIC);
    const struct index_store *s = &index->store;
    char *error = NULL;
    size_t bytes = 0;
    if (!index_store_get(index)) {
        return -KVD_E_IO;
    }
    char *value = rocksdb_get_cf(s->db, s->read_all, s->families[index_family_of(table)], key,
                                 key_bytes, &bytes, &error);
    index_store_put(index);
    if (error) {
        return index_read_failed(index, error);
    }
    if (!value) {
        return -KVD_E_NOT_FOUND;
    }
    *ret_value = value; /* RocksDB allocates it with malloc */
    *ret_value_bytes = (uint32_t)bytes;
    return 0;
}

/* ---- compaction ---- */

/* On RocksDB's threads. What can't be read is kept: a newer version may read it. */
static unsigned char filter_entry(void *state, int level, const char *key, size_t key_bytes,
                                  const char *value, size_t value_bytes, char **new_value,
                                  size_t *new_value_bytes, unsigned char *value_changed)
{
    struct kvd_index *index = state;
    struct kvd_index_entry entry;
    if (kvd_entry_decode(value, value_bytes, &entry) != 0) {
        return 0;
    }
    (void)pthread_rwlock_rdlock(&index->forget_lock);
    bool forget = index->forget && index->forget(&entry, index->forget_user);
    (void)pthread_rwlock_unlock(&index->forget_lock);
    return forget;
}

static const char *filter_name(void *state)
{
    return "kvdepot.forget";
}

static void filter_destroy(void *state)
{
    /* the state is the index itself, which owns the filter */
}

void kvd_index_on_compaction(struct kvd_index *index, kvd_index_forget_fn *fn, void *user)
{
    KVD_MAGIC_CHECK(index, INDEX_MAGIC);
    (void)pthread_rwlock_wrlock(&index->forget_lock);
    index->forget = fn;
    index->forget_user = user;
    (void)pthread_rwlock_unlock(&index->forget_lock);
}

/* ---- open, close, figures ---- */

rocksdb_compactionfilter_t *index_filter(struct kvd_index *index)
{
    return rocksdb_compactionfilter_create(index, filter_destroy, filter_entry, filter_name);
}

static int init(struct kvd_index *index, const struct kvd_index_options *options,
                struct kvd_diag *diag)
{
    index->path = strdup(options->path);
    if (!index->path) {
        return kvd_fail(diag, -ENOMEM, "index: out of memory");
    }
    index->cache_bytes = options->cache_bytes;
    int err = index_store_open(&index->store, options->path, options->cache_bytes,
                               index_filter(index), diag);
    if (err) {
        return err;
    }
    err = index_writer_start(index);
    return err ? kvd_fail(diag, err, "index: cannot start its thread: %s", kvd_strerror(err)) : 0;
}

int kvd_index_open(const struct kvd_index_options *options, struct kvd_diag *diag,
                   struct kvd_index **ret)
{
    KVD_CLEANUP(kvd_index_close) struct kvd_index *index = calloc(1, sizeof(*index));
    if (!index) {
        return kvd_fail(diag, -ENOMEM, "index: out of memory");
    }
    KVD_MAGIC_SET(index, INDEX_MAGIC);
    index->log = options->log;
    kvd_list_init(&index->queue);
    (void)pthread_mutex_init(&index->mtx, NULL);
    (void)pthread_cond_init(&index->work, NULL);
    (void)pthread_cond_init(&index->finished, NULL);
    (void)pthread_mutex_init(&index->store_mtx, NULL);
    (void)pthread_cond_init(&index->unread, NULL);
    (void)pthread_rwlock_init(&index->forget_lock, NULL);
    int err = init(index, options, diag);
    if (err) {
        return err;
    }
    *ret = KVD_TAKE(index);
    return 0;
}

void kvd_index_close(struct kvd_index **at)
{
    struct kvd_index *index = KVD_TAKE(*at);
    if (!index) {
        return;
    }
    KVD_MAGIC_CHECK(index, INDEX_MAGIC);
    if (index->writer_runs) {
        (void)kvd_index_sync(index, KVD_PROTECT(SYNC_INDEX_AT_CLOSE)); /* what failed was logged */
    }
    index_writer_stop(index);
    index_store_close(&index->store);
    (void)pthread_rwlock_destroy(&index->forget_lock);
    (void)pthread_cond_destroy(&index->unread);
    (void)pthread_mutex_destroy(&index->store_mtx);
    (void)pthread_cond_destroy(&index->finished);
    (void)pthread_cond_destroy(&index->work);
    (void)pthread_mutex_destroy(&index->mtx);
    KVD_MAGIC_CLEAR(index);
    free(index->path);
    free(index);
}

static uint64_t folder_bytes(const char *path)
{
    uint64_t bytes = 0;
    DIR *dir = opendir(path);
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir)) {
        struct stat st;
        if (fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode)) {
            bytes += (uint64_t)st.st_blocks * 512;
        }
    }
    if (dir) {
        (void)closedir(dir);
    }
    return bytes;
}

void kvd_index_stat(struct kvd_index *index, struct kvd_index_stat *ret)
{
    KVD_MAGIC_CHECK(index, INDEX_MAGIC);
    const struct index_store *s = &index->store;
    memset(ret, 0, sizeof(*ret));
    ret->readable = index_store_get(index);
    if (ret->readable) {
        (void)rocksdb_property_int_cf(s->db, s->families[FAMILY_BLOCKS],
                                      "rocksdb.estimate-num-keys", &ret->entries_estimate);
        index_store_put(index);
    }
    ret->writable = kvd_index_writable(index);
    ret->mended = atomic_load(&index->mended);
    (void)pthread_mutex_lock(&index->mtx);
    ret->queued = index->waiting;
    (void)pthread_mutex_unlock(&index->mtx);
    ret->disk_bytes = folder_bytes(index->path);
    ret->undecodable = atomic_load(&index->undecodable);
    ret->read_errors = atomic_load(&index->read_errors);
    ret->failed_writes = atomic_load(&index->failed_writes);
}
