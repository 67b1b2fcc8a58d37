#include "cachesvc/core/quarantine.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/bytes.h"

static const char prefix[] = "quarantine/";

enum {
    PREFIX_BYTES = sizeof(prefix) - 1,
    KEY_BYTES = PREFIX_BYTES + 16,
    ROW_VERSION = 1,
    FIXED_BYTES = 40, /* of a value, before the text */
    VALUE_MAX = FIXED_BYTES + QUARANTINE_TEXT_MAX,
};

struct quarantine {
    struct kvd_index *index;
    struct kvd_log *log;
    pthread_mutex_t mtx;
    struct quarantined *rows; /* lock: mtx; ascending by segment, then offset */
    uint32_t n;               /* lock: mtx */
    uint32_t cap;             /* lock: mtx */
};

/* ---- bytes ---- */

static void put_be64(uint8_t *p, uint64_t v)
{
    kvd_put_be32(p, (uint32_t)(v >> 32));
    kvd_put_be32(p + 4, (uint32_t)v);
}

static uint64_t get_be64(const uint8_t *p)
{
    return (uint64_t)kvd_get_be32(p) << 32 | kvd_get_be32(p + 4);
}

static void key_encode(uint64_t segment, uint64_t offset, uint8_t ret[KEY_BYTES])
{
    memcpy(ret, prefix, PREFIX_BYTES);
    put_be64(ret + PREFIX_BYTES, segment);
    put_be64(ret + PREFIX_BYTES + 8, offset);
}

static uint32_t value_encode(const struct quarantined *row, uint8_t ret[VALUE_MAX])
{
    size_t text = strnlen(row->text, QUARANTINE_TEXT_MAX - 1);
    memset(ret, 0, FIXED_BYTES);
    ret[0] = ROW_VERSION;
    ret[1] = row->gone;
    kvd_put_le16(ret + 2, (uint16_t)text);
    kvd_put_le16(ret + 4, row->rank);
    kvd_put_le64(ret + 8, row->put_id);
    kvd_put_le64(ret + 16, row->when_s);
    memcpy(ret + 24, row->key.b, KVD_KEY_BYTES);
    memcpy(ret + FIXED_BYTES, row->text, text);
    return (uint32_t)(FIXED_BYTES + text);
}

/* What can't be read still holds its place. */
static void value_decode(const uint8_t *p, uint32_t n, struct quarantined *row)
{
    uint32_t text = n >= FIXED_BYTES ? kvd_get_le16(p + 2) : 0;
    if (n < FIXED_BYTES || p[0] != ROW_VERSION || text >= QUARANTINE_TEXT_MAX ||
        n != FIXED_BYTES + text) {
        (void)snprintf(row->text, sizeof(row->text), "(written by another version)");
        return;
    }
    row->gone = p[1];
    row->rank = kvd_get_le16(p + 4);
    row->put_id = kvd_get_le64(p + 8);
    row->when_s = kvd_get_le64(p + 16);
    memcpy(row->key.b, p + 24, KVD_KEY_BYTES);
    memcpy(row->text, p + FIXED_BYTES, text);
}

/* ---- rows in memory; mtx is held ---- */

static int order(const struct quarantined *row, uint64_t segment, uint64_t offset)
{
    if (row->segment != segment) {
        return row->segment < segment ? -1 : 1;
    }
    return row->offset < offset ? -1 : row->offset > offset;
}

/* Index of the first row that is not below a place. */
static uint32_t lower_locked(const struct quarantine *q, uint64_t segment, uint64_t offset)
{
    uint32_t low = 0;
    uint32_t high = q->n;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (order(&q->rows[mid], segment, offset) < 0) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

static bool has_locked(const struct quarantine *q, uint64_t segment, uint64_t offset)
{
    uint32_t at = lower_locked(q, segment, offset);
    return at < q->n && order(&q->rows[at], segment, offset) == 0;
}

static int insert_locked(struct quarantine *q, const struct quarantined *row)
{
    if (q->n == q->cap) {
        uint32_t cap = q->cap ? 2 * q->cap : 16;
        struct quarantined *rows = realloc(q->rows, cap * sizeof(*rows));
        if (!rows) {
            return -ENOMEM;
        }
        q->rows = rows;
        q->cap = cap;
    }
    uint32_t at = lower_locked(q, row->segment, row->offset);
    memmove(&q->rows[at + 1], &q->rows[at], (q->n - at) * sizeof(*q->rows));
    q->rows[at] = *row;
    q->n++;
    return 0;
}

/* ---- life ---- */

static int load_row(const void *key, uint32_t key_bytes, const void *value, uint32_t value_bytes,
                    void *user)
{
    struct quarantine *q = user;
    struct quarantined row = {0};
    const uint8_t *k = key;
    if (key_bytes != KEY_BYTES || memcmp(k, prefix, PREFIX_BYTES) != 0) {
        return 0; /* another row of the meta */
    }
    row.segment = get_be64(k + PREFIX_BYTES);
    row.offset = get_be64(k + PREFIX_BYTES + 8);
    value_decode(value, value_bytes, &row);
    return insert_locked(q, &row);
}

int quarantine_open(struct kvd_index *index, struct kvd_log *log, struct quarantine **ret)
{
    struct quarantine *q = calloc(1, sizeof(*q));
    if (!q) {
        return -ENOMEM;
    }
    q->index = index;
    q->log = log;
    (void)pthread_mutex_init(&q->mtx, NULL);
    (void)pthread_mutex_lock(&q->mtx);
    int err = kvd_index_row_walk(index, KVD_INDEX_META, load_row, q);
    (void)pthread_mutex_unlock(&q->mtx);
    if (err) {
        quarantine_close(&q);
        return err;
    }
    *ret = q;
    return 0;
}

void quarantine_close(struct quarantine **quarantine)
{
    struct quarantine *q = *quarantine;
    if (!q) {
        return;
    }
    *quarantine = NULL;
    (void)pthread_mutex_destroy(&q->mtx);
    free(q->rows);
    free(q);
}

/* ---- use ---- */

static void write_row(struct quarantine *q, uint64_t segment, uint64_t offset, const void *value,
                      uint32_t n)
{
    uint8_t key[KEY_BYTES];
    key_encode(segment, offset, key);
    int err =
        kvd_index_row_put(q->index, KVD_INDEX_META, key, sizeof(key), value, n, value != NULL);
    if (err) {
        kvd_log_error(q->log, "the quarantine can't be written down: %s", kvd_strerror(err));
    }
}

bool quarantine_has(struct quarantine *q, uint64_t segment, uint64_t offset)
{
    (void)pthread_mutex_lock(&q->mtx);
    bool has = has_locked(q, segment, offset);
    (void)pthread_mutex_unlock(&q->mtx);
    return has;
}

bool quarantine_add(struct quarantine *q, const struct quarantined *row)
{
    uint8_t value[VALUE_MAX];
    (void)pthread_mutex_lock(&q->mtx);
    bool fresh = !has_locked(q, row->segment, row->offset);
    int err = fresh ? insert_locked(q, row) : 0;
    (void)pthread_mutex_unlock(&q->mtx);
    if (err) {
        kvd_log_error(q->log, "the quarantine can't be kept in mind: %s", kvd_strerror(err));
    }
    if (fresh) {
        write_row(q, row->segment, row->offset, value, value_encode(row, value));
    }
    return fresh;
}

void quarantine_forget(struct quarantine *q, uint64_t segment)
{
    for (;;) {
        uint64_t offset = 0;
        (void)pthread_mutex_lock(&q->mtx);
        uint32_t at = lower_locked(q, segment, 0);
        bool found = at < q->n && q->rows[at].segment == segment;
        if (found) {
            offset = q->rows[at].offset;
            q->n--;
            memmove(&q->rows[at], &q->rows[at + 1], (q->n - at) * sizeof(*q->rows));
        }
        (void)pthread_mutex_unlock(&q->mtx);
        if (!found) {
            return;
        }
        write_row(q, segment, offset, NULL, 0);
    }
}

uint64_t quarantine_count(struct quarantine *q)
{
    (void)pthread_mutex_lock(&q->mtx);
    uint64_t n = q->n;
    (void)pthread_mutex_unlock(&q->mtx);
    return n;
}

uint32_t quarantine_list(struct quarantine *q, uint64_t segment, uint64_t offset, uint32_t max,
                         struct quarantined *ret)
{
    (void)pthread_mutex_lock(&q->mtx);
    uint32_t at = lower_locked(q, segment, offset);
    uint32_t n = q->n - at < max ? q->n - at : max;
    if (n) {
        memcpy(ret, &q->rows[at], n * sizeof(*ret));
    }
    (void)pthread_mutex_unlock(&q->mtx);
    return n;
}
