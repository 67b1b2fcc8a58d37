/*
 * What a segment holds, for whoever reads everything over again. A sealed segment says it in its
 * footer, which is read here from the device on purpose: a footer that went bad is found by this,
 * not by the start that needs it. Of a segment that is still written the rows lie in memory.
 *
 * Descriptors are held for these few reads only, so that a segment that dies meanwhile gives its
 * bytes back at once.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cachesvc/tier/nvme_private.h"
#include "proto/base/assert.h"
#include "proto/base/cleanup.h"

/* The first live segment from a number on, and its rows where they lie in memory. */
static int find_open(struct nvme *t, uint64_t from, struct kvd_segment_records *ret)
{
    int err = -KVD_E_NOT_FOUND;
    (void)pthread_mutex_lock(&t->change);
    for (uint32_t i = 0; i < t->n_table && err == -KVD_E_NOT_FOUND; i++) {
        const struct nvme_segment *seg = t->table[i];
        if (seg->info.segment < from || !kvd_nvme_is_live(seg)) {
            continue;
        }
        err = 0;
        ret->info = seg->info;
        if (seg->info.state == KVD_SEGMENT_OPEN && seg->n_rows > 0) {
            ret->rows = calloc(seg->n_rows, sizeof(*ret->rows));
            err = ret->rows ? 0 : -ENOMEM;
            ret->n_rows = ret->rows ? seg->n_rows : 0;
            if (ret->rows) {
                memcpy(ret->rows, seg->rows, seg->n_rows * sizeof(*ret->rows));
            }
        }
    }
    (void)pthread_mutex_unlock(&t->change);
    return err;
}

/* Rows by the records' own headers, up to the first that can't be read. */
static int rows_by_headers(struct kvd_segment_reader *r, struct kvd_segment_records *ret)
{
    uint32_t cap = 0;
    for (uint64_t at = KVD_SEGMENT_HEADER_BYTES;;) {
        struct kvd_record rec;
        uint32_t extent = 0;
        int err = kvd_segment_reader_record(r, at, false, &rec, &extent);
        if (err) {
            return err == -ENOMEM ? err : 0;
        }
        if (ret->n_rows == cap) {
            cap = cap ? 2 * cap : 64;
            struct kvd_segment_row *rows = realloc(ret->rows, cap * sizeof(*rows));
            if (!rows) {
                return -ENOMEM;
            }
            ret->rows = rows;
        }
        kvd_segment_row_of(&rec, at, &ret->rows[ret->n_rows++]);
        at += extent;
    }
}

static void damaged(struct kvd_segment_records *ret, const char *where, int err)
{
    if (!ret->damage) {
        ret->damage = err;
        ret->where = where;
    }
}

/* Compares the header with what the row in memory says; reads the footer of a sealed one. */
static int read_segment(struct nvme *t, int fd, struct kvd_segment_records *ret)
{
    KVD_CLEANUP(kvd_segment_reader_fini) struct kvd_segment_reader r = {0};
    struct kvd_segment_header h;
    uint64_t size = 0;
    uint64_t charge;
    uint64_t end;
    bool blank;
    int err = kvd_segment_file_bytes(fd, &size, &charge);
    err = err ? err : kvd_segment_reader_init(&r, t->io, fd, size);
    if (err) {
        return err;
    }
    err = kvd_segment_reader_header(&r, &h, &blank);
    bool other =
        !err && (memcmp(&h.store, &t->store, sizeof(h.store)) != 0 || h.epoch != ret->info.epoch ||
                 h.number != ret->info.number || h.scenario != ret->info.scenario);
    if (err || other) {
        damaged(ret, "header", err ? err : -KVD_E_CORRUPT);
    }
    if (ret->info.state != KVD_SEGMENT_SEALED) {
        return 0;
    }
    err = kvd_segment_reader_footer(&r, &ret->rows, &ret->n_rows, &end);
    if (err == 0 || err == -ENOMEM) {
        return err;
    }
    damaged(ret, "footer", err);
    return rows_by_headers(&r, ret);
}

static int read_one(struct nvme *t, struct kvd_segment_records *ret)
{
    int fd = -1;
    int err = kvd_nvme_reader_get(t, ret->info.segment, &fd);
    if (!err) {
        err = read_segment(t, fd, ret);
        kvd_nvme_reader_put(t, ret->info.segment, 0);
    }
    return err;
}

int kvd_nvme_records(struct kvd_tier *tier, uint64_t from, struct kvd_segment_records *ret)
{
    struct nvme *t = KVD_CONTAINER_OF(tier, struct nvme, base);
    KVD_MAGIC_CHECK(t, NVME_MAGIC);
    for (;;) {
        struct kvd_segment_records found = {0};
        int err = find_open(t, from, &found);
        err = err ? err : read_one(t, &found);
        if (err == -KVD_E_NOT_FOUND && found.info.segment) { /* it died meanwhile */
            from = found.info.segment + 1;
            free(found.rows);
            continue;
        }
        if (!found.info.segment) {
            return err;
        }
        if (err) {
            damaged(&found, "file", err);
        }
        *ret = found;
        return 0;
    }
}
