/* The nvme tier: writing, reading, caps, eviction, expiry, failing devices. Start-up after crashes
 * and with strange files is in test_nvme_recover.c. */
#include "kvd_test.h"

#include <sched.h>
#include <sys/mount.h>

#include "fault_io.h"
#include "nvme_world.h"

enum { KIB = 1024, RECORD = 200 * KIB };

/* ---- both engines ---- */

static struct kvd_io *open_engine(const char *name)
{
    struct kvd_diag diag = {{0}};
    struct kvd_io *io = NULL;
    int err = kvd_io_open(name, 16, &diag, &io);
    if (err == -EPERM || err == -ENOSYS) {
        KVD_SKIP("io_uring", "%s", diag.text);
    }
    assert_int_equal(err, 0);
    return io;
}

static int setup_with(void **state, const char *engine)
{
    struct world *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    world_init(w, open_engine(engine));
    *state = w;
    return 0;
}

static int setup_uring(void **state)
{
    return setup_with(state, "auto");
}

static int setup_threads(void **state)
{
    return setup_with(state, "threads");
}

static int teardown(void **state)
{
    struct world *w = *state;
    fault_clear();
    world_fini(w);
    kvd_io_close(&w->io);
    free(w);
    return 0;
}

static struct kvd_tier_stat stat_of(struct world *w)
{
    struct kvd_tier_stat stat;
    kvd_tier_nvme.stat(w->tier, &stat);
    return stat;
}

/* ---- tests ---- */

static void test_write_read_restart(void **state)
{
    struct world *w = *state;
    world_open(w);
    world_store(w, 1, 20, 1, RECORD, NULL);
    world_store(w, 21, 20, 2, 100, NULL);
    for (uint64_t id = 1; id <= 40; id++) {
        assert_int_equal(world_fetch(w, id), 0);
    }
    struct kvd_tier_stat stat = stat_of(w);
    assert_int_equal(stat.records, 40);
    assert_int_equal(stat.queue_bytes, 0);
    assert_int_equal(stat.failed_writes, 0);
    assert_int_equal(stat.read_bytes, stat.written_bytes);
    world_close(w);

    world_open(w);
    assert_int_equal(w->n_found, 0); /* the rows say it all */
    for (uint64_t id = 1; id <= 40; id++) {
        assert_int_equal(world_fetch(w, id), 0);
    }
    struct kvd_tier_stat again = stat_of(w);
    assert_int_equal(again.records, 40);
    assert_int_equal(again.used_bytes, world_disk_bytes(w, NULL));
    uint64_t per[9] = {0};
    kvd_tier_nvme.scenario_bytes(w->tier, per, 9);
    assert_int_equal(per[1] + per[2], again.used_bytes);
    assert_true(per[1] > per[2] && per[2] > 0);
}

static void test_place_is_unique(void **state)
{
    struct world *w = *state;
    world_open(w);
    world_store(w, 1, 60, 1, RECORD, NULL);
    for (uint64_t a = 1; a <= 60; a++) {
        for (uint64_t b = a + 1; b <= 60; b++) {
            const struct kvd_place *p = &w->shared->places[a];
            const struct kvd_place *q = &w->shared->places[b];
            assert_true(p->segment != q->segment || p->offset + p->extent_bytes <= q->offset ||
                        q->offset + q->extent_bytes <= p->offset);
        }
    }
}

static void test_unknown_place(void **state)
{
    struct world *w = *state;
    world_open(w);
    world_store(w, 1, 1, 1, RECORD, NULL);
    struct kvd_place place = w->shared->places[1];
    place.segment = 99;
    assert_int_equal(world_fetch_at(w, &place, 1), -KVD_E_NOT_FOUND);
    place.segment = 0;
    assert_int_equal(world_fetch_at(w, &place, 1), -KVD_E_NOT_FOUND);
    place = w->shared->places[1];
    place.offset = UINT64_C(1) << 40;
    assert_int_equal(world_fetch_at(w, &place, 1), -KVD_E_IO);
    place = w->shared->places[1];
    place.extent_bytes = 0;
    assert_int_equal(world_fetch_at(w, &place, 1), -KVD_E_NOT_FOUND);
    assert_false(kvd_tier_nvme.live(w->tier, 99, NULL));
    assert_true(kvd_tier_nvme.live(w->tier, 1, NULL));
}

static void test_bad_records(void **state)
{
    struct world *w = *state;
    world_open(w);
    int result;
    world_store(w, 1, 1, 1, (uint32_t)w->segment_bytes, &result);
    assert_int_equal(result, -KVD_E_TOO_LONG);
    world_store(w, 2, 1, 77, RECORD, &result);
    assert_int_equal(result, -KVD_E_UNKNOWN_SCENARIO);
    struct kvd_store_request req;
    uint8_t *extent = world_record(3, 1, RECORD, &req);
    struct kvd_store_request *ptr = &req;
    req.extent_bytes -= 1;
    assert_int_equal(kvd_tier_nvme.store(w->tier, &ptr, 1), -KVD_E_BAD_REQUEST);
    req.extent_bytes = 0;
    assert_int_equal(kvd_tier_nvme.store(w->tier, &ptr, 1), -KVD_E_BAD_REQUEST);
    free(extent);
    world_store(w, 4, 1, 1, RECORD, NULL);
    assert_int_equal(world_fetch(w, 4), 0);
    assert_int_equal(stat_of(w).failed_writes, 2);
}

static void test_refused_options(void **state)
{
    struct world *w = *state;
    struct kvd_diag diag = {{0}};
    w->cap_bytes = w->segment_bytes;
    assert_int_equal(world_open_diag(w, &diag), -KVD_E_CONFIG);
    assert_non_null(strstr(diag.text, "cap"));
    w->segment_bytes = 0;
    w->cap_bytes = 1;
    assert_int_equal(world_open_diag(w, &diag), -KVD_E_CONFIG);
    w->cap_bytes = 64 * MIB;
    char dir[sizeof(w->dir)];
    memcpy(dir, w->dir, sizeof(dir));
    (void)snprintf(w->dir, sizeof(w->dir), "/proc/self/no-such/folder");
    assert_int_equal(world_open_diag(w, &diag), -ENOENT);
    assert_non_null(strstr(diag.text, "/proc/self/no-such/folder"));
    memcpy(w->dir, dir, sizeof(dir));
    assert_null(w->tier);
}

/* A long stream into two classes: what lies on disk stays under what is counted, which stays under
 * the cap, at every step; the oldest goes first and whole. */
static void test_cap_is_never_exceeded(void **state)
{
    struct world *w = *state;
    w->cap_bytes = 16 * MIB;
    w->segment_bytes = 0; /* chosen: 1 MiB */
    world_open(w);
    for (uint64_t id = 1; id <= 150; id++) {
        w->now_s += 60;
        world_store(w, id, 1, 1 + id % 2, RECORD, NULL);
        struct kvd_tier_stat stat = stat_of(w);
        assert_true(stat.used_bytes <= w->cap_bytes);
        assert_true(world_disk_bytes(w, NULL) <= stat.used_bytes);
    }
    struct kvd_tier_stat stat = stat_of(w);
    assert_int_equal(stat.records + stat.dropped_records, 150);
    assert_true(stat.records * RECORD > w->cap_bytes / 2); /* and it is used */
    uint64_t missing = 0;
    for (uint64_t id = 1; id <= 150; id++) {
        int err = world_fetch(w, id);
        assert_true(err == 0 || err == -KVD_E_NOT_FOUND);
        missing += err != 0;
        if (err) {
            struct kvd_segment_info info;
            assert_false(kvd_tier_nvme.live(w->tier, w->shared->places[id].segment, &info));
            assert_int_equal(info.gone, KVD_GONE_EVICTED);
            assert_true(info.died_s > info.created_s && info.died_s <= w->now_s);
        }
    }
    assert_int_equal(missing, stat.dropped_records);
    assert_int_equal(world_fetch(w, 150), 0);
    assert_int_equal(world_fetch(w, 1), -KVD_E_NOT_FOUND);
}

/* More classes in one batch than the cap has room for segments. */
static void test_more_classes_than_segments(void **state)
{
    enum { N = 48 };
    struct world *w = *state;
    w->segment_bytes = 1 * MIB;
    w->cap_bytes = 3 * MIB + 512 * KIB;
    world_open(w);
    struct world_put puts[N];
    struct kvd_store_request *reqs[N];
    for (unsigned i = 0; i < N; i++) {
        puts[i].extent = world_record(i + 1, 1 + i % 8, RECORD, &puts[i].req);
        puts[i].req.now_s = w->now_s;
        puts[i].req.done = world_stored;
        puts[i].req.user = &puts[i];
        puts[i].w = w;
        reqs[i] = &puts[i].req;
    }
    assert_int_equal(kvd_tier_nvme.store(w->tier, reqs, N), 0);
    assert_int_equal(kvd_tier_nvme.flush(w->tier, kvd_mono_ns() + WORLD_WAIT_S * KVD_NS_PER_S), 0);
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(puts[i].req.result, 0);
        free(puts[i].extent);
    }
    struct kvd_tier_stat stat = stat_of(w);
    assert_true(stat.used_bytes <= w->cap_bytes);
    assert_int_equal(stat.records + stat.dropped_records, N);
    assert_int_equal(world_fetch(w, N), 0);
}

static void test_lower_cap_at_start(void **state)
{
    struct world *w = *state;
    world_open(w);
    world_store(w, 1, 100, 1, RECORD, NULL);
    world_close(w);
    w->cap_bytes = 10 * MIB;
    world_open(w);
    assert_true(stat_of(w).used_bytes <= w->cap_bytes);
    assert_true(world_disk_bytes(w, NULL) <= w->cap_bytes);
    assert_int_equal(world_fetch(w, 100), 0);
    assert_int_equal(world_fetch(w, 1), -KVD_E_NOT_FOUND);
}

static bool class_one(const struct kvd_segment_info *info, void *user)
{
    (*(unsigned *)user)++;
    return info->scenario == 1;
}

static void test_expired_segments_go(void **state)
{
    struct world *w = *state;
    world_open(w);
    world_store(w, 1, 3, 1, RECORD, NULL);
    world_store(w, 4, 3, 2, RECORD, NULL);
    unsigned asked = 0;
    assert_int_equal(kvd_tier_nvme.reclaim(w->tier, w->now_s, class_one, &asked), 0);
    assert_int_equal(asked, 0); /* both are being written still */
    w->now_s += WORLD_SLICE_S;
    assert_int_equal(kvd_tier_nvme.reclaim(w->tier, w->now_s, class_one, &asked), 0);
    assert_int_equal(asked, 2);
    struct kvd_segment_info info;
    assert_false(kvd_tier_nvme.live(w->tier, w->shared->places[1].segment, &info));
    assert_int_equal(info.gone, KVD_GONE_EXPIRED);
    assert_int_equal(info.died_s, w->now_s);
    assert_int_equal(world_fetch(w, 1), -KVD_E_NOT_FOUND);
    assert_int_equal(world_fetch(w, 4), 0);
    assert_true(kvd_tier_nvme.live(w->tier, w->shared->places[4].segment, &info));
    assert_int_equal(info.state, KVD_SEGMENT_SEALED);
    assert_int_equal(stat_of(w).dropped_records, 3);
    world_store(w, 7, 1, 1, RECORD, NULL); /* and a new slice begins */
    assert_true(w->shared->places[7].segment > w->shared->places[4].segment);
    world_close(w);
    world_open(w);
    assert_false(kvd_tier_nvme.live(w->tier, w->shared->places[1].segment, &info));
    assert_int_equal(info.gone, KVD_GONE_EXPIRED);
}

/* A row that can't be written keeps its segment: nothing is unlinked that the index believes in. */
static void test_no_death_without_a_row(void **state)
{
    struct world *w = *state;
    world_open(w);
    world_store(w, 1, 3, 1, RECORD, NULL);
    w->now_s += WORLD_SLICE_S;
    w->rows_fail = true;
    unsigned asked = 0;
    assert_int_equal(kvd_tier_nvme.reclaim(w->tier, w->now_s, class_one, &asked), -KVD_E_IO);
    assert_int_equal(world_fetch(w, 1), 0);
    w->rows_fail = false;
    assert_int_equal(kvd_tier_nvme.reclaim(w->tier, w->now_s, class_one, &asked), 0);
    assert_int_equal(world_fetch(w, 1), -KVD_E_NOT_FOUND);
}

static void test_deleted_file(void **state)
{
    struct world *w = *state;
    char path[192];
    world_open(w);
    world_store(w, 1, 3, 1, RECORD, NULL);
    world_store(w, 4, 1, 2, RECORD, NULL);
    world_close(w);
    world_open(w);
    uint64_t segment = w->shared->places[1].segment;
    world_path(w, segment, path, sizeof(path));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(world_fetch(w, 1), -KVD_E_NOT_FOUND);
    assert_false(kvd_tier_nvme.live(w->tier, segment, NULL));
    (void)pthread_mutex_lock(&w->mtx);
    while (w->shared->rows[segment].state != KVD_SEGMENT_DEAD) {
        (void)pthread_cond_wait(&w->cond, &w->mtx);
    }
    assert_int_equal(w->shared->rows[segment].gone, KVD_GONE_LOST);
    (void)pthread_mutex_unlock(&w->mtx);
    assert_int_equal(world_fetch(w, 4), 0);
    world_store(w, 5, 1, 1, RECORD, NULL);
    assert_int_equal(world_fetch(w, 5), 0);
    assert_int_equal(world_fetch(w, 2), -KVD_E_NOT_FOUND);
}

/* The file that is being written: its end is noticed when it is to be sealed. */
static void test_deleted_open_file(void **state)
{
    struct world *w = *state;
    char path[192];
    world_open(w);
    world_store(w, 1, 1, 1, RECORD, NULL);
    world_path(w, w->shared->places[1].segment, path, sizeof(path));
    assert_int_equal(unlink(path), 0);
    world_close(w);
    assert_int_equal(w->shared->rows[1].state, KVD_SEGMENT_DEAD);
    assert_int_equal(w->shared->rows[1].gone, KVD_GONE_LOST);
}

static void test_truncated_file(void **state)
{
    struct world *w = *state;
    char path[192];
    world_open(w);
    world_store(w, 1, 3, 1, RECORD, NULL);
    world_close(w);
    world_open(w);
    world_path(w, w->shared->places[3].segment, path, sizeof(path));
    assert_int_equal(truncate(path, (off_t)w->shared->places[3].offset + 5000), 0);
    assert_int_equal(world_fetch(w, 1), 0);
    assert_int_equal(world_fetch(w, 3), -KVD_E_IO);
    world_store(w, 4, 1, 1, RECORD, NULL);
    assert_int_equal(world_fetch(w, 4), 0);
}

/* ---- a queue that is full ---- */

struct gate {
    struct world_put put;
    pthread_mutex_t mtx;
    pthread_cond_t cond;
    bool reached; /* lock: mtx */
    bool open;    /* lock: mtx */
};

static void wait_at_gate(struct kvd_store_request *req)
{
    struct gate *g = req->user;
    (void)pthread_mutex_lock(&g->mtx);
    g->reached = true;
    (void)pthread_cond_broadcast(&g->cond);
    while (!g->open) {
        (void)pthread_cond_wait(&g->cond, &g->mtx);
    }
    (void)pthread_mutex_unlock(&g->mtx);
}

static void nothing(struct kvd_store_request *req)
{
    (void)req;
}

static void test_queue_is_bounded(void **state)
{
    struct world *w = *state;
    w->queue_bytes = 3 * (RECORD + 2 * KVD_ALIGN_BYTES);
    world_open(w);
    struct gate g = {.mtx = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    g.put.extent = world_record(1, 1, RECORD, &g.put.req);
    g.put.req.now_s = w->now_s;
    g.put.req.done = wait_at_gate;
    g.put.req.user = &g;
    struct kvd_store_request *req = &g.put.req;
    assert_int_equal(kvd_tier_nvme.store(w->tier, &req, 1), 0);
    (void)pthread_mutex_lock(&g.mtx);
    while (!g.reached) {
        (void)pthread_cond_wait(&g.cond, &g.mtx);
    }
    (void)pthread_mutex_unlock(&g.mtx);

    struct world_put puts[3];
    struct kvd_store_request *reqs[3];
    for (unsigned i = 0; i < 3; i++) {
        puts[i].extent = world_record(2 + i, 1, RECORD, &puts[i].req);
        puts[i].req.now_s = w->now_s;
        puts[i].req.done = nothing;
        reqs[i] = &puts[i].req;
    }
    assert_int_equal(kvd_tier_nvme.store(w->tier, reqs, 3), -KVD_E_BUSY); /* all or none */
    assert_int_equal(kvd_tier_nvme.store(w->tier, reqs, 2), 0);
    assert_int_equal(kvd_tier_nvme.store(w->tier, reqs + 2, 1), -KVD_E_BUSY);
    assert_int_equal(kvd_tier_nvme.flush(w->tier, kvd_mono_ns()), -KVD_E_DEADLINE);
    (void)pthread_mutex_lock(&g.mtx);
    g.open = true;
    (void)pthread_cond_broadcast(&g.cond);
    (void)pthread_mutex_unlock(&g.mtx);
    assert_int_equal(kvd_tier_nvme.flush(w->tier, kvd_mono_ns() + WORLD_WAIT_S * KVD_NS_PER_S), 0);
    assert_int_equal(kvd_tier_nvme.store(w->tier, reqs + 2, 1), 0);
    assert_int_equal(kvd_tier_nvme.flush(w->tier, kvd_mono_ns() + WORLD_WAIT_S * KVD_NS_PER_S), 0);
    assert_int_equal(stat_of(w).records, 4);
    for (unsigned i = 0; i < 3; i++) {
        free(puts[i].extent);
    }
    free(g.put.extent);
}

/* ---- reading while segments go ---- */

struct reader {
    struct world *w;
    pthread_mutex_t *mtx;
    uint64_t *last_id; /* lock: mtx; 0 at the end */
    uint64_t rng;
    unsigned good;
    unsigned gone;
    unsigned wrong;
};

static void *reader_thread(void *user)
{
    struct reader *r = user;
    for (;;) {
        (void)pthread_mutex_lock(r->mtx);
        uint64_t last = *r->last_id;
        r->rng = r->rng * 6364136223846793005u + 1442695040888963407u;
        uint64_t id = last ? 1 + (r->rng >> 33) % last : 0;
        struct kvd_place place = r->w->shared->places[id];
        (void)pthread_mutex_unlock(r->mtx);
        if (id == 0) {
            return NULL;
        }
        int err = world_fetch_at(r->w, &place, id);
        r->good += err == 0;
        r->gone += err == -KVD_E_NOT_FOUND;
        r->wrong += err != 0 && err != -KVD_E_NOT_FOUND;
    }
}

static void test_fetch_during_eviction(void **state)
{
    enum { READERS = 3, RECORDS = 120 };
    struct world *w = *state;
    w->cap_bytes = 8 * MIB;
    w->segment_bytes = 1 * MIB;
    world_open(w);
    world_store(w, 1, 1, 1, RECORD, NULL);
    pthread_mutex_t mtx = PTHREAD_MUTEX_INITIALIZER;
    uint64_t last_id = 1;
    struct reader readers[READERS];
    pthread_t threads[READERS];
    for (unsigned i = 0; i < READERS; i++) {
        readers[i] = (struct reader){.w = w, .mtx = &mtx, .last_id = &last_id, .rng = i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, reader_thread, &readers[i]), 0);
    }
    for (uint64_t id = 2; id <= RECORDS; id++) {
        w->now_s += 30;
        world_store(w, id, 1, 1, RECORD, NULL);
        (void)pthread_mutex_lock(&mtx);
        last_id = id;
        (void)pthread_mutex_unlock(&mtx);
        assert_true(stat_of(w).used_bytes <= w->cap_bytes);
    }
    (void)pthread_mutex_lock(&mtx);
    last_id = 0;
    (void)pthread_mutex_unlock(&mtx);
    for (unsigned i = 0; i < READERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(readers[i].wrong, 0);
        assert_true(readers[i].good > 0);
    }
    assert_true(stat_of(w).dropped_records > 0);
}

/* ---- devices that fail ---- */

/* One write of six fails. The others are stored, the segment is sealed around the hole, and a
 * start without rows finds exactly the others. */
static void test_failed_write(void **state)
{
    struct world *w = *state;
    world_open(w);
    (void)fault_add(&(struct fault){/* the first is the header's */
                                    .op = FAULT_WRITE,
                                    .kind = FAULT_FAIL,
                                    .skip = 3,
                                    .times = 1});
    int results[6];
    world_store(w, 1, 6, 1, RECORD, results);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(results[i], i == 2 ? -EIO : 0);
        if (i != 2) {
            assert_int_equal(world_fetch(w, (uint64_t)i + 1), 0);
        }
    }
    struct kvd_segment_info info;
    assert_true(kvd_tier_nvme.live(w->tier, w->shared->places[1].segment, &info));
    assert_int_equal(info.state, KVD_SEGMENT_SEALED);
    assert_int_equal(info.records, 5);
    assert_int_equal(stat_of(w).failed_writes, 1);
    world_store(w, 7, 1, 1, RECORD, NULL);
    assert_true(w->shared->places[7].segment != w->shared->places[1].segment);
    world_close(w);

    w->forget_rows = true;
    world_open(w);
    struct kvd_place place;
    for (uint64_t id = 1; id <= 7; id++) {
        assert_int_equal(world_found(w, id, &place), id == 3 ? 0 : 1);
    }
}

/* What couldn't be made durable isn't reported as stored, and isn't found later. */
static void test_failed_sync(void **state)
{
    struct world *w = *state;
    world_open(w);
    world_store(w, 1, 2, 1, RECORD, NULL);
    (void)fault_add(&(struct fault){.op = FAULT_FDATASYNC, .kind = FAULT_FAIL, .times = 1});
    int results[3];
    world_store(w, 3, 3, 1, RECORD, results);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(results[i], -EIO);
    }
    assert_int_equal(world_fetch(w, 1), 0);
    world_store(w, 6, 1, 1, RECORD, NULL);
    world_close(w);

    w->forget_rows = true;
    world_open(w);
    struct kvd_place place;
    for (uint64_t id = 1; id <= 6; id++) {
        assert_int_equal(world_found(w, id, &place), id >= 3 && id <= 5 ? 0 : 1);
    }
}

static void test_failed_header_leaves_nothing(void **state)
{
    struct world *w = *state;
    world_open(w);
    (void)fault_add(&(struct fault){.op = FAULT_WRITE, .kind = FAULT_FAIL, .times = 1});
    int result;
    unsigned files;
    world_store(w, 1, 1, 1, RECORD, &result);
    assert_int_equal(result, -EIO);
    (void)world_disk_bytes(w, &files);
    assert_int_equal(files, 0);
    assert_int_equal(stat_of(w).used_bytes, 0);
    world_store(w, 2, 1, 1, RECORD, NULL);
}

/* A file system that is smaller than the cap, and that somebody else fills. Runs in a child with a
 * mount of its own. */
static void full_device_child(struct world *w)
{
    assert_int_equal(mount("none", w->dir, "tmpfs", 0, "size=8m"), 0);
    world_open(w);
    for (uint64_t id = 1; id <= 60; id++) { /* older segments make room for newer ones */
        world_store(w, id, 1, 1, RECORD, NULL);
    }
    assert_int_equal(world_fetch(w, 60), 0);
    assert_true(stat_of(w).dropped_records > 0);
    assert_true(stat_of(w).used_bytes <= 8 * MIB);

    char path[192];
    (void)snprintf(path, sizeof(path), "%s/somebody-else", w->dir);
    w->now_s += WORLD_SLICE_S;
    KVD_AUTOCLOSE int fd = open(path, O_CREAT | O_RDWR, 0600);
    assert_true(fd >= 0);
    /* takes what is free, and again what each eviction gives back */
    bool refused = false;
    for (unsigned i = 0; i < 100 && !refused; i++) {
        off_t size = lseek(fd, 0, SEEK_END);
        while (fallocate(fd, 0, size, 64 * KIB) == 0) {
            size += 64 * KIB;
            (void)lseek(fd, size, SEEK_SET);
        }
        int result;
        world_store(w, 100 + i, 1, (uint16_t)(1 + i % 8), RECORD, &result);
        assert_true(result == 0 || result == -ENOSPC);
        refused = result == -ENOSPC;
    }
    assert_true(refused);
    assert_string_equal(stat_of(w).state, "no space left on the device");
    assert_int_equal(ftruncate(fd, 0), 0);
    world_store(w, 300, 1, 3, RECORD, NULL);
    assert_int_equal(world_fetch(w, 300), 0);
    assert_memory_equal(stat_of(w).state, "ok", 2);
    world_close(w);
}

static void test_full_device(void **state)
{
    struct world *w = *state;
    w->segment_bytes = 1 * MIB;
    kvd_io_close(&w->io); /* nobody has threads when it forks */
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) {
            _exit(77);
        }
        w->io = open_engine("threads");
        full_device_child(w);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        KVD_SKIP("mount", "mounting a small file system needs root");
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

#define BOTH(name)                                                                                 \
    {#name " (threads)", name, setup_threads, teardown, NULL},                                     \
    {                                                                                              \
#name, name, setup_uring, teardown, NULL                                                   \
    }
#define ONE(name)                                                                                  \
    {                                                                                              \
#name, name, setup_threads, teardown, NULL                                                 \
    }

static const struct CMUnitTest tests[] = {
    BOTH(test_write_read_restart),
    BOTH(test_cap_is_never_exceeded),
    BOTH(test_fetch_during_eviction),
    BOTH(test_unknown_place),
    BOTH(test_truncated_file),
    ONE(test_place_is_unique),
    ONE(test_bad_records),
    ONE(test_refused_options),
    ONE(test_more_classes_than_segments),
    ONE(test_lower_cap_at_start),
    ONE(test_expired_segments_go),
    ONE(test_no_death_without_a_row),
    ONE(test_deleted_file),
    ONE(test_deleted_open_file),
    ONE(test_queue_is_bounded),
    ONE(test_failed_write),
    ONE(test_failed_sync),
    ONE(test_failed_header_leaves_nothing),
    ONE(test_full_device),
};

KVD_TEST_MAIN(tests)
