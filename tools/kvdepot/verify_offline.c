/* A store's segments, read without a daemon: see verify_offline.h. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/kvdepot/verify_offline.h"

#include "proto/base/bytes.h"
#include "proto/base/cleanup.h"
#include "proto/base/clock.h"
#include "proto/format/segment.h"
#include "tools/kvdepot/store.h"

enum {
    TOKENS_MAX = KVD_RECORD_BLOCKS_MAX * KVD_BLOCK_TOKENS_MAX,
    NAME_BYTES = 96,
    EXTENT_MAX = KVD_RECORD_PAYLOAD_MAX + (1 << 20), /* no record is longer */
};

struct offline {
    bool (*stop)(void);
    json_t *bad;
    uint64_t records;
    uint64_t bytes;
    uint64_t n_bad;
    uint64_t newer;
    uint64_t skipped; /* files that aren't this store's, or can't be read */
    struct kvd_store_id store;
    bool store_known;
    uint8_t *buf;
    uint64_t buf_bytes;
    uint32_t *tokens;
    struct kvd_diag *diag;
};

struct file {
    char name[NAME_BYTES]; /* class/slice-epoch-number.seg */
    int fd;
    uint64_t bytes;
    struct kvd_segment_header header;
};

static void offline_fini(struct offline *o)
{
    json_decref(o->bad);
    free(o->buf);
    free(o->tokens);
}

/* What keeps daemons away while this reads: the store's folder, and that of its segments. */
struct locks {
    int top;
    int below;
};

static void locks_fini(struct locks *l)
{
    kvd_close_fd(&l->top);
    kvd_close_fd(&l->below);
}

static void file_fini(struct file *f)
{
    kvd_close_fd(&f->fd);
}

/* Whole pages at an offset, into buf. -KVD_E_IO at the file's end. */
static int read_at(struct offline *o, const struct file *f, uint64_t offset, uint64_t bytes)
{
    if (bytes > o->buf_bytes) {
        uint8_t *buf = realloc(o->buf, bytes);
        if (!buf) {
            return -ENOMEM;
        }
        o->buf = buf;
        o->buf_bytes = bytes;
    }
    for (uint64_t have = 0; have < bytes;) {
        ssize_t n = pread(f->fd, o->buf + have, bytes - have, (off_t)(offset + have));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return n < 0 ? -errno : -KVD_E_IO;
        }
        have += (uint64_t)n;
    }
    return 0;
}

static void report_bad(struct offline *o, const struct file *f, const struct kvd_segment_row *row,
                       const char *reason)
{
    char hex[KVD_KEY_HEX] = "";
    if (row) {
        kvd_hex(row->first_key.b, KVD_KEY_BYTES, hex);
    }
    o->n_bad++;
    (void)json_array_append_new(
        o->bad,
        json_pack("{s:s,s:s,s:I,s:I,s:s,s:i,s:I,s:i,s:s}", "tier", "nvme", "file", f->name,
                  "segment", (json_int_t)f->header.number, "offset",
                  (json_int_t)(row ? row->offset : 0), "key", hex, "rank", row ? (int)row->rank : 0,
                  "put_id", (json_int_t)(row ? row->put_id : 0), "when_s", 0, "reason", reason));
}

/* ---- records ---- */

static int check_bytes(struct offline *o, const struct kvd_segment_row *row, struct kvd_diag *diag)
{
    struct kvd_record rec;
    uint32_t header_bytes = 0;
    int err =
        kvd_record_decode(o->buf, row->extent_bytes, o->tokens, TOKENS_MAX, &rec, &header_bytes);
    if (err) {
        return kvd_fail(diag, err == -KVD_E_NEWER ? err : -KVD_E_CORRUPT, "header: %s",
                        kvd_strerror(err));
    }
    err = kvd_segment_row_check(row, &rec, diag);
    return err ? err
           : kvd_record_check_stored(&rec, o->buf + header_bytes)
               ? kvd_fail(diag, -KVD_E_CORRUPT, "the payload doesn't match its sum")
               : 0;
}

static int check_listed(struct offline *o, const struct file *f, const struct kvd_segment_row *row)
{
    struct kvd_diag diag = {{0}};
    int err = row->extent_bytes > EXTENT_MAX ? -KVD_E_CORRUPT
                                             : read_at(o, f, row->offset, row->extent_bytes);
    if (err == -ENOMEM) {
        return err;
    }
    if (err) {
        (void)kvd_fail(&diag, err, "%s", kvd_strerror(err));
    } else {
        o->bytes += row->extent_bytes;
        err = check_bytes(o, row, &diag);
    }
    o->newer += err == -KVD_E_NEWER;
    o->records += err != -KVD_E_NEWER;
    if (err && err != -KVD_E_NEWER) {
        report_bad(o, f, row, diag.text);
    }
    return o->stop() ? -EINTR : 0;
}

static int check_footer(struct offline *o, const struct file *f)
{
    KVD_AUTOFREE struct kvd_segment_row *rows = NULL;
    uint64_t footer_bytes = 0;
    uint32_t n = 0;
    int err = f->bytes % KVD_ALIGN_BYTES
                  ? -KVD_E_FORMAT
                  : read_at(o, f, f->bytes - KVD_ALIGN_BYTES, KVD_ALIGN_BYTES);
    err = err ? err : kvd_segment_footer_probe(o->buf, f->bytes, &footer_bytes);
    err = err ? err : read_at(o, f, f->bytes - footer_bytes, footer_bytes);
    err = err ? err : kvd_segment_footer_decode(o->buf, footer_bytes, &rows, &n);
    for (uint32_t i = 0; i < n && !err; i++) {
        err = check_listed(o, f, &rows[i]);
    }
    return err;
}

/* Records one after another. Where nothing whole follows, a segment that wasn't sealed ends: what a
 * daemon that was killed left there is its business. But a good header with another payload is a
 * bad record. */
static int check_scan(struct offline *o, const struct file *f)
{
    uint64_t at = KVD_SEGMENT_HEADER_BYTES;
    for (;;) {
        struct kvd_record rec;
        struct kvd_segment_row row;
        uint32_t header_bytes = 0;
        int err = read_at(o, f, at, KVD_ALIGN_BYTES);
        err = err ? err
                  : kvd_record_decode(o->buf, KVD_ALIGN_BYTES, o->tokens, TOKENS_MAX, &rec,
                                      &header_bytes);
        if (err == -KVD_E_TOO_LONG && header_bytes > KVD_ALIGN_BYTES) {
            err = read_at(o, f, at, header_bytes);
            err = err ? err
                      : kvd_record_decode(o->buf, header_bytes, o->tokens, TOKENS_MAX, &rec,
                                          &header_bytes);
        }
        if (err) {
            o->newer += err == -KVD_E_NEWER;
            return err == -ENOMEM ? err : 0;
        }
        kvd_segment_row_of(&rec, at, &row);
        if (row.extent_bytes > f->bytes - at) {
            return 0;
        }
        err = check_listed(o, f, &row);
        if (err) {
            return err;
        }
        at += row.extent_bytes;
    }
}

/* ---- segments ---- */

/* What the header says the file's name is. */
static bool name_agrees(const struct file *f)
{
    char name[NAME_BYTES];
    (void)snprintf(name, sizeof(name), "%u/%" PRIu64 "-%" PRIu64 "-%" PRIu64 ".seg",
                   (unsigned)f->header.scenario, f->header.slice_s, f->header.epoch,
                   f->header.number);
    return strcmp(name, f->name) == 0;
}

static int check_segment(struct offline *o, struct file *f)
{
    int err = read_at(o, f, 0, KVD_SEGMENT_HEADER_BYTES);
    if (err == -ENOMEM) {
        return err;
    }
    err = err ? err : kvd_segment_header_decode(o->buf, KVD_SEGMENT_HEADER_BYTES, &f->header);
    if (err == -KVD_E_NEWER) {
        o->newer++;
        return 0;
    }
    if (err) {
        report_bad(o, f, NULL, "the segment's own header is damaged");
        return 0;
    }
    bool ours = !o->store_known || memcmp(&o->store, &f->header.store, sizeof(o->store)) == 0;
    if (!ours || !name_agrees(f)) {
        o->skipped++;
        return 0;
    }
    err = check_footer(o, f);
    if (err == -KVD_E_NEWER) {
        o->newer++;
        return 0;
    }
    if (err == -KVD_E_CORRUPT) {
        report_bad(o, f, NULL, "the segment's own footer is damaged");
    }
    return err == -KVD_E_FORMAT || err == -KVD_E_CORRUPT ? check_scan(o, f) : err;
}

static int check_file(struct offline *o, int root, const char *folder, const char *name)
{
    KVD_CLEANUP(file_fini) struct file f = {.fd = -1};
    struct stat st;
    size_t n = strlen(name);
    if (n < 5 || strcmp(name + n - 4, ".seg") != 0 ||
        snprintf(f.name, sizeof(f.name), "%s/%s", folder, name) >= (int)sizeof(f.name)) {
        return 0;
    }
    f.fd = openat(root, f.name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (f.fd < 0 || fstat(f.fd, &st) != 0) {
        o->skipped++;
        return 0;
    }
    f.bytes = (uint64_t)st.st_size;
    return check_segment(o, &f);
}

/* ---- the folder ---- */

static void closedir_p(DIR **dir)
{
    if (*dir) {
        (void)closedir(*dir);
    }
}

static int check_class(struct offline *o, int root, const char *folder)
{
    int fd = openat(root, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    KVD_CLEANUP(closedir_p) DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    int err = 0;
    for (struct dirent *e = dir ? readdir(dir) : NULL; e && !err; e = readdir(dir)) {
        err = check_file(o, root, folder, e->d_name);
    }
    return err;
}

static int check_folder(struct offline *o, int root)
{
    KVD_CLEANUP(closedir_p) DIR *dir = fdopendir(dup(root));
    int err = dir ? 0 : -errno;
    for (struct dirent *e = dir ? readdir(dir) : NULL; e && !err; e = readdir(dir)) {
        if (e->d_name[0] && e->d_name[strspn(e->d_name, "0123456789")] == 0) {
            err = check_class(o, root, e->d_name);
        }
    }
    return err;
}

/* A daemon holds its folders' LOCK; whoever only reads shares it with others who do. */
static int lock_shared(int folder, const char *path, struct kvd_diag *diag, int *ret_fd)
{
    int fd = openat(folder, "LOCK", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        return 0; /* a copy of a folder may have none; no daemon is on it then */
    }
    if (flock(fd, LOCK_SH | LOCK_NB) != 0) {
        (void)close(fd);
        return kvd_fail(diag, -KVD_E_IN_USE,
                        "%s is in use: a daemon has it; ask that one (kvdepot verify --socket "
                        "PATH), or stop it",
                        path);
    }
    *ret_fd = fd;
    return 0;
}

/* The store that the folder's IDENTITY names, where it can be read. */
static void read_store(struct offline *o, const char *path)
{
    struct kvd_identity id;
    o->store_known = kvd_store_identity(path, NULL, &id) == 0;
    if (o->store_known) {
        o->store = id.store;
    }
}

/* kvdepotd's folder without segments in it: to read nothing there, and call it good, is no help. */
static int segments_elsewhere(struct offline *o, int top, const char *path)
{
    if (faccessat(top, "index", F_OK, 0) != 0) {
        return 0;
    }
    return kvd_fail(
        o->diag, -KVD_E_NOT_FOUND,
        "%s has no segments: they are where kvdepotd's nvme.path says; name that folder", path);
}

static int open_folders(struct offline *o, const char *path, int *ret_root, struct locks *ret_locks)
{
    KVD_AUTOCLOSE int top = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (top < 0) {
        int err = -errno;
        return kvd_fail(o->diag, err, "%s: %s; name a store's folder", path, kvd_strerror(err));
    }
    if (faccessat(top, "IDENTITY", R_OK, 0) != 0) {
        return kvd_fail(o->diag, -KVD_E_NOT_FOUND,
                        "%s has no IDENTITY that can be read: name a store's folder (kvdepotd's "
                        "dir, or nvme.path)",
                        path);
    }
    read_store(o, path);
    int err = lock_shared(top, path, o->diag, &ret_locks->top);
    int below = openat(top, "nvme", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (!err && below >= 0) {
        err = lock_shared(below, path, o->diag, &ret_locks->below);
    }
    err = err || below >= 0 ? err : segments_elsewhere(o, top, path);
    if (err) {
        kvd_close_fd(&below);
        return err;
    }
    *ret_root = below >= 0 ? below : kvd_take_fd(&top);
    return 0;
}

static json_t *report_of(struct offline *o, uint64_t seconds)
{
    return json_pack(
        "{s:i,s:b,s:{s:i,s:i,s:I,s:[{s:s,s:I,s:I,s:I,s:I,s:I,s:I}]},s:I,s:O}", "schema", 1,
        "running", 0, "now", "round", 0, "ended_s", 1, "seconds", (json_int_t)seconds, "tiers",
        "name", "nvme", "records", (json_int_t)o->records, "expected", (json_int_t)o->records,
        "bytes", (json_int_t)o->bytes, "bad", (json_int_t)o->n_bad, "newer", (json_int_t)o->newer,
        "skipped", (json_int_t)o->skipped, "quarantined", (json_int_t)o->n_bad, "bad", o->bad);
}

int kvd_verify_offline(const char *folder, bool (*stop)(void), json_t **ret_report,
                       struct kvd_diag *diag)
{
    KVD_CLEANUP(offline_fini) struct offline o = {.stop = stop, .diag = diag};
    KVD_AUTOCLOSE int root = -1;
    KVD_CLEANUP(locks_fini) struct locks locks = {-1, -1};
    uint64_t began_ns = kvd_mono_ns();
    o.bad = json_array();
    o.tokens = malloc(TOKENS_MAX * sizeof(*o.tokens));
    if (!o.bad || !o.tokens) {
        return kvd_fail(diag, -ENOMEM, "out of memory");
    }
    int err = open_folders(&o, folder, &root, &locks);
    if (err) {
        return err;
    }
    err = check_folder(&o, root);
    if (err) {
        return kvd_fail(diag, err, "%s: %s", folder, kvd_strerror(err));
    }
    *ret_report = report_of(&o, (kvd_mono_ns() - began_ns) / KVD_NS_PER_S);
    return *ret_report ? 0 : kvd_fail(diag, -ENOMEM, "out of memory");
}
