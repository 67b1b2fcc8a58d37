/* The index's insides, for the files of this folder only. */
#ifndef CACHESVC_INDEX_INTERNAL_H
#define CACHESVC_INDEX_INTERNAL_H

#include <pthread.h>
#include <rocksdb/c.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cachesvc/index/index.h"
#include "proto/base/assert.h"
#include "proto/base/list.h"

/* Column families, in the order they are opened. RocksDB insists on "default", which stays empty.
 */
enum index_family {
    FAMILY_DEFAULT,
    FAMILY_BLOCKS,
    FAMILY_SPACES,
    FAMILY_SEGMENTS,
    FAMILY_META,
    FAMILY_COUNT
};

/* RocksDB and the objects that it was opened with. */
struct index_store {
    rocksdb_t *db;
    rocksdb_column_family_handle_t *families[FAMILY_COUNT];
    rocksdb_options_t *db_options;
    rocksdb_options_t *family_options[FAMILY_COUNT];
    rocksdb_cache_t *cache;
    rocksdb_compactionfilter_t *filter;
    rocksdb_readoptions_t *read_group; /* within one group: prefix filters apply */
    rocksdb_readoptions_t *read_all;   /* walks: any order, leaves the cache alone */
    rocksdb_writeoptions_t *write;     /* unsynced */
};

enum op_kind { OP_CHANGES, OP_ROW, OP_SYNC };

/* One thing for the writer thread. OP_CHANGES is allocated and freed by the writer; the others lie
 * on the stack of a caller that waits. */
struct index_op {
    struct kvd_list link; /* lock: index.mtx */
    enum op_kind kind;
    bool sync;
    bool finished; /* lock: index.mtx */
    int result;
    kvd_index_done_fn *done;
    void *user;
    enum index_family family; /* OP_ROW */
    const void *key;
    uint32_t key_bytes;
    const void *value; /* NULL: delete */
    uint32_t value_bytes;
    uint32_t n; /* OP_CHANGES */
    struct kvd_index_change changes[];
};

enum { INDEX_MAGIC = 0x49445831 };

struct kvd_index {
    uint32_t magic;
    struct index_store store;
    struct kvd_log *log;
    char *path;
    uint64_t cache_bytes;

    pthread_mutex_t mtx;
    pthread_cond_t work;     /* to the writer: the queue has something, or stopping */
    pthread_cond_t finished; /* to those who wait for an op */
    struct kvd_list queue;   /* lock: mtx */
    uint64_t waiting;        /* changes queued and not yet written; lock: mtx */
    bool stopping;           /* lock: mtx */
    bool writer_runs;        /* owner: open and close */
    pthread_t writer;
    int failed; /* first failed change since a sync told of it; owner: writer */

    pthread_mutex_t store_mtx;
    pthread_cond_t unread; /* the last reader is out */
    uint32_t readers;      /* lock: store_mtx. Who uses `store`, but for the writer thread */
    bool closing;          /* lock: store_mtx. No new readers */
    atomic_bool broken;    /* RocksDB takes no writes until it is opened anew */
    uint64_t retry_ns;     /* owner: writer. Not before this time */
    uint64_t failed_mends; /* owner: writer */
    atomic_uint_fast64_t mended;

    pthread_rwlock_t forget_lock;
    kvd_index_forget_fn *forget; /* lock: forget_lock */
    void *forget_user;           /* lock: forget_lock */

    atomic_uint_fast64_t undecodable;
    atomic_uint_fast64_t read_errors;
    atomic_uint_fast64_t failed_writes;
};

static inline enum index_family index_family_of(enum kvd_index_table table)
{
    KVD_ASSERT(table <= KVD_INDEX_META);
    return (enum index_family)(FAMILY_SPACES + (unsigned)table);
}

/* Which occurrences of a fault are logged: the 1st, 2nd, 4th, … A broken disk must not fill the
 * log. */
static inline bool index_worth_a_line(uint64_t nth)
{
    return (nth & (nth - 1)) == 0;
}

/* store.c. *store is zeroed before; close accepts what a failed open left. */
int index_store_open(struct index_store *store, const char *path, uint64_t cache_bytes,
                     rocksdb_compactionfilter_t *filter, struct kvd_diag *diag);
/* Whether the folder takes writes now. */
int index_store_probe(const char *path, struct kvd_diag *diag);
void index_store_close(struct index_store *store);

/* Frees RocksDB's error text, counts and now and then logs it. Returns -KVD_E_IO. */
int index_read_failed(struct kvd_index *index, char *error);

/* An entry's value as it was read; false when it doesn't decode, which is counted. */
bool index_entry_read(struct kvd_index *index, const void *value, size_t bytes,
                      struct kvd_index_entry *ret);

/* mend.c. The store for a reader, until _put; false: it is closed. */
bool index_store_get(struct kvd_index *index);
void index_store_put(struct kvd_index *index);
/* Writing failed. */
void index_broken(struct kvd_index *index);
/* On the writer thread, before each batch: 0, or -KVD_E_IO as long as nothing can be written. */
int index_mend(struct kvd_index *index);

/* index.c. A compaction filter for opening the store; the store owns it. */
rocksdb_compactionfilter_t *index_filter(struct kvd_index *index);

/* writer.c */
int index_writer_start(struct kvd_index *index);
void index_writer_stop(struct kvd_index *index); /* writes what is queued first */

#endif
