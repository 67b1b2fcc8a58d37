/*
 * Segments: header and footer to bytes and back. The layout is specified in FORMAT.md; the offsets
 * below are its tables.
 */
#include "proto/format/segment.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/bytes.h"
#include "proto/format/frame.h"

static const char header_magic[8] = {'K', 'V', 'D', 'S', 'E', 'G', 'M', 'T'};
static const char footer_magic[8] = {'K', 'V', 'D', 'S', 'E', 'G', 'F', 'T'};

enum header_offset {
    OFF_STORE = 24,
    OFF_SEED = 40,
    OFF_WRITER = 48,
    OFF_EPOCH = 56,
    OFF_NUMBER = 64,
    OFF_SLICE = 72,
    OFF_SLICE_LEN = 80,
    OFF_SCENARIO = 84,
    OFF_RESERVED_86 = 86,
    OFF_CREATED = 88,
    HEADER_USED = 96,
};

enum row_offset {
    ROW_OFFSET = 0,
    ROW_EXTENT = 8,
    ROW_N_BLOCKS = 12,
    ROW_RANK = 14,
    ROW_PUT_ID = 16,
    ROW_INDEX = 24,
    ROW_GROUP = 28,
    ROW_FIRST_KEY = 40,
    ROW_RESERVED = 56,
    ROW_BYTES = 64,
};

enum tail_offset {
    TAIL_VERSION = 8,
    TAIL_RESERVED_10 = 10,
    TAIL_N_ROWS = 12,
    TAIL_FOOTER_BYTES = 16,
    TAIL_ROWS_SUM = 24,
    TAIL_RESERVED_32 = 32,
    TAIL_SUM = 56,
    TAIL_BYTES = 64,
    FOOTER_ROWS_MAX = 1 << 20,
};

void kvd_segment_header_encode(const struct kvd_segment_header *h, void *buf)
{
    uint8_t *p = buf;
    memset(p, 0, KVD_SEGMENT_HEADER_BYTES);
    kvd_frame_put(p, header_magic, KVD_SEGMENT_VERSION, KVD_SEGMENT_HEADER_BYTES);
    memcpy(p + OFF_STORE, h->store.b, KVD_STORE_ID_BYTES);
    kvd_put_le64(p + OFF_SEED, h->seed);
    kvd_put_le64(p + OFF_WRITER, h->writer);
    kvd_put_le64(p + OFF_EPOCH, h->epoch);
    kvd_put_le64(p + OFF_NUMBER, h->number);
    kvd_put_le64(p + OFF_SLICE, h->slice_s);
    kvd_put_le32(p + OFF_SLICE_LEN, h->slice_len_s);
    kvd_put_le16(p + OFF_SCENARIO, h->scenario);
    kvd_put_le64(p + OFF_CREATED, h->created_s);
    kvd_frame_seal(p, KVD_SEGMENT_HEADER_BYTES);
}

int kvd_segment_header_decode(const void *buf, uint64_t n, struct kvd_segment_header *ret)
{
    const uint8_t *p = buf;
    uint32_t header_bytes;
    int err = kvd_frame_check(p, n, header_magic, KVD_SEGMENT_VERSION, KVD_SEGMENT_HEADER_BYTES,
                              &header_bytes);
    if (err) {
        return err == -KVD_E_TOO_LONG ? -KVD_E_CORRUPT : err;
    }
    if (header_bytes != KVD_SEGMENT_HEADER_BYTES || kvd_get_le16(p + OFF_RESERVED_86) != 0 ||
        !kvd_all_zero(p + HEADER_USED, KVD_SEGMENT_HEADER_BYTES - HEADER_USED)) {
        return -KVD_E_CORRUPT;
    }
    memcpy(ret->store.b, p + OFF_STORE, KVD_STORE_ID_BYTES);
    ret->seed = kvd_get_le64(p + OFF_SEED);
    ret->writer = kvd_get_le64(p + OFF_WRITER);
    ret->epoch = kvd_get_le64(p + OFF_EPOCH);
    ret->number = kvd_get_le64(p + OFF_NUMBER);
    ret->slice_s = kvd_get_le64(p + OFF_SLICE);
    ret->slice_len_s = kvd_get_le32(p + OFF_SLICE_LEN);
    ret->scenario = kvd_get_le16(p + OFF_SCENARIO);
    ret->created_s = kvd_get_le64(p + OFF_CREATED);
    return 0;
}

void kvd_segment_row_of(const struct kvd_record *rec, uint64_t offset, struct kvd_segment_row *ret)
{
    *ret = (struct kvd_segment_row){.offset = offset,
                                    .extent_bytes = (uint32_t)kvd_record_extent_bytes(rec),
                                    .n_blocks = rec->n_blocks,
                                    .rank = rec->rank,
                                    .put_id = rec->put_id,
                                    .index = rec->index,
                                    .group = rec->group,
                                    .first_key = rec->blocks[0].key};
}

int kvd_segment_row_check(const struct kvd_segment_row *row, const struct kvd_record *rec,
                          struct kvd_diag *diag)
{
    struct kvd_segment_row is;
    kvd_segment_row_of(rec, row->offset, &is);
    const char *field = is.extent_bytes != row->extent_bytes ? "size"
                        : is.n_blocks != row->n_blocks       ? "number of blocks"
                        : is.rank != row->rank               ? "rank"
                        : is.put_id != row->put_id           ? "put id"
                        : is.index != row->index             ? "index in the chain"
                        : memcmp(&is.group, &row->group, sizeof(is.group)) != 0 ? "group"
                        : !kvd_key_equal(&is.first_key, &row->first_key)        ? "key"
                                                                                : NULL;
    return field ? kvd_fail(diag, -KVD_E_CORRUPT,
                            "its segment lists another record here: the %s "
                            "differs",
                            field)
                 : 0;
}

uint64_t kvd_segment_footer_bytes(uint32_t n_rows)
{
    return kvd_round_up((uint64_t)n_rows * ROW_BYTES + TAIL_BYTES, KVD_ALIGN_BYTES);
}

static void row_encode(const struct kvd_segment_row *row, uint8_t *p)
{
    kvd_put_le64(p + ROW_OFFSET, row->offset);
    kvd_put_le32(p + ROW_EXTENT, row->extent_bytes);
    kvd_put_le16(p + ROW_N_BLOCKS, row->n_blocks);
    kvd_put_le16(p + ROW_RANK, row->rank);
    kvd_put_le64(p + ROW_PUT_ID, row->put_id);
    kvd_put_le32(p + ROW_INDEX, row->index);
    memcpy(p + ROW_GROUP, row->group.b, KVD_GROUP_ID_BYTES);
    memcpy(p + ROW_FIRST_KEY, row->first_key.b, KVD_KEY_BYTES);
}

static void row_decode(const uint8_t *p, struct kvd_segment_row *row)
{
    row->offset = kvd_get_le64(p + ROW_OFFSET);
    row->extent_bytes = kvd_get_le32(p + ROW_EXTENT);
    row->n_blocks = kvd_get_le16(p + ROW_N_BLOCKS);
    row->rank = kvd_get_le16(p + ROW_RANK);
    row->put_id = kvd_get_le64(p + ROW_PUT_ID);
    row->index = kvd_get_le32(p + ROW_INDEX);
    memcpy(row->group.b, p + ROW_GROUP, KVD_GROUP_ID_BYTES);
    memcpy(row->first_key.b, p + ROW_FIRST_KEY, KVD_KEY_BYTES);
}

void kvd_segment_footer_encode(const struct kvd_segment_row *rows, uint32_t n_rows, void *buf)
{
    uint64_t bytes = kvd_segment_footer_bytes(n_rows);
    uint8_t *p = buf;
    memset(p, 0, bytes);
    for (uint32_t i = 0; i < n_rows; i++) {
        row_encode(&rows[i], p + (uint64_t)i * ROW_BYTES);
    }
    uint8_t *tail = p + bytes - TAIL_BYTES;
    memcpy(tail, footer_magic, sizeof(footer_magic));
    kvd_put_le16(tail + TAIL_VERSION, KVD_SEGMENT_VERSION);
    kvd_put_le32(tail + TAIL_N_ROWS, n_rows);
    kvd_put_le64(tail + TAIL_FOOTER_BYTES, bytes);
    kvd_put_le64(tail + TAIL_ROWS_SUM, kvd_sum(p, bytes - TAIL_BYTES));
    kvd_put_le64(tail + TAIL_SUM, kvd_sum(tail, TAIL_SUM));
}

/* Checks the tail alone. 0, -KVD_E_FORMAT, -KVD_E_CORRUPT, -KVD_E_NEWER. */
static int tail_check(const uint8_t *tail)
{
    if (memcmp(tail, footer_magic, sizeof(footer_magic)) != 0) {
        return -KVD_E_FORMAT;
    }
    if (kvd_get_le64(tail + TAIL_SUM) != kvd_sum(tail, TAIL_SUM)) {
        return -KVD_E_CORRUPT;
    }
    uint16_t version = kvd_get_le16(tail + TAIL_VERSION);
    if (version > KVD_SEGMENT_VERSION) {
        return -KVD_E_NEWER;
    }
    uint32_t n_rows = kvd_get_le32(tail + TAIL_N_ROWS);
    bool good = version == KVD_SEGMENT_VERSION && kvd_get_le16(tail + TAIL_RESERVED_10) == 0 &&
                kvd_all_zero(tail + TAIL_RESERVED_32, TAIL_SUM - TAIL_RESERVED_32) &&
                n_rows <= FOOTER_ROWS_MAX &&
                kvd_get_le64(tail + TAIL_FOOTER_BYTES) == kvd_segment_footer_bytes(n_rows);
    return good ? 0 : -KVD_E_CORRUPT;
}

int kvd_segment_footer_probe(const void *last_page, uint64_t file_bytes, uint64_t *ret_footer_bytes)
{
    const uint8_t *tail = (const uint8_t *)last_page + KVD_ALIGN_BYTES - TAIL_BYTES;
    int err = tail_check(tail);
    if (err) {
        return err;
    }
    uint64_t bytes = kvd_get_le64(tail + TAIL_FOOTER_BYTES);
    if (file_bytes % KVD_ALIGN_BYTES != 0 || file_bytes < KVD_SEGMENT_HEADER_BYTES + bytes) {
        return -KVD_E_CORRUPT;
    }
    *ret_footer_bytes = bytes;
    return 0;
}

/* Rows lie in the file one after another, each a whole record. */
static bool rows_fit(const struct kvd_segment_row *rows, uint32_t n_rows)
{
    uint64_t end = KVD_SEGMENT_HEADER_BYTES;
    for (uint32_t i = 0; i < n_rows; i++) {
        const struct kvd_segment_row *row = &rows[i];
        if (row->offset < end || row->offset > INT64_MAX || row->offset % KVD_ALIGN_BYTES != 0 ||
            row->extent_bytes < 2 * KVD_ALIGN_BYTES || row->extent_bytes % KVD_ALIGN_BYTES != 0 ||
            row->n_blocks < 1 || row->n_blocks > KVD_RECORD_BLOCKS_MAX) {
            return false;
        }
        end = row->offset + row->extent_bytes;
    }
    return true;
}

int kvd_segment_footer_decode(const void *buf, uint64_t footer_bytes,
                              struct kvd_segment_row **ret_rows, uint32_t *ret_n_rows)
{
    const uint8_t *p = buf;
    if (footer_bytes < KVD_ALIGN_BYTES || footer_bytes % KVD_ALIGN_BYTES != 0) {
        return -KVD_E_CORRUPT;
    }
    const uint8_t *tail = p + footer_bytes - TAIL_BYTES;
    if (tail_check(tail) != 0 || kvd_get_le64(tail + TAIL_FOOTER_BYTES) != footer_bytes ||
        kvd_get_le64(tail + TAIL_ROWS_SUM) != kvd_sum(p, footer_bytes - TAIL_BYTES)) {
        return -KVD_E_CORRUPT;
    }
    uint32_t n_rows = kvd_get_le32(tail + TAIL_N_ROWS);
    uint64_t rows_bytes = (uint64_t)n_rows * ROW_BYTES;
    if (!kvd_all_zero(p + rows_bytes, footer_bytes - TAIL_BYTES - rows_bytes)) {
        return -KVD_E_CORRUPT;
    }
    struct kvd_segment_row *rows = calloc(n_rows ? n_rows : 1, sizeof(*rows));
    if (!rows) {
        return -ENOMEM;
    }
    bool reserved_zero = true;
    for (uint32_t i = 0; i < n_rows; i++) {
        const uint8_t *at = p + (uint64_t)i * ROW_BYTES;
        row_decode(at, &rows[i]);
        reserved_zero = reserved_zero && kvd_get_le64(at + ROW_RESERVED) == 0;
    }
    if (!reserved_zero || !rows_fit(rows, n_rows)) {
        free(rows);
        return -KVD_E_CORRUPT;
    }
    *ret_rows = rows;
    *ret_n_rows = n_rows;
    return 0;
}
