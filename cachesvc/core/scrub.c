#include "cachesvc/core/scrub.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "proto/base/assert.h"
#include "proto/base/bytes.h"
#include "proto/base/cleanup.h"
#include "proto/base/clock.h"

#define YIELD_MOST_NS KVD_NS_PER_S
#define YIELD_STEP_NS (10 * KVD_NS_PER_MS)
#define PERSIST_EVERY_NS (10 * KVD_NS_PER_S)

static const char row_scrub[] = "scrub";

struct scrub {
    struct kvd_service *service;
    pthread_t thread;
    bool runs; /* owner: open and close */
    pthread_mutex_t mtx;
    pthread_cond_t wake;
    bool stopping; /* lock: mtx, and all below */
    bool running;  /* now is under way */
    bool asked;    /* next is to be begun, instead of now */
    struct scrub_round next;
    struct scrub_round now;
    struct scrub_round last;
    uint64_t last_number;
    uint64_t quiet_since_s; /* end of the last round, or the store's first start */
    atomic_uint_fast64_t beat_ns;
    /* owner: the thread */
    uint64_t due_ns; /* nothing is read before: the rate */
    uint64_t persisted_ns;
    uint8_t *buf;
    uint64_t buf_bytes;
    uint32_t *tokens;
};

/* ---- where it is, across restarts ---- */

enum {
    ROW_VERSION = 1,
    ROUND_U64S = 6 + 2 * 6,
    ROW_U64S = 1 + 2 + 2 * (1 + ROUND_U64S),
    ROW_BYTES = ROW_U64S * 8,
};

/* Fields of a round one after another, so that both directions share the list. */
static void round_fields(struct scrub_round *r, uint64_t *ret[ROUND_U64S])
{
    uint64_t *fields[ROUND_U64S] = {
        &r->number,       &r->rate,          &r->started_s,    &r->ended_s,    &r->segment,
        &r->offset,       &r->nvme.records,  &r->nvme.bytes,   &r->nvme.bad,   &r->nvme.newer,
        &r->nvme.skipped, &r->nvme.expected, &r->dram.records, &r->dram.bytes, &r->dram.bad,
        &r->dram.newer,   &r->dram.skipped,  &r->dram.expected};
    memcpy(ret, fields, sizeof(fields));
}

static uint8_t *round_encode(struct scrub_round round, uint8_t *p)
{
    uint64_t *fields[ROUND_U64S];
    round_fields(&round, fields);
    p[0] = round.tiers;
    p[1] = round.asked;
    p += 8;
    for (int i = 0; i < ROUND_U64S; i++, p += 8) {
        kvd_put_le64(p, *fields[i]);
    }
    return p;
}

static const uint8_t *round_decode(const uint8_t *p, struct scrub_round *ret)
{
    uint64_t *fields[ROUND_U64S];
    round_fields(ret, fields);
    ret->tiers = p[0] & SCRUB_ALL;
    ret->asked = p[1];
    p += 8;
    for (int i = 0; i < ROUND_U64S; i++, p += 8) {
        *fields[i] = kvd_get_le64(p);
    }
    return p;
}

static void persist(struct scrub *s)
{
    uint8_t row[ROW_BYTES] = {ROW_VERSION};
    (void)pthread_mutex_lock(&s->mtx);
    row[1] = s->running;
    kvd_put_le64(row + 8, s->last_number);
    kvd_put_le64(row + 16, s->quiet_since_s);
    (void)round_encode(s->last, round_encode(s->now, row + 24));
    (void)pthread_mutex_unlock(&s->mtx);
    int err = kvd_index_row_put(s->service->index, KVD_INDEX_META, row_scrub, sizeof(row_scrub) - 1,
                                row, sizeof(row), false);
    if (err) {
        kvd_log_error(s->service->log, "where the scrub is can't be written down: %s",
                      kvd_strerror(err));
    }
    s->persisted_ns = kvd_mono_ns();
}

/* A row that can't be read, or of another version, costs a round that begins anew. */
static int restore(struct scrub *s, struct kvd_diag *diag)
{
    KVD_AUTOFREE void *value = NULL;
    uint32_t n = 0;
    int err = kvd_index_row_get(s->service->index, KVD_INDEX_META, row_scrub, sizeof(row_scrub) - 1,
                                &value, &n);
    if (err && err != -KVD_E_NOT_FOUND) {
        return kvd_fail(diag, err, "where the scrub is can't be read: %s", kvd_strerror(err));
    }
    const uint8_t *row = value;
    s->quiet_since_s = kvd_wall_now_s(&s->service->wall);
    if (!err && n == ROW_BYTES && row[0] == ROW_VERSION) {
        s->running = row[1];
        s->last_number = kvd_get_le64(row + 8);
        s->quiet_since_s = kvd_get_le64(row + 16);
        (void)round_decode(round_decode(row + 24, &s->now), &s->last);
    }
    return 0;
}

/* ---- turns ---- */

static void beat(struct scrub *s)
{
    atomic_store(&s->beat_ns, kvd_mono_ns());
}

static void wait_locked(struct scrub *s, uint64_t until_ns)
{
    const struct timespec until = {.tv_sec = (time_t)(until_ns / KVD_NS_PER_S),
                                   .tv_nsec = (long)(until_ns % KVD_NS_PER_S)};
    (void)pthread_cond_timedwait(&s->wake, &s->mtx, &until);
}

/* Whether the round under way goes on. */
static bool goes_on_locked(const struct scrub *s)
{
    return !s->stopping && !s->asked;
}

static bool traffic(struct kvd_service *service)
{
    struct kvd_tier_stat stat = {0};
    if (service->nvme) {
        service->nvme->ops->stat(service->nvme, &stat);
    }
    return stat.reads > 0 || stat.queue_bytes > 0;
}

/* Waits until the next record may be read: for the rate, and then for others to be done, a while.
 * False: the round ends here. */
static bool my_turn(struct scrub *s)
{
    uint64_t yielded_ns = 0;
    for (;;) {
        beat(s);
        bool busy = yielded_ns < YIELD_MOST_NS && traffic(s->service);
        (void)pthread_mutex_lock(&s->mtx);
        bool go_on = goes_on_locked(s);
        uint64_t now_ns = kvd_mono_ns();
        uint64_t wait_ns = s->due_ns > now_ns ? s->due_ns - now_ns : busy ? YIELD_STEP_NS : 0;
        if (go_on && wait_ns > 0) {
            wait_locked(s, now_ns + (wait_ns < KVD_NS_PER_S ? wait_ns : KVD_NS_PER_S));
        }
        (void)pthread_mutex_unlock(&s->mtx);
        if (!go_on || wait_ns == 0) {
            return go_on;
        }
        yielded_ns += s->due_ns > now_ns ? 0 : YIELD_STEP_NS;
    }
}

/* Counts what was read against the rate. Time that was not used is not made up for. */
static void pay(struct scrub *s, uint64_t bytes)
{
    uint64_t now_ns = kvd_mono_ns();
    uint64_t rate = s->now.rate;
    s->due_ns = rate ? now_ns + bytes * KVD_NS_PER_S / rate : 0;
}

/* The tally that a tier's records are counted in; lock: mtx. */
static void count(struct scrub *s, struct scrub_tally *tally, const struct scrub_tally *add)
{
    (void)pthread_mutex_lock(&s->mtx);
    tally->records += add->records;
    tally->bytes += add->bytes;
    tally->bad += add->bad;
    tally->newer += add->newer;
    tally->skipped += add->skipped;
    (void)pthread_mutex_unlock(&s->mtx);
}

static void move_to(struct scrub *s, uint64_t segment, uint64_t offset)
{
    (void)pthread_mutex_lock(&s->mtx);
    s->now.segment = segment;
    s->now.offset = offset;
    (void)pthread_mutex_unlock(&s->mtx);
    if (offset == 0 || kvd_mono_ns() > s->persisted_ns + PERSIST_EVERY_NS) {
        persist(s);
    }
}

/* ---- records below dram ---- */

struct read {
    struct kvd_fetch_request req;
    pthread_mutex_t mtx;
    pthread_cond_t cond;
    bool done; /* lock: mtx */
};

static void read_done(struct kvd_fetch_request *req)
{
    struct read *read = req->user;
    (void)pthread_mutex_lock(&read->mtx);
    read->done = true;
    (void)pthread_cond_signal(&read->cond);
    (void)pthread_mutex_unlock(&read->mtx);
}

static int read_record(struct scrub *s, const struct kvd_place *place)
{
    struct kvd_tier *nvme = s->service->nvme;
    struct read read = {.mtx = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    if (place->extent_bytes > s->buf_bytes) {
        free(s->buf);
        s->buf = aligned_alloc(KVD_ALIGN_BYTES, place->extent_bytes);
        s->buf_bytes = s->buf ? place->extent_bytes : 0;
        if (!s->buf) {
            return -ENOMEM;
        }
    }
    read.req = (struct kvd_fetch_request){
        .place = *place, .extent = s->buf, .buffer_index = -1, .done = read_done, .user = &read};
    struct kvd_fetch_request *req = &read.req;
    int err = nvme->ops->fetch(nvme, &req, 1);
    if (err) {
        return err;
    }
    (void)pthread_mutex_lock(&read.mtx);
    while (!read.done) {
        (void)pthread_cond_wait(&read.cond, &read.mtx);
    }
    (void)pthread_mutex_unlock(&read.mtx);
    return read.req.result;
}

/* What a read error says about the record: true, that it is lost; false, that it could not be read
 * now. */
static bool is_lost(int err)
{
    return err == -EIO || err == -KVD_E_IO || err == -KVD_E_CORRUPT || err == -KVD_E_FORMAT;
}

/* The record in the buffer: whole, and the one that its segment lists? */
static int check_bytes(struct scrub *s, const struct kvd_segment_row *row, struct kvd_diag *diag)
{
    struct kvd_record rec;
    uint32_t header_bytes = 0;
    int err =
        record_verify(s->buf, row->extent_bytes, NULL, true, s->tokens, &rec, &header_bytes, diag);
    struct kvd_segment_row listed = *row;
    listed.n_blocks = row->n_blocks ? row->n_blocks : rec.n_blocks; /* the index doesn't know it */
    return err ? err : kvd_segment_row_check(&listed, &rec, diag);
}

static void bad_below(struct scrub *s, const struct kvd_place *place,
                      const struct kvd_segment_row *row, uint8_t gone, const char *text)
{
    const struct bad_record bad = {
        .place = *place,
        .id = {.group = row->group, .index = row->index, .key = row->first_key, .rank = row->rank},
        .put_id = row->put_id,
        .gone = gone};
    record_bad(s->service, &bad, text);
}

/* False: the segment has died. */
static bool check_record(struct scrub *s, uint64_t segment, const struct kvd_segment_row *row)
{
    const struct kvd_place place = {
        .segment = segment, .offset = row->offset, .extent_bytes = row->extent_bytes};
    struct kvd_diag diag = {{0}};
    struct scrub_tally add = {0};
    if (quarantine_has(s->service->quarantine, segment, row->offset)) {
        add.bad = 1;
        count(s, &s->now.nvme, &add);
        return true;
    }
    int err = read_record(s, &place);
    pay(s, row->extent_bytes);
    if (err == -KVD_E_NOT_FOUND) {
        return false;
    }
    bool lost = is_lost(err);
    if (err) {
        (void)kvd_fail(&diag, err, "%s", kvd_strerror(err));
    } else {
        add.bytes = row->extent_bytes;
        err = check_bytes(s, row, &diag);
    }
    add.records = err == 0 || lost || err == -KVD_E_CORRUPT;
    add.newer = err == -KVD_E_NEWER;
    add.bad = lost || err == -KVD_E_CORRUPT;
    add.skipped = !add.records && !add.newer;
    if (add.bad) {
        bad_below(s, &place, row, lost ? KVD_GONE_LOST : KVD_GONE_CORRUPT, diag.text);
    }
    count(s, &s->now.nvme, &add);
    return true;
}

/* A segment whose own header or footer is damaged is told of once, and its records are read. */
static void check_damage(struct scrub *s, const struct kvd_segment_records *recs)
{
    static const struct kvd_segment_row none;
    const struct kvd_place place = {.segment = recs->info.segment};
    struct scrub_tally add = {.newer = recs->damage == -KVD_E_NEWER, .bad = is_lost(recs->damage)};
    char text[QUARANTINE_TEXT_MAX];
    if (!recs->damage) {
        return;
    }
    add.skipped = !add.newer && !add.bad;
    if (add.bad) {
        (void)snprintf(text, sizeof(text), "the segment's own %s: %s", recs->where,
                       recs->damage == -KVD_E_FORMAT ? "it isn't there"
                                                     : kvd_strerror(recs->damage));
        bad_below(s, &place, &none, KVD_GONE_CORRUPT, text);
    }
    count(s, &s->now.nvme, &add);
}

/* Where a footer is damaged, the headers lead only as far as they are whole: what the index has
 * behind that is added. */
struct by_index {
    struct kvd_segment_records *recs;
    uint64_t end; /* of what the headers led to */
    uint32_t cap;
};

static int add_entry(const struct kvd_index_id *id, const struct kvd_index_entry *entry, void *user)
{
    struct by_index *x = user;
    struct kvd_segment_records *recs = x->recs;
    if (entry->segment != recs->info.segment || entry->offset < x->end || entry->block_in_record) {
        return 0;
    }
    if (recs->n_rows >= x->cap) {
        x->cap = 2 * recs->n_rows + 64;
        struct kvd_segment_row *rows = realloc(recs->rows, x->cap * sizeof(*rows));
        if (!rows) {
            return -ENOMEM;
        }
        recs->rows = rows;
    }
    recs->rows[recs->n_rows++] = (struct kvd_segment_row){.offset = entry->offset,
                                                          .extent_bytes = entry->extent_bytes,
                                                          .rank = id->rank,
                                                          .put_id = entry->put_id,
                                                          .index = id->index,
                                                          .group = id->group,
                                                          .first_key = id->key};
    return 0;
}

static int row_order(const void *a, const void *b)
{
    uint64_t x = ((const struct kvd_segment_row *)a)->offset;
    uint64_t y = ((const struct kvd_segment_row *)b)->offset;
    return x < y ? -1 : x > y;
}

static void complete_rows(struct scrub *s, struct kvd_segment_records *recs)
{
    const struct kvd_segment_row *last = recs->n_rows ? &recs->rows[recs->n_rows - 1] : NULL;
    struct by_index x = {.recs = recs, .end = last ? last->offset + last->extent_bytes : 0};
    if (kvd_index_walk(s->service->index, add_entry, &x)) {
        kvd_log_warn(s->service->log, "scrub: segment %" PRIu64 " can't be read over completely",
                     recs->info.segment);
    }
    if (recs->n_rows) {
        qsort(recs->rows, recs->n_rows, sizeof(*recs->rows), row_order);
    }
}

/* False: the round ends here. */
static bool check_segment(struct scrub *s, struct kvd_segment_records *recs)
{
    uint64_t segment = recs->info.segment;
    uint64_t from = segment == s->now.segment ? s->now.offset : 0;
    if (from == 0) {
        check_damage(s, recs);
    }
    if (recs->damage) {
        complete_rows(s, recs);
    }
    for (uint32_t i = 0; i < recs->n_rows; i++) {
        if (recs->rows[i].offset < from) {
            continue;
        }
        if (!my_turn(s)) {
            return false;
        }
        if (!check_record(s, segment, &recs->rows[i])) {
            break;
        }
        move_to(s, segment, recs->rows[i].offset + recs->rows[i].extent_bytes);
    }
    move_to(s, segment + 1, 0);
    return true;
}

static bool check_nvme(struct scrub *s)
{
    struct kvd_tier *nvme = s->service->nvme;
    bool go_on = my_turn(s);
    while (go_on && s->now.segment != UINT64_MAX) {
        struct kvd_segment_records recs = {0};
        int err = nvme->ops->records(nvme, s->now.segment, &recs);
        if (err) {
            move_to(s, UINT64_MAX, 0); /* all were read; or there is no memory: the next round */
            break;
        }
        go_on = check_segment(s, &recs);
        free(recs.rows);
    }
    return go_on;
}

/* ---- dram ---- */

static void check_slot(struct scrub *s, struct kvd_slot *slot)
{
    const struct kvd_slot_meta *m = &slot->meta; /* its constant fields */
    struct kvd_diag diag = {{0}};
    struct scrub_tally add = {
        .records = 1, .bytes = m->header_bytes + kvd_round_up(m->payload_bytes, KVD_ALIGN_BYTES)};
    add.bad = slot_verify(slot, s->tokens, &diag) != 0;
    if (add.bad) {
        const struct bad_record bad = {
            .slot = slot,
            .id = {.group = m->group, .index = m->index, .key = m->addr.key, .rank = m->addr.rank},
            .put_id = m->put_id,
            .gone = KVD_GONE_CORRUPT};
        record_bad(s->service, &bad, diag.text);
    } else {
        kvd_pool_set_verified(s->service->pool, slot);
    }
    pay(s, add.bytes);
    count(s, &s->now.dram, &add);
}

/* One slot is pinned at a time, and none while the rate is waited for. */
static bool check_dram(struct scrub *s)
{
    uint64_t cursor = 0;
    while (my_turn(s)) {
        struct kvd_slot *slot = kvd_pool_next(s->service->pool, &cursor);
        if (!slot) {
            return true;
        }
        check_slot(s, slot);
        kvd_pool_unpin(s->service->pool, slot);
    }
    return false;
}

/* ---- rounds ---- */

/* How many records a round meets, as far as can be told when it begins. */
static void expect(struct kvd_service *service, uint64_t *ret_nvme, uint64_t *ret_dram)
{
    struct kvd_tier_stat below = {0};
    struct kvd_pool_stat pool;
    kvd_pool_stat(service->pool, &pool);
    if (service->nvme) {
        service->nvme->ops->stat(service->nvme, &below);
    }
    *ret_nvme = below.records;
    *ret_dram = pool.blocks;
}

/* Chooses what is to be done now: what was asked for, what was under way, or what is due. */
static bool choose_locked(struct scrub *s, uint64_t now_s)
{
    const struct kvd_config *c = s->service->config;
    if (s->asked) {
        s->asked = false;
        s->now = s->next;
        return true;
    }
    if (s->running) {
        s->now.rate = s->now.asked ? s->now.rate : c->scrub_rate; /* it may have been changed, */
        return s->now.asked || c->scrub_rate > 0;                 /* or turned off */
    }
    if (c->scrub_rate == 0 || now_s < s->quiet_since_s + c->scrub_pause / 1000) {
        return false;
    }
    s->now = (struct scrub_round){.number = ++s->last_number,
                                  .tiers = SCRUB_ALL,
                                  .rate = c->scrub_rate,
                                  .segment = 1,
                                  .started_s = now_s};
    return true;
}

static bool begin(struct scrub *s)
{
    uint64_t nvme;
    uint64_t dram;
    uint64_t now_s = kvd_wall_now_s(&s->service->wall);
    expect(s->service, &nvme, &dram);
    (void)pthread_mutex_lock(&s->mtx);
    s->running = choose_locked(s, now_s);
    s->now.nvme.expected = s->now.tiers & SCRUB_NVME ? nvme : 0;
    s->now.dram.expected = s->now.tiers & SCRUB_DRAM ? dram : 0;
    bool running = s->running && !s->stopping;
    (void)pthread_mutex_unlock(&s->mtx);
    return running;
}

static void end(struct scrub *s)
{
    (void)pthread_mutex_lock(&s->mtx);
    s->running = false;
    s->now.ended_s = kvd_wall_now_s(&s->service->wall);
    if (s->now.tiers == SCRUB_ALL) {
        s->last = s->now;
        s->quiet_since_s = s->now.ended_s;
    }
    struct scrub_round r = s->now;
    (void)pthread_mutex_unlock(&s->mtx);
    persist(s);
    kvd_log_info(s->service->log,
                 "scrub: round %" PRIu64 " has read %" PRIu64 " records of nvme and %" PRIu64
                 " of dram; %" PRIu64 " are bad",
                 r.number, r.nvme.records, r.dram.records, r.nvme.bad + r.dram.bad);
}

static void run(struct scrub *s)
{
    s->due_ns = 0;
    bool nvme = s->now.tiers & SCRUB_NVME && s->service->nvme;
    bool dram = s->now.tiers & SCRUB_DRAM;
    if ((!nvme || check_nvme(s)) && (!dram || check_dram(s))) {
        end(s);
    }
}

static void *scrub_main(void *arg)
{
    struct scrub *s = arg;
    for (;;) {
        beat(s);
        if (begin(s)) {
            run(s);
        }
        (void)pthread_mutex_lock(&s->mtx);
        bool stop = s->stopping;
        if (!stop && !s->asked) {
            wait_locked(s, kvd_mono_ns() + KVD_NS_PER_S);
        }
        (void)pthread_mutex_unlock(&s->mtx);
        if (stop) {
            return NULL;
        }
    }
}

/* ---- life, and what others see ---- */

int scrub_open(struct kvd_service *service, struct kvd_diag *diag)
{
    struct scrub *s = calloc(1, sizeof(*s));
    pthread_condattr_t attr;
    if (!s) {
        return kvd_fail(diag, -ENOMEM, "out of memory");
    }
    service->scrub = s;
    s->service = service;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&s->mtx, NULL);
    (void)pthread_cond_init(&s->wake, &attr);
    (void)pthread_condattr_destroy(&attr);
    beat(s);
    s->tokens = malloc(RECORD_TOKENS_MAX * sizeof(*s->tokens));
    return s->tokens ? restore(s, diag) : kvd_fail(diag, -ENOMEM, "out of memory");
}

int scrub_start(struct kvd_service *service)
{
    struct scrub *s = service->scrub;
    persist(s); /* when a new store's first pause began */
    int err = pthread_create(&s->thread, NULL, scrub_main, s);
    s->runs = err == 0;
    return -err;
}

void scrub_stop(struct kvd_service *service)
{
    struct scrub *s = service->scrub;
    if (!s || !s->runs) {
        return;
    }
    (void)pthread_mutex_lock(&s->mtx);
    s->stopping = true;
    (void)pthread_cond_signal(&s->wake);
    (void)pthread_mutex_unlock(&s->mtx);
    (void)pthread_join(s->thread, NULL);
    s->runs = false;
    persist(s);
}

void scrub_close(struct kvd_service *service)
{
    struct scrub *s = service->scrub;
    if (!s) {
        return;
    }
    service->scrub = NULL;
    (void)pthread_cond_destroy(&s->wake);
    (void)pthread_mutex_destroy(&s->mtx);
    free(s->buf);
    free(s->tokens);
    free(s);
}

uint64_t scrub_ask(struct scrub *s, uint8_t tiers, uint64_t rate)
{
    (void)pthread_mutex_lock(&s->mtx);
    const struct scrub_round *under_way = s->asked                     ? &s->next
                                          : s->running && s->now.asked ? &s->now
                                                                       : NULL;
    uint64_t number = under_way && (under_way->tiers & tiers) == tiers ? under_way->number : 0;
    if (!number) {
        number = ++s->last_number;
        s->next = (struct scrub_round){.number = number,
                                       .tiers = tiers,
                                       .rate = rate,
                                       .segment = 1,
                                       .asked = true,
                                       .started_s = kvd_wall_now_s(&s->service->wall)};
        s->asked = true;
        (void)pthread_cond_signal(&s->wake);
    }
    (void)pthread_mutex_unlock(&s->mtx);
    return number;
}

void scrub_look(struct scrub *s, struct scrub_view *ret)
{
    (void)pthread_mutex_lock(&s->mtx);
    *ret = (struct scrub_view){
        .running = s->running || s->asked, .now = s->asked ? s->next : s->now, .last = s->last};
    (void)pthread_mutex_unlock(&s->mtx);
    uint64_t beat_ns = atomic_load(&s->beat_ns);
    uint64_t now_ns = kvd_mono_ns();
    ret->idle_s = now_ns > beat_ns ? (now_ns - beat_ns) / KVD_NS_PER_S : 0;
}
