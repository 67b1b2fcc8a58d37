/*
 * The table of purges and its file. A purge is durable before it is in the table: a row that could
 * not be written hides nothing. The file is appended to; it is written anew, through a new file
 * that takes its place, when it is missing, when rows in it are of no use any more, and when an
 * append failed, because nobody knows what that left.
 */
#include "cachesvc/core/purges.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cachesvc/core/purge_table.h"
#include "proto/base/assert.h"
#include "proto/base/cleanup.h"
#include "proto/base/protect.h"

enum { PURGES_MAGIC = 0x4b564450 };

static const char file_name[] = "PURGES";

struct kvd_purges {
    uint32_t magic;
    struct kvd_io *io;
    struct kvd_log *log;
    struct kvd_store_id store;
    char *path; /* of the folder, for people */
    int folder;
    uint32_t damaged;

    pthread_mutex_t change; /* one purge at a time; held while the device is waited for */
    uint32_t file_rows;     /* lock: change */
    bool rewrite;           /* lock: change. The file must not be appended to */

    pthread_rwlock_t lock;       /* leaf */
    struct purge_table table;    /* lock: lock to read, change and lock to write */
    atomic_uint_fast64_t newest; /* = table.newest */
};

/* ---- the file ---- */

static int file_write_anew(struct kvd_purges *p, const struct purge_table *t)
{
    uint64_t bytes = kvd_purge_log_bytes(t->n);
    KVD_AUTOFREE uint8_t *file = malloc(bytes);
    if (!file) {
        return -ENOMEM;
    }
    kvd_purge_log_encode(&p->store, t->rows, t->n, file);
    int err = kvd_io_file_replace(p->io, p->folder, file_name, file, bytes);
    p->rewrite = err != 0; /* the old one, or the new one, but nobody knows which */
    p->file_rows = err ? p->file_rows : t->n;
    return err;
}

/* After a failed append: a row of it that reached the device must not hide anything after a
 * restart, since its purge was said to have failed. */
static void file_cut_off(struct kvd_purges *p, int fd)
{
    p->rewrite = true;
    int err = p->io->files->truncate(p->io, fd, kvd_purge_log_bytes(p->file_rows));
    if (!err && KVD_PROTECT(SYNC_FAILED_PURGE)) {
        err = kvd_io_transfer(p->io, KVD_IO_FDATASYNC, fd, NULL, 0, 0);
    }
    if (err) {
        kvd_log_warn(p->log,
                     "%s/%s: what a failed purge left can't be cut off: %s; it may hold after a "
                     "restart",
                     p->path, file_name, kvd_strerror(err));
    }
}

static int file_append(struct kvd_purges *p, const struct kvd_purge_row *rows, uint32_t n)
{
    KVD_AUTOFREE uint8_t *bytes = malloc((size_t)n * KVD_PURGE_ROW_BYTES);
    if (!bytes) {
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        kvd_purge_row_encode(&rows[i], bytes + (size_t)i * KVD_PURGE_ROW_BYTES);
    }
    KVD_AUTOCLOSE int fd = p->io->files->open(p->io, p->folder, file_name, O_WRONLY | O_NOFOLLOW);
    if (fd < 0) {
        return fd;
    }
    int err = kvd_io_transfer(p->io, KVD_IO_WRITE, fd, bytes, (uint64_t)n * KVD_PURGE_ROW_BYTES,
                              kvd_purge_log_bytes(p->file_rows));
    if (!err && KVD_PROTECT(SYNC_PURGE)) {
        err = kvd_io_transfer(p->io, KVD_IO_FDATASYNC, fd, NULL, 0, 0);
    }
    if (err) {
        file_cut_off(p, fd);
        return err;
    }
    p->file_rows += n;
    return 0;
}

/* 0 with *ret_bytes NULL where there is no file. */
static int file_read(struct kvd_purges *p, uint8_t **ret_bytes, uint64_t *ret_n)
{
    struct stat st;
    KVD_AUTOCLOSE int fd = p->io->files->open(p->io, p->folder, file_name, O_RDONLY | O_NOFOLLOW);
    if (fd == -ENOENT) {
        return 0;
    }
    if (fd < 0 || fstat(fd, &st)) {
        return fd < 0 ? fd : -errno;
    }
    uint64_t n = (uint64_t)st.st_size;
    if (n > kvd_purge_log_bytes(KVD_PURGE_ROWS_MAX + 1)) {
        return -KVD_E_TOO_LONG;
    }
    KVD_AUTOFREE uint8_t *bytes = malloc(n + 1);
    if (!bytes) {
        return -ENOMEM;
    }
    int err = n ? kvd_io_transfer(p->io, KVD_IO_READ, fd, bytes, n, 0) : 0;
    if (!err) {
        *ret_bytes = KVD_TAKE(bytes);
        *ret_n = n;
    }
    return err;
}

/* ---- opening ---- */

static int log_refuse(const struct kvd_purges *p, int err, struct kvd_diag *diag)
{
    if (err == -KVD_E_NEWER) {
        return kvd_fail(diag, err,
                        "%s/%s is of a newer version, and may hide blocks from this one's users; "
                        "use a newer kvdepotd",
                        p->path, file_name);
    }
    if (err == -KVD_E_FORMAT || err == -KVD_E_TOO_LONG) {
        return kvd_fail(diag, err,
                        "%s/%s is no log of purges; restore it, or, where nothing was ever purged, "
                        "move it away",
                        p->path, file_name);
    }
    return kvd_fail(diag, err,
                    "%s/%s can't be read: %s; without it, what was purged would be "
                    "served again",
                    p->path, file_name, kvd_strerror(err));
}

/* Damaged rows: all that they can have meant. */
static void log_repair(struct kvd_purges *p, const struct kvd_purge_log *log, uint64_t last_put_id,
                       struct kvd_purge_row *ret)
{
    p->damaged = log->damaged;
    *ret = (struct kvd_purge_row){.what = {.scope = KVD_PURGE_ALL},
                                  .cut = log->damaged_cut < last_put_id ? log->damaged_cut
                                                                        : last_put_id};
    kvd_log_error(p->log,
                  "%s/%s: %u rows are damaged; nobody knows whose blocks they purged, so all that "
                  "was stored before them is taken as purged",
                  p->path, file_name, log->damaged);
}

static int log_take(struct kvd_purges *p, const struct kvd_purge_log *log, uint64_t last_put_id,
                    struct kvd_diag *diag)
{
    struct kvd_purge_row repair;
    if (log->known_store && memcmp(&log->store, &p->store, sizeof(p->store)) != 0) {
        return kvd_fail(diag, -KVD_E_WRONG_STORE,
                        "%s/%s is another store's; bring back this store's own", p->path,
                        file_name);
    }
    if (log->damaged) {
        log_repair(p, log, last_put_id, &repair);
    }
    int err = purge_table_make(log->rows, log->n_rows, &repair, log->damaged ? 1 : 0, &p->table);
    if (err) {
        return log_refuse(p, err, diag);
    }
    atomic_store(&p->newest, p->table.newest);
    p->rewrite = false;
    p->file_rows = log->n_rows;
    if (log->appended || log->damaged) {
        err = file_write_anew(p, &p->table);
        if (err) { /* the next purge tries again; until then the next start reads what this one did
                    */
            kvd_log_warn(p->log, "%s/%s can't be written anew: %s", p->path, file_name,
                         kvd_strerror(err));
        }
    }
    return 0;
}

static int log_open(struct kvd_purges *p, uint64_t last_put_id, struct kvd_diag *diag)
{
    KVD_AUTOFREE uint8_t *bytes = NULL;
    uint64_t n = 0;
    struct kvd_purge_log log = {0};
    int err = file_read(p, &bytes, &n);
    if (err) {
        return log_refuse(p, err, diag);
    }
    if (!bytes) {
        p->rewrite = true;
        return purge_table_make(NULL, 0, NULL, 0, &p->table);
    }
    err = kvd_purge_log_decode(bytes, n, &log);
    err = err ? log_refuse(p, err, diag) : log_take(p, &log, last_put_id, diag);
    free(log.rows);
    return err;
}

int kvd_purges_open(const struct kvd_purges_options *options, struct kvd_diag *diag,
                    struct kvd_purges **ret)
{
    KVD_CLEANUP(kvd_purges_close) struct kvd_purges *p = calloc(1, sizeof(*p));
    if (!p) {
        return kvd_fail(diag, -ENOMEM, "out of memory");
    }
    KVD_MAGIC_SET(p, PURGES_MAGIC);
    (void)pthread_mutex_init(&p->change, NULL);
    (void)pthread_rwlock_init(&p->lock, NULL);
    atomic_init(&p->newest, 0);
    p->io = options->io;
    p->log = options->log;
    p->store = options->store;
    p->path = strdup(options->folder);
    p->folder = p->io->files->open(p->io, AT_FDCWD, options->folder, O_RDONLY | O_DIRECTORY);
    if (!p->path || p->folder < 0) {
        int err = p->path ? p->folder : -ENOMEM;
        return kvd_fail(diag, err, "folder %s: %s", options->folder, kvd_strerror(err));
    }
    int err = log_open(p, options->first_put_id - 1, diag);
    if (!err) {
        *ret = KVD_TAKE(p);
    }
    return err;
}

void kvd_purges_close(struct kvd_purges **purges)
{
    struct kvd_purges *p = *purges;
    if (!p) {
        return;
    }
    KVD_MAGIC_CHECK(p, PURGES_MAGIC);
    purge_table_fini(&p->table);
    kvd_close_fd(&p->folder);
    (void)pthread_rwlock_destroy(&p->lock);
    (void)pthread_mutex_destroy(&p->change);
    KVD_MAGIC_CLEAR(p);
    free(p->path);
    free(p);
    *purges = NULL;
}

/* ---- adding, forgetting ---- */

/* lock: change. The new table is seen by all who ask from now on. */
static void table_set(struct kvd_purges *p, struct purge_table *fresh)
{
    struct purge_table old = p->table;
    (void)pthread_rwlock_wrlock(&p->lock);
    p->table = *fresh;
    (void)pthread_rwlock_unlock(&p->lock);
    atomic_store(&p->newest, fresh->newest);
    purge_table_fini(&old);
}

/* lock: change. */
static int add_rows(struct kvd_purges *p, const struct kvd_purge_row *rows, uint32_t n,
                    struct kvd_diag *diag)
{
    struct purge_table fresh;
    int err = purge_table_make(p->table.rows, p->table.n, rows, n, &fresh);
    if (err) {
        return kvd_fail(diag, err, "out of memory");
    }
    bool anew = p->rewrite || p->file_rows + n > KVD_PURGE_ROWS_MAX || fresh.n < p->table.n;
    if (fresh.n > KVD_PURGE_ROWS_MAX) {
        err = kvd_fail(diag, -KVD_E_FULL,
                       "%d purges are remembered, which is the limit; purge the tenant, the space "
                       "or everything instead",
                       KVD_PURGE_ROWS_MAX);
    } else {
        err = anew ? file_write_anew(p, &fresh) : file_append(p, rows, n);
        if (err) {
            err = kvd_fail(diag, err, "%s/%s can't be written: %s; nothing was purged", p->path,
                           file_name, kvd_strerror(err));
        }
    }
    if (err) {
        purge_table_fini(&fresh);
        return err;
    }
    table_set(p, &fresh);
    return 0;
}

int kvd_purges_add(struct kvd_purges *purges, const struct kvd_purge_what *what, uint32_t n,
                   uint64_t when_s, uint64_t (*next_put_id)(void *user), void *user,
                   struct kvd_diag *diag, uint64_t *ret_cut)
{
    KVD_MAGIC_CHECK(purges, PURGES_MAGIC);
    KVD_ASSERT(n > 0);
    struct kvd_purge_row *rows = calloc(n, sizeof(*rows));
    if (!rows) {
        return kvd_fail(diag, -ENOMEM, "out of memory");
    }
    (void)pthread_mutex_lock(&purges->change);
    uint64_t cut = next_put_id(user);
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = (struct kvd_purge_row){.what = what[i], .nth = i, .cut = cut, .when_s = when_s};
    }
    int err = add_rows(purges, rows, n, diag);
    (void)pthread_mutex_unlock(&purges->change);
    free(rows);
    if (!err) {
        *ret_cut = cut;
    }
    return err;
}

int kvd_purges_forget(struct kvd_purges *purges, uint64_t cut)
{
    KVD_MAGIC_CHECK(purges, PURGES_MAGIC);
    struct purge_table fresh;
    int err = 0;
    (void)pthread_mutex_lock(&purges->change);
    uint32_t first = 0; /* cuts ascend */
    while (first < purges->table.n && purges->table.rows[first].cut < cut) {
        first++;
    }
    if (first > 0) {
        err =
            purge_table_make(purges->table.rows + first, purges->table.n - first, NULL, 0, &fresh);
        if (!err) {
            err = file_write_anew(purges, &fresh);
            if (err) {
                purge_table_fini(&fresh);
            } else {
                table_set(purges, &fresh);
            }
        }
    }
    (void)pthread_mutex_unlock(&purges->change);
    return err;
}

/* ---- asking ---- */

void kvd_purges_view(struct kvd_purges *purges, const struct kvd_digest *space,
                     const struct kvd_digest *tenant, struct kvd_purge_view *ret)
{
    KVD_MAGIC_CHECK(purges, PURGES_MAGIC);
    *ret = (struct kvd_purge_view){0};
    if (atomic_load(&purges->newest) == 0) {
        return;
    }
    (void)pthread_rwlock_rdlock(&purges->lock);
    ret->cut = purge_table_tenant_cut(&purges->table, space, tenant);
    ret->block_cut = purge_table_block_cut(&purges->table, space, tenant);
    (void)pthread_rwlock_unlock(&purges->lock);
}

bool kvd_purges_hides_block(struct kvd_purges *purges, const struct kvd_digest *space,
                            const struct kvd_digest *tenant, const struct kvd_key *key,
                            uint16_t rank, uint64_t put_id)
{
    if (put_id > atomic_load(&purges->newest)) {
        return false;
    }
    struct kvd_purge_what what = kvd_purge_what_of(KVD_PURGE_BLOCK, space, tenant, key, rank);
    (void)pthread_rwlock_rdlock(&purges->lock);
    uint64_t cut = purge_table_cut(&purges->table, &what);
    (void)pthread_rwlock_unlock(&purges->lock);
    return cut && put_id <= cut;
}

bool kvd_purges_hides(struct kvd_purges *purges, const struct kvd_digest *space,
                      const struct kvd_digest *tenant, const struct kvd_key *key, uint16_t rank,
                      uint64_t put_id)
{
    struct kvd_purge_view view;
    KVD_MAGIC_CHECK(purges, PURGES_MAGIC);
    if (put_id > atomic_load(&purges->newest)) {
        return false;
    }
    kvd_purges_view(purges, space, tenant, &view);
    return (view.cut && put_id <= view.cut) ||
           (put_id <= view.block_cut &&
            kvd_purges_hides_block(purges, space, tenant, key, rank, put_id));
}

uint64_t kvd_purges_newest(const struct kvd_purges *purges)
{
    KVD_MAGIC_CHECK(purges, PURGES_MAGIC);
    return atomic_load(&purges->newest);
}

uint64_t kvd_purges_all(struct kvd_purges *purges)
{
    KVD_MAGIC_CHECK(purges, PURGES_MAGIC);
    struct kvd_purge_what what = {.scope = KVD_PURGE_ALL};
    (void)pthread_rwlock_rdlock(&purges->lock);
    uint64_t cut = purge_table_cut(&purges->table, &what);
    (void)pthread_rwlock_unlock(&purges->lock);
    return cut;
}

void kvd_purges_stat(struct kvd_purges *purges, struct kvd_purges_stat *ret)
{
    KVD_MAGIC_CHECK(purges, PURGES_MAGIC);
    (void)pthread_rwlock_rdlock(&purges->lock);
    *ret = (struct kvd_purges_stat){.rows = purges->table.n, .damaged = purges->damaged};
    (void)pthread_rwlock_unlock(&purges->lock);
}
