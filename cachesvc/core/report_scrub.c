/* What administrators see of the scrub: in status, and as the report "verify". */
#include <errno.h>
#include <stdlib.h>

#include "cachesvc/core/report_private.h"
#include "cachesvc/core/scrub.h"
#include "proto/base/cleanup.h"
#include "proto/base/clock.h"

enum {
    SILENT_S = 60, /* a thread that wakes every second and hasn't for so long is stuck */
    QUARANTINE_CHUNK = 256,
    QUARANTINE_SHOWN = 10000, /* rows in a report; the number of all is always told */
};

static json_t *u64(uint64_t v)
{
    return json_integer((json_int_t)v);
}

static uint64_t keeper_idle_s(struct kvd_service *s)
{
    uint64_t beat_ns = atomic_load(&s->keeper_beat_ns);
    uint64_t now_ns = kvd_mono_ns();
    return now_ns > beat_ns ? (now_ns - beat_ns) / KVD_NS_PER_S : 0;
}

static json_t *tally_json(const char *name, const struct scrub_tally *t)
{
    return json_pack("{s:s,s:o,s:o,s:o,s:o,s:o,s:o}", "name", name, "records", u64(t->records),
                     "expected", u64(t->expected), "bytes", u64(t->bytes), "bad", u64(t->bad),
                     "newer", u64(t->newer), "skipped", u64(t->skipped));
}

static json_t *round_json(const struct scrub_round *r, uint64_t now_s)
{
    json_t *tiers = json_array();
    if (r->tiers & SCRUB_NVME) {
        (void)json_array_append_new(tiers, tally_json("nvme", &r->nvme));
    }
    if (r->tiers & SCRUB_DRAM) {
        (void)json_array_append_new(tiers, tally_json("dram", &r->dram));
    }
    uint64_t end_s = r->ended_s ? r->ended_s : now_s;
    return json_pack("{s:o,s:b,s:o,s:o,s:o,s:o,s:o,s:o}", "round", u64(r->number), "asked",
                     r->asked, "rate", u64(r->rate), "started_s", u64(r->started_s), "ended_s",
                     u64(r->ended_s), "seconds",
                     u64(end_s > r->started_s ? end_s - r->started_s : 0), "ago_s",
                     u64(now_s > end_s ? now_s - end_s : 0), "tiers", tiers);
}

json_t *report_scrub(struct kvd_service *s)
{
    struct scrub_view v;
    uint64_t now_s = kvd_wall_now_s(&s->wall);
    scrub_look(s->scrub, &v);
    json_t *json = json_pack(
        "{s:b,s:o,s:o,s:o}", "running", v.running, "rate", u64(s->config->scrub_rate), "pause_s",
        u64(s->config->scrub_pause / 1000), "quarantined", u64(quarantine_count(s->quarantine)));
    if (v.now.number) {
        (void)json_object_set_new(json, "now", round_json(&v.now, now_s));
    }
    if (v.last.number) {
        (void)json_object_set_new(json, "last", round_json(&v.last, now_s));
    }
    return json;
}

json_t *report_threads(struct kvd_service *s)
{
    struct scrub_view v;
    scrub_look(s->scrub, &v);
    return json_pack("{s:{s:o},s:{s:o}}", "keeper", "silent_s", u64(keeper_idle_s(s)), "scrub",
                     "silent_s", u64(v.idle_s));
}

static void silent(json_t *list, const char *name, uint64_t seconds)
{
    if (seconds >= SILENT_S) {
        (void)json_array_append_new(
            list,
            json_sprintf("the thread of the %s has not moved for %llu s; check the device and "
                         "the log, and restart kvdepotd",
                         name, (unsigned long long)seconds));
    }
}

void report_scrub_problems(struct kvd_service *s, json_t *list)
{
    struct scrub_view v;
    struct kvd_index_stat index;
    uint64_t bad = quarantine_count(s->quarantine);
    uint64_t rows = atomic_load(&s->counts.newer_rows);
    uint64_t records = atomic_load(&s->counts.newer_records);
    kvd_index_stat(s->index, &index);
    scrub_look(s->scrub, &v);
    if (bad) {
        (void)json_array_append_new(
            list, json_sprintf("%llu bad records lie in quarantine until their segments go; "
                               "kvdepot verify lists them; check the device",
                               (unsigned long long)bad));
    }
    if (index.undecodable || rows || records) {
        (void)json_array_append_new(
            list, json_sprintf(
                      "some of the store was written by a newer version (entries met: %llu, rows "
                      "of segments: %llu, records asked for: %llu) and is left alone; use that "
                      "version again to have it back",
                      (unsigned long long)index.undecodable, (unsigned long long)rows,
                      (unsigned long long)records));
    }
    silent(list, "keeper", keeper_idle_s(s));
    silent(list, "scrub", v.idle_s);
}

/* ---- the report "verify" ---- */

static json_t *row_json(const struct quarantined *q)
{
    char hex[KVD_KEY_HEX];
    kvd_hex(q->key.b, KVD_KEY_BYTES, hex);
    return json_pack("{s:s,s:o,s:o,s:s,s:i,s:o,s:o,s:s}", "tier", "nvme", "segment",
                     u64(q->segment), "offset", u64(q->offset), "key", q->offset ? hex : "", "rank",
                     (int)q->rank, "put_id", u64(q->put_id), "when_s", u64(q->when_s), "reason",
                     q->text);
}

static int quarantine_json(struct kvd_service *s, json_t *rows)
{
    KVD_AUTOFREE struct quarantined *chunk = calloc(QUARANTINE_CHUNK, sizeof(*chunk));
    uint64_t segment = 0;
    uint64_t offset = 0;
    uint32_t n = QUARANTINE_CHUNK;
    if (!chunk) {
        return -ENOMEM;
    }
    while (n == QUARANTINE_CHUNK && json_array_size(rows) < QUARANTINE_SHOWN) {
        n = quarantine_list(s->quarantine, segment, offset, QUARANTINE_CHUNK, chunk);
        for (uint32_t i = 0; i < n; i++) {
            (void)json_array_append_new(rows, row_json(&chunk[i]));
        }
        if (n) {
            segment = chunk[n - 1].segment;
            offset = chunk[n - 1].offset + 1;
        }
    }
    return 0;
}

int report_verify(struct kvd_service *s, json_t **ret)
{
    struct scrub_view v;
    json_t *rows = json_array();
    scrub_look(s->scrub, &v);
    int err = quarantine_json(s, rows);
    if (err) {
        json_decref(rows);
        return err;
    }
    *ret = json_pack("{s:i,s:b,s:o,s:o,s:o}", "schema", REPORT_SCHEMA, "running", v.running, "now",
                     round_json(&v.now, kvd_wall_now_s(&s->wall)), "quarantined",
                     u64(quarantine_count(s->quarantine)), "bad", rows);
    return 0;
}
