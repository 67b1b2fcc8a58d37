/* The log of purges to bytes and back. The offsets below are the tables of FORMAT.md. */
#include "proto/format/purge_log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "proto/base/assert.h"
#include "proto/base/bytes.h"
#include "proto/format/frame.h"

static const char log_magic[8] = {'K', 'V', 'D', 'P', 'U', 'R', 'G', 'E'};
static const char row_magic[4] = {'P', 'R', 'O', 'W'};

enum log_offset {
    OFF_STORE = 24,
    OFF_ROWS = 40,
    HEADER_USED = 44,

    ROW_NTH = 4,
    ROW_SUM = 8,
    ROW_CUT = 16,
    ROW_WHEN = 24,
    ROW_SPACE = 32,
    ROW_TENANT = 64,
    ROW_KEY = 96,
    ROW_RANK = 112,
    ROW_SCOPE = 114,
    ROW_RESERVED = 116,
};

struct kvd_purge_what kvd_purge_what_of(enum kvd_purge_scope scope, const struct kvd_digest *space,
                                        const struct kvd_digest *tenant, const struct kvd_key *key,
                                        uint16_t rank)
{
    struct kvd_purge_what what = {.scope = (uint16_t)scope};
    if (scope != KVD_PURGE_ALL && scope != KVD_PURGE_TENANT) {
        what.space = *space;
    }
    if (scope != KVD_PURGE_ALL && scope != KVD_PURGE_SPACE) {
        what.tenant = *tenant;
    }
    if (scope == KVD_PURGE_BLOCK) {
        what.key = *key;
        what.rank = rank;
    }
    return what;
}

/* ---- rows ---- */

/* Sum over a row: what follows the sum, seeded by the sum of what precedes it. */
static uint64_t row_sum(const uint8_t *p)
{
    return XXH3_64bits_withSeed(p + ROW_CUT, KVD_PURGE_ROW_BYTES - ROW_CUT,
                                XXH3_64bits(p, ROW_SUM));
}

void kvd_purge_row_encode(const struct kvd_purge_row *row, void *buf)
{
    uint8_t *p = buf;
    memset(p, 0, KVD_PURGE_ROW_BYTES);
    memcpy(p, row_magic, sizeof(row_magic));
    kvd_put_le32(p + ROW_NTH, row->nth);
    kvd_put_le64(p + ROW_CUT, row->cut);
    kvd_put_le64(p + ROW_WHEN, row->when_s);
    memcpy(p + ROW_SPACE, row->what.space.b, KVD_DIGEST_BYTES);
    memcpy(p + ROW_TENANT, row->what.tenant.b, KVD_DIGEST_BYTES);
    memcpy(p + ROW_KEY, row->what.key.b, KVD_KEY_BYTES);
    kvd_put_le16(p + ROW_RANK, row->what.rank);
    kvd_put_le16(p + ROW_SCOPE, row->what.scope);
    kvd_put_le64(p + ROW_SUM, row_sum(p));
}

int kvd_purge_row_decode(const void *buf, struct kvd_purge_row *ret)
{
    const uint8_t *p = buf;
    struct kvd_purge_row row = {
        .nth = kvd_get_le32(p + ROW_NTH),
        .cut = kvd_get_le64(p + ROW_CUT),
        .when_s = kvd_get_le64(p + ROW_WHEN),
        .what = {.rank = kvd_get_le16(p + ROW_RANK), .scope = kvd_get_le16(p + ROW_SCOPE)}};
    if (memcmp(p, row_magic, sizeof(row_magic)) != 0 || kvd_get_le64(p + ROW_SUM) != row_sum(p) ||
        !kvd_all_zero(p + ROW_RESERVED, KVD_PURGE_ROW_BYTES - ROW_RESERVED) ||
        row.what.scope < KVD_PURGE_ALL || row.what.scope > KVD_PURGE_BLOCK) {
        return -KVD_E_CORRUPT;
    }
    memcpy(row.what.space.b, p + ROW_SPACE, KVD_DIGEST_BYTES);
    memcpy(row.what.tenant.b, p + ROW_TENANT, KVD_DIGEST_BYTES);
    memcpy(row.what.key.b, p + ROW_KEY, KVD_KEY_BYTES);
    struct kvd_purge_what want =
        kvd_purge_what_of((enum kvd_purge_scope)row.what.scope, &row.what.space, &row.what.tenant,
                          &row.what.key, row.what.rank);
    if (memcmp(&want, &row.what, sizeof(want)) != 0) {
        return -KVD_E_CORRUPT;
    }
    *ret = row;
    return 0;
}

/* ---- the file ---- */

uint64_t kvd_purge_log_bytes(uint32_t n)
{
    return KVD_PURGE_LOG_HEADER_BYTES + (uint64_t)n * KVD_PURGE_ROW_BYTES;
}

void kvd_purge_log_encode(const struct kvd_store_id *store, const struct kvd_purge_row *rows,
                          uint32_t n, void *buf)
{
    uint8_t *p = buf;
    KVD_ASSERT(n <= KVD_PURGE_ROWS_MAX);
    memset(p, 0, KVD_PURGE_LOG_HEADER_BYTES);
    kvd_frame_put(p, log_magic, KVD_PURGE_LOG_VERSION, KVD_PURGE_LOG_HEADER_BYTES);
    memcpy(p + OFF_STORE, store->b, KVD_STORE_ID_BYTES);
    kvd_put_le32(p + OFF_ROWS, n);
    kvd_frame_seal(p, KVD_PURGE_LOG_HEADER_BYTES);
    for (uint32_t i = 0; i < n; i++) {
        KVD_ASSERT(i == 0 || rows[i - 1].cut <= rows[i].cut);
        kvd_purge_row_encode(&rows[i], p + kvd_purge_log_bytes(i));
    }
}

/* 0 with the store and the rows that the file was written with, -KVD_E_CORRUPT, -KVD_E_FORMAT,
 * -KVD_E_NEWER. */
static int header_decode(const uint8_t *p, uint64_t n, struct kvd_store_id *ret_store,
                         uint32_t *ret_rows)
{
    uint32_t header_bytes = 0;
    int err = kvd_frame_check(p, n, log_magic, KVD_PURGE_LOG_VERSION, KVD_PURGE_LOG_HEADER_BYTES,
                              &header_bytes);
    if (err == -KVD_E_TOO_LONG) { /* only a later version's header is longer than ours */
        return -KVD_E_NEWER;
    }
    if (err) {
        return err;
    }
    uint32_t rows = kvd_get_le32(p + OFF_ROWS);
    if (rows > KVD_PURGE_ROWS_MAX ||
        !kvd_all_zero(p + HEADER_USED, KVD_PURGE_LOG_HEADER_BYTES - HEADER_USED)) {
        return -KVD_E_CORRUPT;
    }
    memcpy(ret_store->b, p + OFF_STORE, KVD_STORE_ID_BYTES);
    *ret_rows = rows;
    return 0;
}

static void damage(struct kvd_purge_log *log, uint32_t rows, uint64_t cut)
{
    log->damaged += rows;
    log->damaged_cut = cut > log->damaged_cut ? cut : log->damaged_cut;
}

/* Where the rows of the last call begin that left one: those behind may be what a crash left of a
 * call that never answered. Rows that the header counts were all durable. at: place of each whole
 * row. */
static uint32_t durable_rows(const struct kvd_purge_log *log, const uint32_t *at, uint32_t counted)
{
    if (log->n_rows == 0 || at[log->n_rows - 1] < counted) {
        return counted;
    }
    uint32_t last = at[log->n_rows - 1];
    uint32_t nth = log->rows[log->n_rows - 1].nth;
    uint32_t begin = nth < last ? last - nth : 0;
    return begin > counted ? begin : counted;
}

/* Counts the places below `durable` that hold no whole row; each is bounded by the next whole
 * one's cut. */
static void count_damage(struct kvd_purge_log *log, const uint32_t *at, uint32_t durable)
{
    uint32_t place = 0;
    for (uint32_t i = 0; i <= log->n_rows && place < durable; i++) {
        uint32_t next = i < log->n_rows ? at[i] : durable;
        uint32_t end = next < durable ? next : durable;
        if (end > place) {
            damage(log, end - place, i < log->n_rows ? log->rows[i].cut : UINT64_MAX);
        }
        place = next + 1;
    }
}

int kvd_purge_log_decode(const void *bytes, uint64_t n, struct kvd_purge_log *ret)
{
    const uint8_t *p = bytes;
    struct kvd_purge_log log = {0};
    uint32_t counted = 0;
    int err = header_decode(p, n, &log.store, &counted);
    if (err && err != -KVD_E_CORRUPT) {
        return err;
    }
    log.known_store = err == 0;
    uint64_t rest = n > KVD_PURGE_LOG_HEADER_BYTES ? n - KVD_PURGE_LOG_HEADER_BYTES : 0;
    uint64_t places = rest / KVD_PURGE_ROW_BYTES;
    if (places > KVD_PURGE_ROWS_MAX) {
        return -KVD_E_TOO_LONG;
    }
    log.rows = calloc(places + 1, sizeof(*log.rows));
    uint32_t *at = calloc(places + 1, sizeof(*at));
    if (!log.rows || !at) {
        free(log.rows);
        free(at);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < places; i++) {
        if (kvd_purge_row_decode(p + kvd_purge_log_bytes(i), &log.rows[log.n_rows]) == 0) {
            at[log.n_rows++] = i;
        }
    }
    log.appended = rest > (uint64_t)counted * KVD_PURGE_ROW_BYTES;
    if (log.known_store) {
        count_damage(&log, at, durable_rows(&log, at, counted));
    } else {
        damage(&log, 1, UINT64_MAX);
    }
    free(at);
    *ret = log;
    return 0;
}
