/*
 * Start-up of the nvme tier. The rows say which segments there should be, the folder says which
 * files there are:
 *
 *   row      file                      then
 *   SEALED   there                     live; not read
 *   OPEN     there                     the last run ended without sealing it: read, sealed
 *   none     there, ours               the rows are lost, or the last run ended just then: the same
 *   DYING    there or not              unlinked, DEAD
 *   DEAD     there                     unlinked
 *   live     not there                 DEAD, lost
 *   none     not ours, or newer        left alone, counted, said in the log
 *   any      header damaged            with a row: DEAD, corrupt; else left alone
 *   none     blank header, no footer   unlinked: a power cut came before its first sync
 *   OPEN     blank, and nothing in it  the same
 *
 * What is left alone counts against the cap all the same: the cap is about the folder. A file that
 * can't be opened or read is left alone too, and its row as it is: the next start tries again.
 *
 * Reading a segment reports each of its records, after its row. With a footer the records it lists
 * are reported; without one those that a scan finds, up to the first that isn't whole; what lies
 * behind is cut off. Doing it twice reports the same records again.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cachesvc/tier/nvme_private.h"
#include "proto/base/cleanup.h"
#include "proto/base/protect.h"

struct recovery {
    struct nvme *t;
    struct nvme_segment **by_name; /* the rows, by epoch and number */
    uint32_t n_by_name;
    bool *seen;                       /* whose file was found; by the index in by_name */
    struct kvd_segment_info *orphans; /* files without a row */
    uint32_t n_orphans;
    uint32_t orphans_cap;
};

static int name_order(const struct kvd_segment_info *a, const struct kvd_segment_info *b)
{
    if (a->epoch != b->epoch) {
        return a->epoch < b->epoch ? -1 : 1;
    }
    return a->number < b->number ? -1 : a->number > b->number;
}

static int by_name_order(const void *a, const void *b)
{
    return name_order(&(*(struct nvme_segment *const *)a)->info,
                      &(*(struct nvme_segment *const *)b)->info);
}

static int segment_order(const void *a, const void *b)
{
    uint64_t x = ((const struct kvd_segment_info *)a)->segment;
    uint64_t y = ((const struct kvd_segment_info *)b)->segment;
    return x < y ? -1 : x > y;
}

static int orphan_order(const void *a, const void *b)
{
    const struct kvd_segment_info *x = a;
    const struct kvd_segment_info *y = b;
    return name_order(x, y);
}

static void hear_time(struct nvme *t, uint64_t s)
{
    if (s > t->now_s) {
        t->now_s = s;
    }
}

static void close_fd(struct nvme *t, struct nvme_segment *seg)
{
    if (seg->fd >= 0) {
        (void)close(seg->fd);
        seg->fd = -1;
        t->open_fds--;
    }
}

/* In memory; the row is reported by whoever means it to last. */
static void set_dead(struct nvme *t, struct nvme_segment *seg, enum kvd_gone_reason reason)
{
    kvd_nvme_charge(t, seg, 0);
    if (seg->info.state != KVD_SEGMENT_DYING) { /* else time and reason are known */
        seg->info.gone = (uint8_t)reason;
        seg->info.died_s = t->now_s;
    }
    seg->info.state = KVD_SEGMENT_DEAD;
    close_fd(t, seg);
}

/* Says that a file stays as it is, and counts it: as a later version's, or as not ours. */
static void leave_alone(struct nvme *t, const struct kvd_segment_info *info, bool newer,
                        const char *why)
{
    char name[KVD_SEGMENT_NAME_BYTES];
    struct stat st;
    kvd_segment_name(info, name);
    uint64_t bytes = 0;
    if (fstatat(t->root_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        bytes = kvd_segment_stat_bytes(&st);
    }
    t->used_bytes += bytes;
    *(newer ? &t->newer_bytes : &t->foreign_bytes) += bytes;
    *(newer ? &t->newer_files : &t->foreign_files) += 1;
    kvd_log_warn(t->log, "nvme: %s is left alone: %s", name, why);
}

/* The same for a segment that is read as far as this version can. */
static void keep_newer(struct nvme *t, struct nvme_segment *seg)
{
    char name[KVD_SEGMENT_NAME_BYTES];
    kvd_segment_name(&seg->info, name);
    seg->newer = true;
    t->newer_bytes += seg->info.bytes;
    t->newer_files++;
    kvd_log_warn(t->log, "nvme: %s holds what a newer version wrote, and stays as it is", name);
}

static void unlink_file(struct nvme *t, const struct kvd_segment_info *info)
{
    int err = kvd_segment_file_unlink(t->io, t->root_fd, info);
    if (err) {
        leave_alone(t, info, false, kvd_strerror(err));
    }
}

/* ---- reading one segment ---- */

static int add_row(struct nvme_segment *seg, const struct kvd_record *rec, uint64_t offset)
{
    int err = kvd_nvme_reserve_row(seg, seg->n_rows);
    if (!err) {
        kvd_segment_row_of(rec, offset, &seg->rows[seg->n_rows++]);
    }
    return err;
}

static void report_record(struct nvme *t, const struct nvme_segment *seg, uint64_t offset,
                          uint32_t extent_bytes, const struct kvd_record *rec)
{
    const struct kvd_place place = {
        .segment = seg->info.segment, .offset = offset, .extent_bytes = extent_bytes};
    t->events.record_found(&place, rec, t->events.user);
}

/* Reports what the footer lists. One record that is damaged, or isn't the listed one, costs only
 * itself. *ret_newer: a later version's is among them. */
static int read_listed(struct nvme *t, struct nvme_segment *seg, struct kvd_segment_reader *r,
                       bool *ret_newer)
{
    KVD_AUTOFREE struct kvd_segment_row *rows = NULL;
    uint32_t n = 0;
    uint64_t end = 0;
    int err = kvd_segment_reader_footer(r, &rows, &n, &end);
    for (uint32_t i = 0; err == 0 && i < n; i++) {
        struct kvd_record rec;
        uint32_t extent;
        int bad = kvd_segment_reader_record(r, rows[i].offset, false, &rec, &extent);
        *ret_newer = *ret_newer || bad == -KVD_E_NEWER;
        if (bad == 0 && kvd_segment_row_check(&rows[i], &rec, NULL) == 0) {
            report_record(t, seg, rows[i].offset, extent, &rec);
        }
    }
    if (!err) {
        seg->info.records = n;
    }
    return err;
}

/* Reports every whole record from the header on, and collects rows for the footer. *ret_newer: it
 * ended at a record of a later version. */
static int scan(struct nvme *t, struct nvme_segment *seg, struct kvd_segment_reader *r,
                bool *ret_newer)
{
    seg->end = KVD_SEGMENT_HEADER_BYTES;
    for (;;) {
        struct kvd_record rec;
        uint32_t extent = 0;
        int err = kvd_segment_reader_record(r, seg->end, KVD_PROTECT(SCAN_SUMS), &rec, &extent);
        *ret_newer = *ret_newer || err == -KVD_E_NEWER;
        if (err && err != -ENOMEM) {
            return 0; /* here ends what is whole */
        }
        err = err ? err : add_row(seg, &rec, seg->end);
        if (err) {
            return err;
        }
        report_record(t, seg, seg->end, extent, &rec);
        seg->end += extent;
        seg->info.records++;
    }
}

/* The run that wrote it may have been killed before its sync. What will be reported must not go by
 * a power cut after the index has heard of it. */
static int sync_file(struct nvme *t, int fd)
{
    return KVD_PROTECT(SYNC_RECOVERED) ? kvd_io_transfer(t->io, KVD_IO_FDATASYNC, fd, NULL, 0, 0)
                                       : 0;
}

/* Reads a segment whose header is good, reports its row and its records, and leaves it SEALED, or
 * dead where it holds nothing. A segment that can't be sealed now is read all the same. One that
 * holds what a later version wrote is read as far as that goes, and its file stays as it is: a
 * footer of ours would cut off the rest. */
static int read_segment(struct nvme *t, struct nvme_segment *seg, struct kvd_segment_reader *r)
{
    int err = kvd_nvme_report(t, seg, false);
    if (err) {
        return err;
    }
    seg->info.records = 0;
    bool newer = false;
    int listed = read_listed(t, seg, r, &newer);
    newer = newer || listed == -KVD_E_NEWER;
    err = listed ? scan(t, seg, r, &newer) : 0;
    if (err) {
        return err;
    }
    if (newer && KVD_PROTECT(NEWER_LEFT_ALONE)) {
        keep_newer(t, seg);
    }
    if (listed == 0) {
        seg->info.state = KVD_SEGMENT_SEALED;
        return kvd_nvme_report(t, seg, false);
    }
    if (!seg->newer) {
        (void)kvd_nvme_seal(t, seg);
    }
    return 0;
}

/* ---- files without a row, and OPEN rows ---- */

/* Whether the header is the one of this name and store. */
static bool header_agrees(const struct nvme *t, const struct kvd_segment_header *h,
                          const struct kvd_segment_info *info, const char **ret_why)
{
    *ret_why = memcmp(h->store.b, t->store.b, KVD_STORE_ID_BYTES) != 0 ? "it is another store's"
               : h->seed != t->seed ? "its keys have another seed"
               : h->epoch != info->epoch || h->number != info->number ||
                       h->slice_s != info->slice_s || h->scenario != info->scenario
                   ? "its header and its name differ"
                   : NULL;
    return *ret_why == NULL;
}

struct opened {
    struct kvd_segment_reader reader;
    int fd;
    uint64_t charge_bytes;
    struct kvd_segment_header header;
    int header_err;
    bool blank;
};

static void opened_fini(struct opened *o)
{
    kvd_segment_reader_fini(&o->reader);
    kvd_close_fd(&o->fd);
}

/* 0: header_err says whether the header is good or damaged. Else the file can't be read now, or
 * -KVD_E_NEWER. */
static int open_and_read_header(struct nvme *t, const struct kvd_segment_info *info,
                                struct opened *o)
{
    uint64_t size = 0;
    int err = kvd_segment_file_open(t->io, t->root_fd, info, &o->fd);
    err = err ? err : kvd_segment_file_bytes(o->fd, &size, &o->charge_bytes);
    err = err ? err : kvd_segment_reader_init(&o->reader, t->io, o->fd, size);
    if (err) {
        return err;
    }
    err = kvd_segment_reader_header(&o->reader, &o->header, &o->blank);
    bool damaged = err == -KVD_E_FORMAT || err == -KVD_E_CORRUPT || err == -KVD_E_IO;
    o->header_err = damaged ? err : 0;
    return damaged ? 0 : err;
}

static void take_header(struct nvme *t, struct nvme_segment *seg, struct opened *o)
{
    seg->info.slice_len_s = o->header.slice_len_s;
    seg->info.created_s = o->header.created_s;
    seg->info.state = KVD_SEGMENT_OPEN;
    hear_time(t, o->header.created_s);
    kvd_nvme_charge(t, seg, o->charge_bytes);
    seg->fd = kvd_take_fd(&o->fd);
    t->open_fds++;
}

/* Whether there is anything in a file: a footer with rows, or a first record. What a later version
 * wrote is something. */
static bool has_records(struct kvd_segment_reader *r)
{
    KVD_AUTOFREE struct kvd_segment_row *rows = NULL;
    uint32_t n = 0;
    uint64_t end;
    int err = kvd_segment_reader_footer(r, &rows, &n, &end);
    if (err == 0) {
        return n > 0;
    }
    struct kvd_record rec;
    uint32_t extent;
    int first = kvd_segment_reader_record(r, KVD_SEGMENT_HEADER_BYTES, true, &rec, &extent);
    return err == -KVD_E_NEWER || first == 0 || first == -KVD_E_NEWER;
}

/* A segment with a row OPEN and a damaged header. A blank one, and nothing behind it, is what a
 * power cut leaves of a segment that was just made. */
static int give_up(struct nvme *t, struct nvme_segment *seg, struct opened *o)
{
    bool new = o->blank && !has_records(&o->reader);
    if (!new) {
        kvd_log_error(t->log, "nvme: segment %" PRIu64 " is given up: its header is damaged",
                      seg->info.segment);
    }
    set_dead(t, seg, new ? KVD_GONE_NOT : KVD_GONE_CORRUPT);
    unlink_file(t, &seg->info);
    return kvd_nvme_report(t, seg, false);
}

/* A segment that has a row OPEN. */
static int recover_open(struct nvme *t, struct nvme_segment *seg)
{
    KVD_CLEANUP(opened_fini) struct opened o = {.fd = -1};
    const char *why = NULL;
    int err = open_and_read_header(t, &seg->info, &o);
    err = err || o.header_err ? err : sync_file(t, o.fd);
    if (err == -ENOMEM) {
        return err;
    }
    if (err || (o.header_err == 0 && !header_agrees(t, &o.header, &seg->info, &why))) {
        leave_alone(t, &seg->info, err == -KVD_E_NEWER, err ? kvd_strerror(err) : why);
        set_dead(t, seg, KVD_GONE_LOST);
        return 0;
    }
    if (o.header_err == 0) {
        take_header(t, seg, &o);
        err = read_segment(t, seg, &o.reader);
        close_fd(t, seg);
        return err;
    }
    return give_up(t, seg, &o);
}

/* Whether no sync of a file without a row ever ended: the first one makes the header durable
 * together with the first records, and a footer comes later. Nothing of what may lie behind was
 * promised. */
static bool never_synced(struct opened *o)
{
    KVD_AUTOFREE struct kvd_segment_row *rows = NULL;
    uint32_t n = 0;
    uint64_t end;
    if (!o->header_err || !o->blank) {
        return false;
    }
    int err = kvd_segment_reader_footer(&o->reader, &rows, &n, &end);
    return err == -KVD_E_FORMAT || err == -KVD_E_CORRUPT;
}

static int recover_orphan(struct nvme *t, const struct kvd_segment_info *info)
{
    KVD_CLEANUP(opened_fini) struct opened o = {.fd = -1};
    const char *why = "its header is damaged";
    int err = open_and_read_header(t, info, &o);
    if (err == -ENOMEM) {
        return err;
    }
    if (err == 0 && never_synced(&o)) {
        unlink_file(t, info); /* the last run ended while it was being made */
        return 0;
    }
    if (err || o.header_err || !header_agrees(t, &o.header, info, &why)) {
        leave_alone(t, info, err == -KVD_E_NEWER, err ? kvd_strerror(err) : why);
        return 0;
    }
    if (!has_records(&o.reader)) {
        unlink_file(t, info);
        return 0;
    }
    err = sync_file(t, o.fd);
    if (err) {
        leave_alone(t, info, false, kvd_strerror(err));
        return 0;
    }
    struct kvd_segment_info row = *info;
    row.segment = t->next_segment;
    struct nvme_segment *seg = kvd_nvme_add(t, &row);
    if (!seg) {
        return -ENOMEM;
    }
    take_header(t, seg, &o);
    err = read_segment(t, seg, &o.reader);
    close_fd(t, seg);
    return err;
}

/* ---- the folder ---- */

static int add_orphan(struct recovery *rc, const struct kvd_segment_info *info)
{
    if (rc->n_orphans == rc->orphans_cap) {
        uint32_t cap = rc->orphans_cap ? 2 * rc->orphans_cap : 64;
        struct kvd_segment_info *orphans = realloc(rc->orphans, cap * sizeof(*orphans));
        if (!orphans) {
            return -ENOMEM;
        }
        rc->orphans = orphans;
        rc->orphans_cap = cap;
    }
    rc->orphans[rc->n_orphans++] = *info;
    return 0;
}

/* Index in by_name of the row of a file, or -1. */
static int64_t row_of(const struct recovery *rc, const struct kvd_segment_info *info)
{
    uint32_t low = 0;
    uint32_t high = rc->n_by_name;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        int order = name_order(&rc->by_name[mid]->info, info);
        if (order == 0) {
            bool same = rc->by_name[mid]->info.scenario == info->scenario &&
                        rc->by_name[mid]->info.slice_s == info->slice_s;
            return same ? (int64_t)mid : -1;
        }
        if (order < 0) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return -1;
}

static int note_file(struct recovery *rc, const char *folder, const char *file)
{
    struct kvd_segment_info info;
    if (!kvd_segment_name_parse(folder, file, &info)) {
        return 0;
    }
    int64_t row = row_of(rc, &info);
    if (row < 0) {
        return KVD_PROTECT(UNKNOWN_SEGMENT_READ) ? add_orphan(rc, &info) : 0;
    }
    rc->seen[row] = true;
    return 0;
}

static void closedir_p(DIR **dir)
{
    if (*dir) {
        (void)closedir(*dir);
    }
}

/* Calls for each entry of a folder; folder "." is the tier's own. */
static int walk_folder(struct recovery *rc, const char *folder,
                       int (*fn)(struct recovery *rc, const char *folder, const char *name))
{
    int fd = openat(rc->t->root_fd, folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        return errno == ENOTDIR || errno == ELOOP ? 0 : -errno;
    }
    KVD_CLEANUP(closedir_p) DIR *dir = fdopendir(fd);
    if (!dir) {
        int err = -errno;
        (void)close(fd);
        return err;
    }
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (!entry) {
            return -errno;
        }
        int err = fn(rc, folder, entry->d_name);
        if (err) {
            return err;
        }
    }
}

static int note_folder(struct recovery *rc, const char *folder, const char *name)
{
    (void)folder;
    bool number = name[0] >= '0' && name[0] <= '9' && strlen(name) <= 5 &&
                  name[strspn(name, "0123456789")] == 0;
    return number ? walk_folder(rc, name, note_file) : 0;
}

/* ---- rows ---- */

static int load_rows(struct recovery *rc, const struct kvd_segment_info *known, uint32_t n_known)
{
    KVD_AUTOFREE struct kvd_segment_info *sorted = calloc(n_known + 1, sizeof(*sorted));
    rc->by_name = calloc(n_known + 1, sizeof(struct nvme_segment *));
    rc->seen = calloc(n_known + 1, sizeof(*rc->seen));
    if (!sorted || !rc->by_name || !rc->seen) {
        return -ENOMEM;
    }
    if (n_known > 0) {
        memcpy(sorted, known, n_known * sizeof(*sorted));
        qsort(sorted, n_known, sizeof(*sorted), segment_order);
    }
    for (uint32_t i = 0; i < n_known; i++) {
        if (i > 0 && sorted[i].segment == sorted[i - 1].segment) {
            continue; /* a row twice is no news */
        }
        hear_time(rc->t, sorted[i].created_s);
        hear_time(rc->t, sorted[i].died_s);
        if (KVD_PROTECT(USAGE_OF_FILES)) {
            sorted[i].bytes = 0; /* until its file is seen */
        }
        struct nvme_segment *seg = kvd_nvme_add(rc->t, &sorted[i]);
        if (!seg) {
            return -ENOMEM;
        }
        rc->by_name[rc->n_by_name++] = seg;
    }
    qsort(rc->by_name, rc->n_by_name, sizeof(struct nvme_segment *), by_name_order);
    return 0;
}

static int keep_sealed(struct nvme *t, struct nvme_segment *seg)
{
    KVD_AUTOCLOSE int fd = -1;
    uint64_t size;
    uint64_t charge = 0;
    int err = kvd_segment_file_open(t->io, t->root_fd, &seg->info, &fd);
    err = err ? err : kvd_segment_file_bytes(fd, &size, &charge);
    if (err && KVD_PROTECT(MISSING_IS_LOST)) {
        leave_alone(t, &seg->info, false, kvd_strerror(err));
        set_dead(t, seg, KVD_GONE_LOST);
    } else if (KVD_PROTECT(SEALED_ARE_COUNTED)) {
        kvd_nvme_charge(t, seg, charge);
    }
    return 0;
}

/* The file of a row that is DYING or DEAD goes, unless another store's has taken its name. */
static int finish_death(struct nvme *t, struct nvme_segment *seg, bool has_file)
{
    KVD_CLEANUP(opened_fini) struct opened o = {.fd = -1};
    const char *why = NULL;
    if (has_file && open_and_read_header(t, &seg->info, &o) == 0 && o.header_err == 0 &&
        !header_agrees(t, &o.header, &seg->info, &why)) {
        leave_alone(t, &seg->info, false, why);
    } else if (has_file) {
        unlink_file(t, &seg->info);
    }
    if (seg->info.state == KVD_SEGMENT_DEAD) {
        return 0;
    }
    set_dead(t, seg, KVD_GONE_LOST);
    return kvd_nvme_report(t, seg, false);
}

static int settle_row(struct nvme *t, struct nvme_segment *seg, bool has_file)
{
    uint8_t state = seg->info.state;
    if (state == KVD_SEGMENT_DYING || state == KVD_SEGMENT_DEAD) {
        return finish_death(t, seg, has_file);
    }
    if (!has_file && KVD_PROTECT(MISSING_IS_LOST)) {
        kvd_log_error(t->log, "nvme: the file of segment %" PRIu64 " is gone", seg->info.segment);
        set_dead(t, seg, KVD_GONE_LOST);
        return kvd_nvme_report(t, seg, false);
    }
    bool sealed = state == KVD_SEGMENT_SEALED || !KVD_PROTECT(OPEN_SEGMENT_READ);
    return sealed ? keep_sealed(t, seg) : recover_open(t, seg);
}

static int settle_all(struct recovery *rc)
{
    int err = 0;
    for (uint32_t i = 0; i < rc->n_by_name && !err; i++) {
        err = settle_row(rc->t, rc->by_name[i], rc->seen[i]);
    }
    if (rc->n_orphans > 0) {
        qsort(rc->orphans, rc->n_orphans, sizeof(*rc->orphans), orphan_order);
    }
    for (uint32_t i = 0; i < rc->n_orphans && !err; i++) {
        err = recover_orphan(rc->t, &rc->orphans[i]);
    }
    return err;
}

int kvd_nvme_recover(struct nvme *t, const struct kvd_segment_info *known, uint32_t n_known,
                     struct kvd_diag *diag)
{
    struct recovery rc = {.t = t};
    (void)pthread_mutex_lock(&t->change);
    int err = load_rows(&rc, known, n_known);
    err = err ? err : walk_folder(&rc, ".", note_folder);
    if (!err && KVD_PROTECT(SYNC_CLASS_FOLDERS_FOUND)) {
        /* a run that was killed may have made a class's folder and not come to the sync */
        err = t->io->files->sync_folder(t->io, t->root_fd);
    }
    err = err ? err : settle_all(&rc);
    if (!err && KVD_PROTECT(CAP_AT_START)) {
        err = kvd_nvme_make_room(t, 0);     /* the cap may be lower than in the last run */
        err = err == -KVD_E_FULL ? 0 : err; /* left-alone files exceed it: nothing is written */
    }
    (void)pthread_mutex_unlock(&t->change);
    free(rc.by_name);
    free(rc.seen);
    free(rc.orphans);
    return err ? kvd_fail(diag, err, "nvme: what is in the folder can't be read: %s",
                          kvd_strerror(err))
               : 0;
}
