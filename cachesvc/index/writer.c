/*
 * The writer thread: takes what is queued, in order, works out what it makes of the entries, and
 * writes many changes as one batch. A batch that is being made is read together with the
 * database (a write batch with an index), so that changes of one entry see one another. Being the
 * only one that writes is what makes compare-and-set hold without a lock.
 *
 * A write that fails (a full disk) loses the changes; they describe a cache, so the daemon goes on,
 * tells those who asked, counts it, and now and then says so in the log. mend.c has what follows.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "cachesvc/index/entry.h"
#include "cachesvc/index/internal.h"
#include "proto/base/assert.h"

enum {
    WAITING_MAX = 65536,
    BATCH_MAX = 4096, /* changes a batch: some milliseconds of work */
};

/* ---- queueing: any thread ---- */

static void queue_locked(struct kvd_index *index, struct index_op *op)
{
    KVD_ASSERT(!index->stopping); /* the index outlives those who use it */
    index->waiting += op->n;
    kvd_list_push_back(&index->queue, &op->link);
    (void)pthread_cond_signal(&index->work);
}

int kvd_index_submit(struct kvd_index *index, const struct kvd_index_change *changes, uint32_t n,
                     kvd_index_done_fn *done, void *user)
{
    KVD_MAGIC_CHECK(index, INDEX_MAGIC);
    if (n > WAITING_MAX) {
        return -KVD_E_TOO_LONG;
    }
    struct index_op *op = calloc(1, sizeof(*op) + sizeof(*changes) * n);
    if (!op) {
        return -ENOMEM;
    }
    op->kind = OP_CHANGES;
    op->n = n;
    op->done = done;
    op->user = user;
    memcpy(op->changes, changes, sizeof(*changes) * n);
    (void)pthread_mutex_lock(&index->mtx);
    bool full = index->waiting + n > WAITING_MAX;
    if (!full) {
        queue_locked(index, op);
    }
    (void)pthread_mutex_unlock(&index->mtx);
    if (full) {
        free(op);
    }
    return full ? -KVD_E_BUSY : 0;
}

/* Queues an op that lies on the caller's stack and waits for it. No deadline: the writer refers to
 * the op until it has finished with it, and it finishes when the disk answers or fails. */
static int run(struct kvd_index *index, struct index_op *op)
{
    KVD_MAGIC_CHECK(index, INDEX_MAGIC);
    KVD_ASSERT(!pthread_equal(pthread_self(), index->writer)); /* it would wait for itself */
    (void)pthread_mutex_lock(&index->mtx);
    queue_locked(index, op);
    while (!op->finished) {
        (void)pthread_cond_wait(&index->finished, &index->mtx);
    }
    (void)pthread_mutex_unlock(&index->mtx);
    return op->result;
}

int kvd_index_sync(struct kvd_index *index, bool sync)
{
    struct index_op op = {.kind = OP_SYNC, .sync = sync};
    return run(index, &op);
}

int kvd_index_row_put(struct kvd_index *index, enum kvd_index_table table, const void *key,
                      uint32_t key_bytes, const void *value, uint32_t value_bytes, bool sync)
{
    struct index_op op = {.kind = OP_ROW,
                          .sync = sync,
                          .family = index_family_of(table),
                          .key = key,
                          .key_bytes = key_bytes,
                          .value = value,
                          .value_bytes = value_bytes};
    return run(index, &op);
}

/* ---- applying: the writer thread ---- */

/* Reads an entry, from the batch first. *ret_found false: there is none that can be read. */
static int read_entry(struct kvd_index *index, rocksdb_writebatch_wi_t *batch,
                      const uint8_t key[KVD_ENTRY_KEY_BYTES], struct kvd_index_entry *ret,
                      bool *ret_found)
{
    const struct index_store *s = &index->store;
    char *error = NULL;
    size_t bytes = 0;
    char *value = rocksdb_writebatch_wi_get_from_batch_and_db_cf(
        batch, s->db, s->read_group, s->families[FAMILY_BLOCKS], (const char *)key,
        KVD_ENTRY_KEY_BYTES, &bytes, &error);
    if (error) {
        return index_read_failed(index, error);
    }
    *ret_found = value && index_entry_read(index, value, bytes, ret);
    rocksdb_free(value);
    return 0;
}

static int apply_change(struct kvd_index *index, rocksdb_writebatch_wi_t *batch,
                        const struct kvd_index_change *change)
{
    struct kvd_index_entry old;
    struct kvd_index_entry new;
    uint8_t key[KVD_ENTRY_KEY_BYTES];
    uint8_t value[KVD_ENTRY_VALUE_BYTES];
    bool found = false;
    kvd_entry_key_encode(&change->id, key);
    int err = read_entry(index, batch, key, &old, &found);
    if (err || !kvd_entry_change(change, found ? &old : NULL, &new)) {
        return err;
    }
    kvd_entry_encode(&new, value);
    rocksdb_writebatch_wi_put_cf(batch, index->store.families[FAMILY_BLOCKS], (const char *)key,
                                 sizeof(key), (const char *)value, sizeof(value));
    return 0;
}

static void apply_row(struct kvd_index *index, rocksdb_writebatch_wi_t *batch,
                      const struct index_op *op)
{
    rocksdb_column_family_handle_t *family = index->store.families[op->family];
    if (op->value) {
        rocksdb_writebatch_wi_put_cf(batch, family, op->key, op->key_bytes, op->value,
                                     op->value_bytes);
    } else {
        rocksdb_writebatch_wi_delete_cf(batch, family, op->key, op->key_bytes);
    }
}

static void apply_op(struct kvd_index *index, rocksdb_writebatch_wi_t *batch, struct index_op *op)
{
    for (uint32_t i = 0; i < op->n; i++) {
        int err = apply_change(index, batch, &op->changes[i]);
        op->result = op->result ? op->result : err;
    }
    if (op->kind == OP_ROW) {
        apply_row(index, batch, op);
    }
}

static int write_failed(struct kvd_index *index, char *error)
{
    uint64_t nth = atomic_fetch_add(&index->failed_writes, 1) + 1;
    if (index_worth_a_line(nth)) {
        kvd_log_error(
            index->log,
            "index: writing to %s failed (%llu times so far): %s; what is put meanwhile stays in "
            "dram only, and is written down when it is used again; check the folder's free space",
            index->path, (unsigned long long)nth, error);
    }
    rocksdb_free(error);
    index_broken(index);
    return -KVD_E_IO;
}

static int write_batch(struct kvd_index *index, rocksdb_writebatch_wi_t *batch, bool sync)
{
    char *error = NULL;
    if (rocksdb_writebatch_wi_count(batch) > 0) {
        rocksdb_write_writebatch_wi(index->store.db, index->store.write, batch, &error);
    }
    if (!error && sync) {
        rocksdb_flush_wal(index->store.db, 1, &error);
    }
    return error ? write_failed(index, error) : 0;
}

/* Takes ops off the queue, up to a batch's worth. */
static void take_locked(struct kvd_index *index, struct kvd_list *ret_taken)
{
    uint64_t n = 0;
    kvd_list_init(ret_taken);
    while (!kvd_list_empty(&index->queue) && n < BATCH_MAX) {
        struct kvd_list *link = kvd_list_pop_front(&index->queue);
        n += KVD_CONTAINER_OF(link, struct index_op, link)->n;
        kvd_list_push_back(ret_taken, link);
    }
}

/* Results of a batch. A sync answers for every change since the last one. */
static uint64_t settle(struct kvd_index *index, struct kvd_list *taken, int err)
{
    uint64_t n = 0;
    kvd_list_foreach (it, taken) {
        struct index_op *op = KVD_CONTAINER_OF(it, struct index_op, link);
        n += op->n;
        op->result = op->result ? op->result : err;
        index->failed = index->failed ? index->failed : op->result;
        if (op->kind == OP_SYNC) {
            op->result = index->failed;
            index->failed = 0;
        }
    }
    return n;
}

/* Calls back and tells those who wait, in order, so that whoever has waited knows that what was
 * queued before is over, callbacks included. */
static void finish_op(struct kvd_index *index, struct index_op *op)
{
    if (op->kind == OP_CHANGES) {
        if (op->done) {
            op->done(op->result, op->user);
        }
        free(op);
        return;
    }
    (void)pthread_mutex_lock(&index->mtx);
    op->finished = true; /* its stack may be gone from the unlock on */
    (void)pthread_cond_broadcast(&index->finished);
    (void)pthread_mutex_unlock(&index->mtx);
}

static void finish(struct kvd_index *index, struct kvd_list *taken, uint64_t n)
{
    (void)pthread_mutex_lock(&index->mtx);
    index->waiting -= n;
    (void)pthread_mutex_unlock(&index->mtx);
    for (struct kvd_list *link = kvd_list_pop_front(taken); link;
         link = kvd_list_pop_front(taken)) {
        finish_op(index, KVD_CONTAINER_OF(link, struct index_op, link));
    }
}

static void write_taken(struct kvd_index *index, struct kvd_list *taken)
{
    int err = index_mend(index);
    if (err) {
        atomic_fetch_add(&index->failed_writes, 1);
        finish(index, taken, settle(index, taken, err));
        return;
    }
    rocksdb_writebatch_wi_t *batch = rocksdb_writebatch_wi_create(0, 1);
    bool sync = false;
    kvd_list_foreach (it, taken) {
        struct index_op *op = KVD_CONTAINER_OF(it, struct index_op, link);
        apply_op(index, batch, op);
        sync = sync || op->sync;
    }
    err = write_batch(index, batch, sync);
    rocksdb_writebatch_wi_destroy(batch);
    finish(index, taken, settle(index, taken, err));
}

static void *writer_main(void *arg)
{
    struct kvd_index *index = arg;
    struct kvd_list taken;
    (void)pthread_mutex_lock(&index->mtx);
    for (;;) {
        while (kvd_list_empty(&index->queue) && !index->stopping) {
            (void)pthread_cond_wait(&index->work, &index->mtx);
        }
        if (kvd_list_empty(&index->queue)) {
            break;
        }
        take_locked(index, &taken);
        (void)pthread_mutex_unlock(&index->mtx);
        write_taken(index, &taken);
        (void)pthread_mutex_lock(&index->mtx);
    }
    (void)pthread_mutex_unlock(&index->mtx);
    return NULL;
}

int index_writer_start(struct kvd_index *index)
{
    sigset_t all;
    sigset_t before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the program's */
    int err = -pthread_create(&index->writer, NULL, writer_main, index);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    index->writer_runs = err == 0;
    return err;
}

void index_writer_stop(struct kvd_index *index)
{
    if (!index->writer_runs) {
        return;
    }
    (void)pthread_mutex_lock(&index->mtx);
    index->stopping = true;
    (void)pthread_cond_signal(&index->work);
    (void)pthread_mutex_unlock(&index->mtx);
    (void)pthread_join(index->writer, NULL);
    index->writer_runs = false;
}
