/*
 * For tests of the nvme tier: a folder, an engine, rows of segments as the tier's user would keep
 * them, and records that can be told apart. Rows lie in memory that a forked child shares, so that
 * a child's sudden end leaves them behind like an index would.
 */
#ifndef TESTS_UNIT_TIER_NVME_WORLD_H
#define TESTS_UNIT_TIER_NVME_WORLD_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cachesvc/tier/segment_file.h"
#include "cachesvc/tier/tier.h"
#include "proto/base/bytes.h"
#include "proto/base/cleanup.h"
#include "proto/base/clock.h"

enum {
    WORLD_ROWS = 2048,
    WORLD_FOUND = 4096,
    WORLD_TOKENS = 64,
    WORLD_SLICE_S = 3600,
    WORLD_WAIT_S = 20,
};
#define WORLD_T0 UINT64_C(1767225600)
#define MIB (UINT64_C(1) << 20)

struct found {
    struct kvd_place place;
    uint64_t put_id;
};

/* Shared with forked children. */
struct world_rows {
    struct kvd_segment_info rows[WORLD_ROWS]; /* by segment number */
    struct kvd_place places[WORLD_FOUND];     /* by put id */
};

struct world {
    char dir[64];
    struct world_rows *shared;
    struct kvd_io *io;
    struct kvd_tier *tier;
    struct kvd_scenarios *scenarios;
    struct kvd_log log;
    uint64_t epoch;
    uint64_t now_s;
    uint64_t cap_bytes;
    uint64_t segment_bytes;
    uint64_t queue_bytes;
    bool rows_fail;   /* segment_changed refuses DYING rows */
    bool forget_rows; /* open as if the index were lost */
    pthread_mutex_t mtx;
    pthread_cond_t cond;
    struct found found[WORLD_FOUND]; /* lock: mtx */
    uint32_t n_found;                /* lock: mtx */
    uint32_t changes;                /* lock: mtx */
    const char *broken;              /* lock: mtx; a promise of the events that was not kept */
};

/* ---- events ---- */

static bool world_file_exists(const struct world *w, const struct kvd_segment_info *info)
{
    char name[KVD_SEGMENT_NAME_BYTES];
    char path[192];
    kvd_segment_name(info, name);
    (void)snprintf(path, sizeof(path), "%s/%s", w->dir, name);
    return access(path, F_OK) == 0;
}

static int world_segment_changed(const struct kvd_segment_info *info, bool sync, void *user)
{
    struct world *w = user;
    int err = 0;
    (void)pthread_mutex_lock(&w->mtx);
    if (info->segment == 0 || info->segment >= WORLD_ROWS) {
        w->broken = "a segment number is out of range";
    } else if (info->state == KVD_SEGMENT_DYING && w->rows_fail) {
        err = -KVD_E_IO;
    } else {
        uint8_t was = w->shared->rows[info->segment].state;
        if (info->state == KVD_SEGMENT_DYING && !sync) {
            w->broken = "a dying row was not synced";
        }
        if (info->state == KVD_SEGMENT_OPEN && !world_file_exists(w, info)) {
            w->broken = "a row came before its file";
        }
        if (info->state == KVD_SEGMENT_DEAD && world_file_exists(w, info)) {
            w->broken = "a file is there after its segment's death";
        }
        if (was == KVD_SEGMENT_DEAD && info->state != KVD_SEGMENT_DEAD) {
            w->broken = "a dead segment came back";
        }
        w->shared->rows[info->segment] = *info;
    }
    w->changes++;
    (void)pthread_cond_broadcast(&w->cond);
    (void)pthread_mutex_unlock(&w->mtx);
    return err;
}

static void world_record_found(const struct kvd_place *place, const struct kvd_record *rec,
                               void *user)
{
    struct world *w = user;
    (void)pthread_mutex_lock(&w->mtx);
    if (w->shared->rows[place->segment].state == 0) {
        w->broken = "a record was reported before its segment's row";
    }
    if (w->n_found < WORLD_FOUND) {
        w->found[w->n_found++] = (struct found){.place = *place, .put_id = rec->put_id};
    }
    (void)pthread_mutex_unlock(&w->mtx);
}

/* ---- the folder ---- */

static int world_remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static uint64_t world_walk_bytes;
static unsigned world_walk_files;

static int world_count_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)path;
    (void)ftw;
    if (type == FTW_F) {
        uint64_t blocks = (uint64_t)st->st_blocks * 512;
        world_walk_bytes += blocks > (uint64_t)st->st_size ? blocks : (uint64_t)st->st_size;
        world_walk_files++;
    }
    return 0;
}

/* What the files of the folder take, and how many there are. */
static inline uint64_t world_disk_bytes(const struct world *w, unsigned *ret_files)
{
    world_walk_bytes = 0;
    world_walk_files = 0;
    (void)nftw(w->dir, world_count_entry, 16, FTW_PHYS);
    if (ret_files) {
        *ret_files = world_walk_files;
    }
    return world_walk_bytes;
}

static inline void world_path(const struct world *w, uint64_t segment, char *ret, size_t n)
{
    char name[KVD_SEGMENT_NAME_BYTES];
    kvd_segment_name(&w->shared->rows[segment], name);
    (void)snprintf(ret, n, "%s/%s", w->dir, name);
}

/* ---- life ---- */

/* Eight classes, ids 1 to 8, with slices of an hour. */
static inline struct kvd_scenarios *world_scenarios(void)
{
    char text[2048];
    int n = snprintf(text, sizeof(text), "scenarios:\n");
    for (int id = 1; id <= 8; id++) {
        n += snprintf(text + n, sizeof(text) - (size_t)n,
                      "  - id: %d\n    name: class%d\n    retention: 7d\n    from: last-use\n"
                      "    nvme: true\n    slice: 1h\n",
                      id, id);
    }
    struct kvd_scenarios *s = NULL;
    struct kvd_diag diag = {{0}};
    if (kvd_scenarios_parse(text, (size_t)n, "test", &diag, &s) != 0) {
        fail_msg("%s", diag.text);
    }
    return s;
}

static inline void world_init(struct world *w, struct kvd_io *io)
{
    memset(w, 0, sizeof(*w));
    const char *parent = getenv("TMPDIR");
    (void)snprintf(w->dir, sizeof(w->dir), "%.30s/kvd_nvme.XXXXXX", parent ? parent : ".");
    assert_non_null(mkdtemp(w->dir));
    w->shared =
        mmap(NULL, sizeof(*w->shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(w->shared != MAP_FAILED);
    (void)pthread_mutex_init(&w->mtx, NULL);
    (void)pthread_cond_init(&w->cond, NULL);
    kvd_log_init(&w->log, 2, "test", KVD_LOG_ERROR);
    atomic_store(&w->log.level, -1); /* what it would say is expected here */
    w->scenarios = world_scenarios();
    w->io = io;
    w->now_s = WORLD_T0;
    w->cap_bytes = 64 * MIB;
    w->segment_bytes = 2 * MIB;
    w->queue_bytes = 256 * MIB;
}

/* What the events' receiver saw must have been as promised. */
static inline void world_check(struct world *w)
{
    (void)pthread_mutex_lock(&w->mtx);
    const char *broken = w->broken;
    (void)pthread_mutex_unlock(&w->mtx);
    if (broken) {
        fail_msg("%s", broken);
    }
}

static inline int world_open_diag(struct world *w, struct kvd_diag *diag)
{
    struct kvd_segment_info *known = calloc(WORLD_ROWS, sizeof(*known));
    assert_non_null(known);
    uint32_t n = 0;
    uint64_t next = 1;
    for (uint64_t i = 1; i < WORLD_ROWS; i++) {
        if (w->shared->rows[i].segment != 0 && !w->forget_rows) {
            known[n++] = w->shared->rows[i];
            next = i + 1;
        }
    }
    if (w->forget_rows) {
        memset(w->shared->rows, 0, sizeof(w->shared->rows));
    }
    w->n_found = 0;
    const struct kvd_tier_options options = {
        .path = w->dir,
        .cap_bytes = w->cap_bytes,
        .segment_bytes = w->segment_bytes,
        .store = {{1, 2, 3}},
        .seed = 77,
        .epoch = ++w->epoch,
        .next_segment = next,
        .known = known,
        .n_known = n,
        .queue_bytes = w->queue_bytes,
        .scenarios = w->scenarios,
        .io = w->io,
        .events = {world_segment_changed, world_record_found, w},
        .log = &w->log};
    int err = kvd_tier_nvme.open(&options, diag, &w->tier);
    free(known);
    return err;
}

static inline void world_open(struct world *w)
{
    struct kvd_diag diag = {{0}};
    if (world_open_diag(w, &diag) != 0) {
        fail_msg("open: %s", diag.text);
    }
}

static inline void world_close(struct world *w)
{
    kvd_tier_nvme.close(&w->tier);
    assert_null(w->tier);
    world_check(w);
}

static inline void world_fini(struct world *w)
{
    kvd_tier_nvme.close(&w->tier);
    kvd_scenarios_destroy(&w->scenarios);
    (void)nftw(w->dir, world_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    (void)munmap(w->shared, sizeof(*w->shared));
    world_check(w);
}

/* ---- records ---- */

static inline uint8_t world_byte(uint64_t put_id, uint64_t i)
{
    return (uint8_t)(put_id * 131 + i * 7 + i / 4096);
}

/* A record of one block whose bytes follow from its put id. Returns the extent; free() it. */
static inline uint8_t *world_record(uint64_t put_id, uint16_t scenario, uint32_t payload_bytes,
                                    struct kvd_store_request *ret_req)
{
    uint32_t tokens[WORLD_TOKENS];
    struct kvd_record rec = {.scenario = scenario,
                             .n_blocks = 1,
                             .n_parts = 1,
                             .raw_bytes = payload_bytes,
                             .stored_bytes = payload_bytes,
                             .created_s = WORLD_T0,
                             .put_id = put_id,
                             .parts = {{.kind = KVD_PART_KV, .raw_bytes = payload_bytes}}};
    for (uint32_t i = 0; i < WORLD_TOKENS; i++) {
        tokens[i] = (uint32_t)put_id * 1000 + i;
    }
    kvd_put_le64(rec.blocks[0].key.b, put_id);
    rec.blocks[0].tokens = tokens;
    rec.blocks[0].n_tokens = WORLD_TOKENS;
    uint64_t extent_bytes = kvd_record_extent_bytes(&rec);
    uint8_t *extent = aligned_alloc(KVD_ALIGN_BYTES, extent_bytes);
    assert_non_null(extent);
    memset(extent, 0, extent_bytes);
    uint8_t *payload = extent + KVD_ALIGN_BYTES;
    for (uint32_t i = 0; i < payload_bytes; i++) {
        payload[i] = world_byte(put_id, i);
    }
    rec.raw_sum = rec.stored_sum = kvd_sum(payload, payload_bytes);
    assert_int_equal(kvd_record_encode(&rec, extent, extent_bytes), KVD_ALIGN_BYTES);
    *ret_req = (struct kvd_store_request){.extent = extent,
                                          .extent_bytes = extent_bytes,
                                          .buffer_index = -1,
                                          .scenario = scenario,
                                          .row = {.n_blocks = 1,
                                                  .put_id = put_id,
                                                  .extent_bytes = (uint32_t)extent_bytes,
                                                  .first_key = rec.blocks[0].key}};
    return extent;
}

struct world_put {
    struct kvd_store_request req;
    uint8_t *extent;
    struct world *w;
};

static inline void world_stored(struct kvd_store_request *req)
{
    struct world_put *put = req->user;
    uint64_t id = req->row.put_id;
    if (req->result == 0 && id < WORLD_FOUND) {
        put->w->shared->places[id] = req->place;
        /* a segment whose row says SEALED is not read at start: nobody would find the record then
         */
        (void)pthread_mutex_lock(&put->w->mtx);
        if (put->w->shared->rows[req->place.segment].state != KVD_SEGMENT_OPEN) {
            put->w->broken = "a record was reported after its segment was sealed";
        }
        (void)pthread_mutex_unlock(&put->w->mtx);
    }
}

/* Stores n records with consecutive ids in one call and waits. results: n, or NULL where all must
 * be stored. */
static inline void world_store(struct world *w, uint64_t first_id, uint32_t n, uint16_t scenario,
                               uint32_t payload_bytes, int *results)
{
    struct world_put *puts = calloc(n, sizeof(*puts));
    struct kvd_store_request **reqs = calloc(n, sizeof(struct kvd_store_request *));
    assert_true(puts && reqs);
    for (uint32_t i = 0; i < n; i++) {
        puts[i].extent = world_record(first_id + i, scenario, payload_bytes, &puts[i].req);
        puts[i].req.now_s = w->now_s;
        puts[i].req.done = world_stored;
        puts[i].req.user = &puts[i];
        puts[i].w = w;
        reqs[i] = &puts[i].req;
    }
    assert_int_equal(kvd_tier_nvme.store(w->tier, reqs, n), 0);
    assert_int_equal(kvd_tier_nvme.flush(w->tier, kvd_mono_ns() + WORLD_WAIT_S * KVD_NS_PER_S), 0);
    for (uint32_t i = 0; i < n; i++) {
        if (results) {
            results[i] = puts[i].req.result;
        } else {
            assert_int_equal(puts[i].req.result, 0);
        }
        free(puts[i].extent);
    }
    free(puts);
    free(reqs);
}

struct world_get {
    struct kvd_fetch_request req;
    pthread_mutex_t mtx;
    pthread_cond_t cond;
    bool done; /* lock: mtx */
};

static inline void world_fetched(struct kvd_fetch_request *req)
{
    struct world_get *get = req->user;
    (void)pthread_mutex_lock(&get->mtx);
    get->done = true;
    (void)pthread_cond_signal(&get->cond);
    (void)pthread_mutex_unlock(&get->mtx);
}

/* Whether an extent is, byte for byte, the record of this id. */
static inline bool world_is_record(const uint8_t *extent, uint64_t extent_bytes, uint64_t put_id)
{
    static _Thread_local uint32_t tokens[KVD_RECORD_BLOCKS_MAX * KVD_BLOCK_TOKENS_MAX];
    struct kvd_record rec;
    uint32_t header_bytes;
    if (kvd_record_decode(extent, extent_bytes, tokens, sizeof(tokens) / sizeof(tokens[0]), &rec,
                          &header_bytes) != 0 ||
        rec.put_id != put_id || kvd_record_check_stored(&rec, extent + header_bytes) != 0) {
        return false;
    }
    for (uint64_t i = 0; i < rec.raw_bytes; i++) {
        if (extent[header_bytes + i] != world_byte(put_id, i)) {
            return false;
        }
    }
    return true;
}

/* Reads a place and compares it with the record of this id. Returns the fetch's result, or
 * -KVD_E_CORRUPT where it succeeded with other bytes. */
static inline int world_fetch_at(struct world *w, const struct kvd_place *place, uint64_t put_id)
{
    struct world_get get = {.mtx = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    uint64_t bytes = place->extent_bytes ? place->extent_bytes : KVD_ALIGN_BYTES;
    KVD_AUTOFREE uint8_t *buf = aligned_alloc(KVD_ALIGN_BYTES, bytes);
    assert_non_null(buf);
    memset(buf, 0, bytes);
    get.req = (struct kvd_fetch_request){
        .place = *place, .extent = buf, .buffer_index = -1, .done = world_fetched, .user = &get};
    struct kvd_fetch_request *req = &get.req;
    assert_int_equal(kvd_tier_nvme.fetch(w->tier, &req, 1), 0);
    (void)pthread_mutex_lock(&get.mtx);
    while (!get.done) {
        (void)pthread_cond_wait(&get.cond, &get.mtx);
    }
    (void)pthread_mutex_unlock(&get.mtx);
    return req->result ? req->result : world_is_record(buf, bytes, put_id) ? 0 : -KVD_E_CORRUPT;
}

static inline int world_fetch(struct world *w, uint64_t put_id)
{
    struct kvd_place place = w->shared->places[put_id];
    return world_fetch_at(w, &place, put_id);
}

/* Times that a record was reported at start; its last place. */
static inline uint32_t world_found(const struct world *w, uint64_t put_id,
                                   struct kvd_place *ret_place)
{
    uint32_t times = 0;
    for (uint32_t i = 0; i < w->n_found; i++) {
        if (w->found[i].put_id == put_id) {
            times++;
            *ret_place = w->found[i].place;
        }
    }
    return times;
}

#endif
