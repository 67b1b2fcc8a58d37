/*
 * Fuzz entry of the readers of a segment's header and footer, of the log of purges and of IDENTITY:
 * any bytes are refused, or give what encodes to the same bytes again. And of a segment file's
 * name.
 *
 * Input: a byte of choices, then the header (without the zeros at its end), the footer (rows, then
 * the last 64 bytes), a name, the log (the beginning of its header, then rows), or the text. Choice
 * SEAL recomputes the sums.
 */
#include <inttypes.h>

#include "cachesvc/tier/segment_file.h"
#include "fuzz.h"
#include "proto/format/frame.h"
#include "proto/format/identity.h"
#include "proto/format/purge_log.h"
#include "proto/format/segment.h"

enum { HEADER, FOOTER, NAME, PURGES, IDENTITY, KINDS, SEAL = 0x80, SET_COUNTS = 0x40 };
enum { PURGE_ROWS_MAX = 64, PURGE_HEADER_GIVEN = 48, ROW_SUM = 8, ROW_SUMMED = 16 };
/* as in FORMAT.md */
enum { TAIL_BYTES = 64, TAIL_N_ROWS = 12, TAIL_FOOTER_BYTES = 16, TAIL_ROWS_SUM = 24 };
enum { TAIL_SUM = 56, ROW_BYTES = 64, INPUT_MAX = 64 << 10 };

static void header(struct fuzz_in *in, uint8_t how)
{
    uint8_t page[KVD_SEGMENT_HEADER_BYTES] = {0};
    uint8_t again[KVD_SEGMENT_HEADER_BYTES];
    struct kvd_segment_header h;
    size_t n = 0;
    const uint8_t *given = fuzz_take(in, sizeof(page), &n);
    memcpy(page, given, n);
    if (how & SEAL) {
        kvd_frame_seal(page, sizeof(page));
    }
    if (kvd_segment_header_decode(page, sizeof(page), &h) == 0) {
        kvd_segment_header_encode(&h, again);
        FUZZ_CHECK(memcmp(again, page, sizeof(page)) == 0);
    }
    FUZZ_CHECK(kvd_segment_header_decode(page, sizeof(page) - 1, &h) != 0);
}

static void rows_check(const struct kvd_segment_row *rows, uint32_t n, const uint8_t *footer,
                       uint64_t footer_bytes)
{
    uint64_t end = KVD_SEGMENT_HEADER_BYTES;
    for (uint32_t i = 0; i < n; i++) {
        FUZZ_CHECK(rows[i].offset >= end && rows[i].extent_bytes >= 2 * KVD_ALIGN_BYTES);
        end = rows[i].offset + rows[i].extent_bytes;
        FUZZ_CHECK(end > rows[i].offset);
    }
    FUZZ_CHECK(kvd_segment_footer_bytes(n) == footer_bytes);
    uint8_t *again = malloc(footer_bytes);
    FUZZ_CHECK(again != NULL);
    kvd_segment_footer_encode(rows, n, again);
    FUZZ_CHECK(memcmp(again, footer, footer_bytes) == 0);
    free(again);
}

static void footer_seal(uint8_t *footer, uint64_t bytes, uint8_t how, uint32_t n_rows)
{
    uint8_t *tail = footer + bytes - TAIL_BYTES;
    if (how & SET_COUNTS) {
        kvd_put_le32(tail + TAIL_N_ROWS, n_rows);
        kvd_put_le64(tail + TAIL_FOOTER_BYTES, bytes);
    }
    kvd_put_le64(tail + TAIL_ROWS_SUM, kvd_sum(footer, bytes - TAIL_BYTES));
    kvd_put_le64(tail + TAIL_SUM, kvd_sum(tail, TAIL_SUM));
}

static void footer(struct fuzz_in *in, uint8_t how)
{
    uint8_t tail[TAIL_BYTES] = {0};
    size_t n = 0;
    size_t rows_n = 0;
    const uint8_t *given = fuzz_take(in, sizeof(tail), &n);
    memcpy(tail, given, n);
    const uint8_t *rows_at = fuzz_take(in, INPUT_MAX, &rows_n);
    const uint64_t bytes = kvd_round_up(rows_n + TAIL_BYTES, KVD_ALIGN_BYTES);
    uint8_t *buf = calloc(1, bytes);
    FUZZ_CHECK(buf != NULL);
    memcpy(buf, rows_at, rows_n);
    memcpy(buf + bytes - TAIL_BYTES, tail, TAIL_BYTES);
    if (how & SEAL) {
        footer_seal(buf, bytes, how, (uint32_t)((rows_n + ROW_BYTES - 1) / ROW_BYTES));
    }
    uint64_t said = 0;
    struct kvd_segment_row *rows = NULL;
    uint32_t n_rows = 0;
    const uint64_t file_bytes = KVD_SEGMENT_HEADER_BYTES + bytes;
    if (kvd_segment_footer_probe(buf + bytes - KVD_ALIGN_BYTES, file_bytes, &said) == 0) {
        FUZZ_CHECK(said + KVD_SEGMENT_HEADER_BYTES <= file_bytes && said % KVD_ALIGN_BYTES == 0);
    }
    if (kvd_segment_footer_decode(buf, bytes, &rows, &n_rows) == 0) {
        rows_check(rows, n_rows, buf, bytes);
        free(rows);
    }
    free(buf);
}

static void name(struct fuzz_in *in)
{
    char folder[256];
    char file[256];
    char again[KVD_SEGMENT_NAME_BYTES];
    struct kvd_segment_info info;
    size_t n = 0;
    const uint8_t *given = fuzz_take(in, fuzz_u8(in), &n);
    (void)snprintf(folder, sizeof(folder), "%.*s", (int)n, (const char *)given);
    given = fuzz_take(in, 255, &n);
    (void)snprintf(file, sizeof(file), "%.*s", (int)n, (const char *)given);
    if (kvd_segment_name_parse(folder, file, &info)) {
        kvd_segment_name(&info, again);
        const size_t at = strlen(folder);
        FUZZ_CHECK(strncmp(again, folder, at) == 0 && again[at] == '/');
        FUZZ_CHECK(strcmp(again + at + 1, file) == 0);
    }
}

/* Each row that was read is one of the file, and the file written from them is read to the same. */
static void purges_check(const struct kvd_purge_log *log, const uint8_t *file, uint64_t n)
{
    struct kvd_purge_log again = {0};
    uint8_t row[KVD_PURGE_ROW_BYTES];
    uint64_t at = KVD_PURGE_LOG_HEADER_BYTES;
    bool ascend = true; /* as whoever writes a file promises */
    FUZZ_CHECK(log->n_rows * (uint64_t)KVD_PURGE_ROW_BYTES <= n);
    for (uint32_t i = 0; i < log->n_rows; i++) {
        kvd_purge_row_encode(&log->rows[i], row);
        while (at + sizeof(row) <= n && memcmp(file + at, row, sizeof(row)) != 0) {
            at += sizeof(row);
        }
        FUZZ_CHECK(at + sizeof(row) <= n);
        at += sizeof(row);
        ascend = ascend && (i == 0 || log->rows[i - 1].cut <= log->rows[i].cut);
    }
    if (!ascend) {
        return;
    }
    uint8_t *out = malloc(kvd_purge_log_bytes(log->n_rows));
    FUZZ_CHECK(out != NULL);
    kvd_purge_log_encode(&log->store, log->rows, log->n_rows, out);
    FUZZ_CHECK(kvd_purge_log_decode(out, kvd_purge_log_bytes(log->n_rows), &again) == 0);
    FUZZ_CHECK(again.n_rows == log->n_rows && again.damaged == 0 && again.known_store);
    free(again.rows);
    free(out);
}

static void purges_seal(uint8_t *file, uint64_t n)
{
    kvd_frame_seal(file, KVD_PURGE_LOG_HEADER_BYTES);
    for (uint64_t at = KVD_PURGE_LOG_HEADER_BYTES; at + KVD_PURGE_ROW_BYTES <= n;
         at += KVD_PURGE_ROW_BYTES) {
        uint8_t *row = file + at;
        kvd_put_le64(row + ROW_SUM,
                     XXH3_64bits_withSeed(row + ROW_SUMMED, KVD_PURGE_ROW_BYTES - ROW_SUMMED,
                                          XXH3_64bits(row, ROW_SUM)));
    }
}

static void purges(struct fuzz_in *in, uint8_t how)
{
    size_t head = 0;
    size_t rows = 0;
    const uint8_t *given = fuzz_take(in, PURGE_HEADER_GIVEN, &head);
    const uint8_t *rows_at = fuzz_take(in, PURGE_ROWS_MAX * KVD_PURGE_ROW_BYTES, &rows);
    const uint64_t n = KVD_PURGE_LOG_HEADER_BYTES + rows;
    struct kvd_purge_log log = {0};
    uint8_t *file = calloc(1, n);
    FUZZ_CHECK(file != NULL);
    memcpy(file, given, head);
    if (rows) {
        memcpy(file + KVD_PURGE_LOG_HEADER_BYTES, rows_at, rows);
    }
    if (how & SEAL) {
        purges_seal(file, n);
    }
    const int err = kvd_purge_log_decode(file, n, &log);
    if (err == 0) {
        purges_check(&log, file, n);
        free(log.rows);
    }
    free(file);
}

static void identity(struct fuzz_in *in, uint8_t how)
{
    char text[1024];
    char again[KVD_IDENTITY_TEXT_MAX];
    struct kvd_identity id;
    struct kvd_diag diag = {""};
    size_t n = 0;
    const uint8_t *given = fuzz_take(in, sizeof(text) - 32, &n);
    memcpy(text, given, n);
    text[n] = 0;
    if (how & SEAL) {
        n += (size_t)snprintf(text + n, 32, "sum %016" PRIx64 "\n", kvd_sum(text, n));
    }
    const int err = kvd_identity_parse(text, n, "folder", &diag, &id);
    FUZZ_CHECK(err == 0 || diag.text[0]);
    if (err == 0) {
        FUZZ_CHECK(kvd_identity_print(&id, again) < sizeof(again));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_in in = {data, size};
    const uint8_t how = fuzz_u8(&in);
    switch (how % 0x40 % KINDS) {
    case HEADER:
        header(&in, how);
        break;
    case FOOTER:
        footer(&in, how);
        break;
    case NAME:
        name(&in);
        break;
    case PURGES:
        purges(&in, how);
        break;
    default:
        identity(&in, how);
        break;
    }
    return 0;
}
