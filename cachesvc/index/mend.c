/*
 * An index that can't be written. After a failed write RocksDB refuses all others until it is
 * opened anew. So the writer thread closes it and opens it again, as soon as its folder takes
 * writes; until then reads go on where RocksDB still gives them, and changes fail. What RocksDB had
 * reported as written is read back from its log.
 *
 * Closing must find no reader. Readers count themselves in and out (index_store_get, _put); while
 * the store is closed, or is about to be, they are told so at once instead of waiting.
 */
#include <errno.h>
#include <time.h>

#include "cachesvc/index/internal.h"
#include "proto/base/clock.h"
#include "proto/base/protect.h"

enum { READERS_WAIT_S = 2 };
#define RETRY_NS KVD_NS_PER_S

bool index_store_get(struct kvd_index *index)
{
    (void)pthread_mutex_lock(&index->store_mtx);
    bool open = !index->closing && index->store.db;
    index->readers += open;
    (void)pthread_mutex_unlock(&index->store_mtx);
    return open;
}

void index_store_put(struct kvd_index *index)
{
    (void)pthread_mutex_lock(&index->store_mtx);
    if (--index->readers == 0) {
        (void)pthread_cond_signal(&index->unread);
    }
    (void)pthread_mutex_unlock(&index->store_mtx);
}

bool kvd_index_writable(struct kvd_index *index)
{
    return !atomic_load(&index->broken);
}

void index_broken(struct kvd_index *index)
{
    atomic_store(&index->broken, true);
}

/* Keeps new readers out and waits for those inside. False: some stay too long. */
static bool keep_readers_out(struct kvd_index *index)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += READERS_WAIT_S;
    int err = 0;
    (void)pthread_mutex_lock(&index->store_mtx);
    index->closing = true;
    while (index->readers > 0 && err == 0) {
        err = pthread_cond_timedwait(&index->unread, &index->store_mtx, &until);
    }
    index->closing = index->readers == 0;
    bool out = index->closing;
    (void)pthread_mutex_unlock(&index->store_mtx);
    return out;
}

static void let_readers_in(struct kvd_index *index)
{
    (void)pthread_mutex_lock(&index->store_mtx);
    index->closing = false;
    (void)pthread_mutex_unlock(&index->store_mtx);
}

static int reopen(struct kvd_index *index, struct kvd_diag *diag)
{
    if (!keep_readers_out(index)) {
        return kvd_fail(diag, -KVD_E_BUSY, "index: %s is still being read", index->path);
    }
    index_store_close(&index->store);
    int err =
        index_store_open(&index->store, index->path, index->cache_bytes, index_filter(index), diag);
    if (err) {
        index_store_close(&index->store);
    }
    let_readers_in(index);
    return err;
}

int index_mend(struct kvd_index *index)
{
    struct kvd_diag diag = {{0}};
    if (!atomic_load(&index->broken)) {
        return 0;
    }
    if (!KVD_PROTECT(INDEX_IS_MENDED) || kvd_mono_ns() < index->retry_ns) {
        return -KVD_E_IO;
    }
    index->retry_ns = kvd_mono_ns() + RETRY_NS;
    /* else closing would only lose the reads too */
    int err = index_store_probe(index->path, &diag);
    err = err ? err : reopen(index, &diag);
    if (err) {
        if (diag.text[0] && index_worth_a_line(++index->failed_mends)) {
            kvd_log_error(index->log, "%s; it is tried again every second", diag.text);
        }
        return -KVD_E_IO;
    }
    atomic_store(&index->broken, false);
    index->retry_ns = 0;
    atomic_fetch_add(&index->mended, 1);
    kvd_log_warn(index->log, "index: %s was opened anew, and takes changes again", index->path);
    return 0;
}
