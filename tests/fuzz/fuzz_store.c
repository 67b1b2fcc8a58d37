/*
 * Fuzz entry of the nvme tier's start: an input makes a folder of segment files, good ones, damaged
 * ones and strange ones, and the rows that an index would have of them. The tier is opened over it,
 * all that it reports is read, and it is opened again.
 *
 * It never fails but for the folder's own sake, what it reports lies in its file and reads back as
 * that very record with the sum it had, and a second start, with the rows forgotten, reports what
 * the first left there, each record once.
 *
 * Input: up to FILES_MAX files, each: its row, its name and header, its records, its footer, and
 * damage; most choices are sensible, see fuzz_mostly.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cachesvc/tier/segment_file.h"
#include "cachesvc/tier/tier.h"
#include "fuzz.h"
#include "proto/base/clock.h"
#include "proto/format/frame.h"

enum { FILES_MAX = 3, RECORDS_MAX = 6, FILE_PAGES = 128, TOKENS = 8, ROWS = 32, FOUND_MAX = 64 };
enum { PAYLOAD_MAX = 3 * KVD_ALIGN_BYTES, CAP_BYTES = 64 << 20, SEED = 77, EPOCH = 9 };
static const struct kvd_store_id store = {{1, 2, 3}};

struct found {
    struct kvd_place place;
    struct kvd_segment_info info; /* its segment's row then */
    uint64_t put_id;
    uint64_t stored_sum;
};

/* Rows as an index would keep them, and what was reported. */
struct world {
    struct kvd_segment_info rows[ROWS]; /* by segment number; segment 0: none */
    struct found found[FOUND_MAX];
    uint32_t n_found;
};

static struct {
    char folder[128];
    struct kvd_io *io;
    struct kvd_scenarios *scenarios;
    struct kvd_log log;
} e;

/* ---- the folder ---- */

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    return ftw->level == 0 ? 0 : remove(path);
}

static void folder_clear(void)
{
    (void)nftw(e.folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void stop(void)
{
    folder_clear();
    (void)rmdir(e.folder);
    kvd_io_close(&e.io);
    kvd_scenarios_destroy(&e.scenarios);
}

static void start(void)
{
    static const char text[] =
        "scenarios:\n"
        "  - {id: 1, name: chat, retention: 7d, from: last-use, nvme: true, slice: 1h}\n"
        "  - {id: 2, name: agent, retention: 3d, from: last-use, nvme: true, slice: 1h}\n";
    const char *tmp = getenv("TMPDIR");
    struct kvd_diag diag = {""};
    (void)snprintf(e.folder, sizeof(e.folder), "%.80s/kvd-fuzz-XXXXXX", tmp ? tmp : "/tmp");
    FUZZ_CHECK(mkdtemp(e.folder) != NULL);
    FUZZ_CHECK(kvd_io_open("threads", 8, &diag, &e.io) == 0);
    FUZZ_CHECK(kvd_scenarios_parse(text, sizeof(text) - 1, "fuzz", &diag, &e.scenarios) == 0);
    kvd_log_init(&e.log, 2, "fuzz", KVD_LOG_ERROR);
    atomic_store(&e.log.level, -1); /* what it would say is expected here */
    FUZZ_CHECK(atexit(stop) == 0);
}

/* ---- files ---- */

struct file {
    uint8_t bytes[FILE_PAGES * KVD_ALIGN_BYTES];
    uint64_t n;
    struct kvd_segment_row rows[RECORDS_MAX];
    uint32_t n_rows;
};

static void damage(struct fuzz_in *in, uint8_t *bytes, uint64_t n)
{
    if (n > 0 && fuzz_u8(in) >= 0xe0) {
        bytes[fuzz_le(in, 3) % n] = fuzz_u8(in);
    }
}

static void header_make(struct fuzz_in *in, struct file *f, const struct kvd_segment_info *info)
{
    struct kvd_segment_header h = {.store = store, .slice_len_s = 3600};
    h.seed = fuzz_mostly(in, SEED);
    h.epoch = fuzz_mostly(in, info->epoch);
    h.number = fuzz_mostly(in, info->number);
    h.slice_s = fuzz_mostly(in, info->slice_s);
    h.scenario = (uint16_t)fuzz_mostly(in, info->scenario);
    h.created_s = fuzz_mostly(in, info->created_s);
    h.store.b[0] = (uint8_t)fuzz_mostly(in, 1);
    kvd_segment_header_encode(&h, f->bytes);
    damage(in, f->bytes, KVD_SEGMENT_HEADER_BYTES);
    f->n = KVD_SEGMENT_HEADER_BYTES;
}

/* Fields are edited and the header is sealed again: what a writer at fault would leave. */
static void record_edit(struct fuzz_in *in, uint8_t *header, uint32_t header_bytes)
{
    const uint8_t how = fuzz_u8(in);
    if (how >= 0xe0) {
        header[KVD_FRAME_BYTES + fuzz_u8(in)] = fuzz_u8(in);
        kvd_frame_seal(header, header_bytes);
    }
}

static void record_make(struct fuzz_in *in, struct file *f, uint64_t put_id)
{
    uint32_t tokens[TOKENS] = {(uint32_t)put_id, 1, 2, 3, 4, 5, 6, 7};
    const uint16_t n_blocks = 1 + fuzz_u8(in) % 4;
    const uint64_t part = 1 + fuzz_le(in, 2) % (PAYLOAD_MAX / 4);
    struct kvd_record rec = {.scenario = 1,
                             .n_blocks = n_blocks,
                             .n_parts = 1,
                             .raw_bytes = part * n_blocks,
                             .stored_bytes = part * n_blocks,
                             .put_id = put_id,
                             .parts = {{.kind = KVD_PART_KV, .raw_bytes = part}}};
    for (uint32_t i = 0; i < n_blocks; i++) {
        kvd_put_le64(rec.blocks[i].key.b, put_id * 16 + i);
        rec.blocks[i].tokens = tokens;
        rec.blocks[i].n_tokens = TOKENS;
    }
    const uint64_t extent = kvd_record_extent_bytes(&rec);
    uint8_t *at = f->bytes + f->n;
    if (f->n + extent > sizeof(f->bytes) - KVD_ALIGN_BYTES) {
        return;
    }
    const uint32_t header = kvd_record_header_bytes(n_blocks, n_blocks * TOKENS, 1);
    memset(at, 0, extent);
    memset(at + header, (int)put_id, rec.stored_bytes);
    rec.raw_sum = rec.stored_sum = kvd_sum(at + header, rec.stored_bytes);
    FUZZ_CHECK(kvd_record_encode(&rec, at, header) == (int)header);
    record_edit(in, at, header);
    damage(in, at, extent);
    f->rows[f->n_rows++] = (struct kvd_segment_row){.offset = f->n,
                                                    .extent_bytes = (uint32_t)extent,
                                                    .n_blocks = n_blocks,
                                                    .put_id = put_id,
                                                    .first_key = rec.blocks[0].key};
    f->n += extent;
}

static void footer_make(struct fuzz_in *in, struct file *f)
{
    const uint8_t how = fuzz_u8(in);
    if (how % 3 == 0) {
        return; /* never sealed */
    }
    for (uint32_t i = 0; how >= 0xc0 && i < f->n_rows; i++) {
        f->rows[i].offset = fuzz_mostly(in, f->rows[i].offset);
        f->rows[i].extent_bytes = (uint32_t)fuzz_mostly(in, f->rows[i].extent_bytes);
        f->rows[i].n_blocks = (uint16_t)fuzz_mostly(in, f->rows[i].n_blocks);
    }
    const uint32_t n = (uint32_t)fuzz_mostly(in, f->n_rows);
    kvd_segment_footer_encode(f->rows, n < f->n_rows ? n : f->n_rows, f->bytes + f->n);
    damage(in, f->bytes + f->n, KVD_ALIGN_BYTES);
    f->n += KVD_ALIGN_BYTES;
}

static void file_write(const struct file *f, const struct kvd_segment_info *info, uint64_t n)
{
    char name[KVD_SEGMENT_NAME_BYTES];
    char path[300];
    kvd_segment_name(info, name);
    (void)snprintf(path, sizeof(path), "%s/%u", e.folder, (unsigned)info->scenario);
    (void)mkdir(path, 0700);
    (void)snprintf(path, sizeof(path), "%s/%s", e.folder, name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FUZZ_CHECK(fd >= 0);
    FUZZ_CHECK(write(fd, f->bytes, n < f->n ? n : f->n) >= 0 && ftruncate(fd, (off_t)n) == 0);
    (void)close(fd);
}

static void file_make(struct fuzz_in *in, struct world *w, uint32_t nth)
{
    static struct file f;
    struct kvd_segment_info info = {.slice_s = 1767225600, .created_s = 1767225660};
    const uint8_t row = fuzz_u8(in) % 6; /* 0 and 5: the index knows nothing of it */
    const uint64_t segment = fuzz_mostly(in, nth + 1) % ROWS;
    f.n_rows = 0;
    info.slice_len_s = 3600;
    info.scenario = (uint16_t)fuzz_mostly(in, 1);
    info.epoch = fuzz_mostly(in, EPOCH - 1);
    info.number = fuzz_mostly(in, nth + 1);
    header_make(in, &f, &info);
    const uint32_t records = fuzz_u8(in) % (RECORDS_MAX + 1);
    for (uint32_t i = 0; i < records; i++) {
        record_make(in, &f, nth * 16 + i + 1);
    }
    footer_make(in, &f);
    const uint64_t n = fuzz_mostly(in, f.n);
    if (fuzz_u8(in) < 0xf8) {
        file_write(&f, &info, n < 2 * sizeof(f.bytes) ? n : f.n);
    }
    if (row >= KVD_SEGMENT_OPEN && row <= KVD_SEGMENT_DEAD && segment > 0 &&
        w->rows[segment].segment == 0) {
        info.segment = segment;
        info.state = row;
        info.bytes = f.n;
        info.records = f.n_rows;
        info.died_s = row >= KVD_SEGMENT_DYING ? info.created_s : 0;
        w->rows[segment] = info;
    }
}

/* ---- the tier's user ---- */

static int segment_changed(const struct kvd_segment_info *info, bool sync, void *user)
{
    struct world *w = user;
    (void)sync;
    FUZZ_CHECK(info->segment > 0);
    if (info->segment < ROWS) {
        w->rows[info->segment] = *info;
    }
    return 0;
}

static void record_found(const struct kvd_place *place, const struct kvd_record *rec, void *user)
{
    struct world *w = user;
    FUZZ_CHECK(place->offset % KVD_ALIGN_BYTES == 0 && place->extent_bytes > 0);
    if (w->n_found < FOUND_MAX && place->segment < ROWS) {
        w->found[w->n_found++] = (struct found){.place = *place,
                                                .info = w->rows[place->segment],
                                                .put_id = rec->put_id,
                                                .stored_sum = rec->stored_sum};
    }
}

static struct kvd_tier *tier_open(struct world *w)
{
    struct kvd_segment_info known[ROWS];
    struct kvd_tier *tier = NULL;
    struct kvd_diag diag = {""};
    uint32_t n = 0;
    uint64_t next = 1;
    for (uint64_t i = 1; i < ROWS; i++) {
        if (w->rows[i].segment) {
            known[n++] = w->rows[i];
            next = i + 1;
        }
    }
    w->n_found = 0;
    const struct kvd_tier_options options = {
        .path = e.folder,
        .cap_bytes = CAP_BYTES,
        .segment_bytes = 1 << 20,
        .store = store,
        .seed = SEED,
        .epoch = EPOCH,
        .next_segment = next,
        .known = known,
        .n_known = n,
        .queue_bytes = 1 << 20,
        .scenarios = e.scenarios,
        .io = e.io,
        .events = {segment_changed, record_found, w},
        .log = &e.log,
    };
    const int err = kvd_tier_nvme.open(&options, &diag, &tier);
    FUZZ_CHECK(err == 0 || diag.text[0]);
    return err ? NULL : tier;
}

struct wait {
    pthread_mutex_t mtx;
    pthread_cond_t cond;
    bool done; /* lock: mtx */
};

static void fetched(struct kvd_fetch_request *req)
{
    struct wait *wait = req->user;
    (void)pthread_mutex_lock(&wait->mtx);
    wait->done = true;
    (void)pthread_cond_signal(&wait->cond);
    (void)pthread_mutex_unlock(&wait->mtx);
}

/* What was reported is there, and is that record. */
static void read_found(struct kvd_tier *tier, const struct found *f)
{
    static uint32_t tokens[KVD_RECORD_BLOCKS_MAX * KVD_BLOCK_TOKENS_MAX];
    struct wait wait = {.mtx = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    struct kvd_record rec;
    uint32_t header = 0;
    uint8_t *buf = aligned_alloc(KVD_ALIGN_BYTES, f->place.extent_bytes);
    FUZZ_CHECK(buf != NULL);
    struct kvd_fetch_request req = {
        .place = f->place, .extent = buf, .buffer_index = -1, .done = fetched, .user = &wait};
    struct kvd_fetch_request *one = &req;
    FUZZ_CHECK(kvd_tier_nvme.fetch(tier, &one, 1) == 0);
    (void)pthread_mutex_lock(&wait.mtx);
    while (!wait.done) {
        (void)pthread_cond_wait(&wait.cond, &wait.mtx);
    }
    (void)pthread_mutex_unlock(&wait.mtx);
    if (req.result == 0) {
        FUZZ_CHECK(kvd_record_decode(buf, f->place.extent_bytes, tokens,
                                     sizeof(tokens) / sizeof(tokens[0]), &rec, &header) == 0);
        FUZZ_CHECK(rec.put_id == f->put_id && rec.stored_sum == f->stored_sum);
        FUZZ_CHECK(kvd_record_extent_bytes(&rec) == f->place.extent_bytes);
    }
    free(buf);
}

static bool was_found(const struct world *w, const struct found *f)
{
    for (uint32_t i = 0; i < w->n_found; i++) {
        const struct found *o = &w->found[i];
        if (o->info.epoch == f->info.epoch && o->info.number == f->info.number &&
            o->place.offset == f->place.offset) {
            return o->put_id == f->put_id && o->place.extent_bytes == f->place.extent_bytes;
        }
    }
    return false;
}

/* A start over the folder: reads what it reports, each of which is reported once. */
static bool run(struct world *w)
{
    struct kvd_tier_stat stat;
    struct kvd_tier *tier = tier_open(w);
    if (!tier) {
        return false;
    }
    for (uint32_t i = 0; i < w->n_found; i++) {
        read_found(tier, &w->found[i]);
        for (uint32_t j = 0; j < i; j++) {
            FUZZ_CHECK(w->found[i].place.segment != w->found[j].place.segment ||
                       w->found[i].place.offset != w->found[j].place.offset);
        }
    }
    kvd_tier_nvme.stat(tier, &stat);
    FUZZ_CHECK(stat.used_bytes < 2 * (uint64_t)CAP_BYTES);
    kvd_tier_nvme.close(&tier);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_in in = {data, size};
    struct world first = {0};
    struct world second = {0};
    struct world third = {0};
    if (!e.io) {
        start();
    }
    for (uint32_t i = 0; i < FILES_MAX && in.left > 0; i++) {
        file_make(&in, &first, i);
    }
    if (run(&first) && run(&second) && run(&third)) {
        FUZZ_CHECK(second.n_found == third.n_found);
        for (uint32_t i = 0; i < second.n_found; i++) {
            FUZZ_CHECK(was_found(&third, &second.found[i]));
        }
    }
    folder_clear();
    return 0;
}
