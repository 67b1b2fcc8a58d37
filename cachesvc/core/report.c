/* Reports for administrators, as JSON: status, hitrate, options. The shapes are versioned by
 * "schema". */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>

#include "cachesvc/core/report_private.h"
#include "cachesvc/core/service_private.h"
#include "proto/base/assert.h"
#include "proto/base/cleanup.h"
#include "proto/base/clock.h"
#include "proto/base/protect.h"

enum { RECENT_MINUTES = 10 };
#define RECENT_NS (RECENT_MINUTES * 60 * KVD_NS_PER_S)

static json_t *u64(uint64_t v)
{
    return json_integer((json_int_t)v);
}

static uint64_t now_s(void)
{
    return kvd_mono_ns() / KVD_NS_PER_S;
}

/* ---- hitrate ---- */

static json_t *amount_json(const struct kvd_amount *a)
{
    return json_pack("{s:o,s:o,s:o}", "tokens", u64(a->tokens), "blocks", u64(a->blocks), "bytes",
                     u64(a->bytes));
}

static void hitrate_row(const char *name, const struct kvd_tally *t, void *user)
{
    json_t *hit = json_object();
    json_t *missed = json_object();
    for (int tier = KVD_TIER_NONE + 1; tier < KVD_TIER_COUNT; tier++) {
        (void)json_object_set_new(hit, kvd_tier_name((enum kvd_tier_id)tier),
                                  amount_json(&t->hit[tier]));
    }
    for (int why = 0; why < KVD_MISS_COUNT; why++) {
        (void)json_object_set_new(missed, kvd_miss_reason_key((enum kvd_miss_reason)why),
                                  amount_json(&t->missed[why]));
    }
    (void)json_array_append_new(user, json_pack("{s:s,s:o,s:o,s:o,s:o}", "name", name, "lookups",
                                                u64(t->lookups), "asked", amount_json(&t->asked),
                                                "hit", hit, "missed", missed));
}

static int by_parse(const char *by, struct kvd_diag *diag, enum kvd_count_by *ret)
{
    static const struct {
        const char *name;
        enum kvd_count_by by;
    } names[] = {{"", KVD_BY_ALL},        {"all", KVD_BY_ALL},
                 {"tier", KVD_BY_ALL},    {"scenario", KVD_BY_SCENARIO},
                 {"space", KVD_BY_SPACE}, {"tenant", KVD_BY_TENANT}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(by, names[i].name) == 0) {
            *ret = names[i].by;
            return 0;
        }
    }
    return kvd_fail(diag, -KVD_E_BAD_REQUEST,
                    "hitrate by '%.32s': scenario, tier, space or tenant are known", by);
}

/* Of what time a report is: a window is shorter than its name after a start, and "ever" began when
 * the store first counted. */
static void hitrate_since(struct kvd_service *s, enum kvd_window window, json_t *report)
{
    uint64_t now = kvd_wall_now_s(&s->wall);
    uint64_t up = (kvd_mono_ns() - s->started_mono_ns) / KVD_NS_PER_S;
    uint64_t length = kvd_window_s(window);
    bool cut = window != KVD_WINDOW_EVER && up < length && KVD_PROTECT(COUNTED_SINCE);
    uint64_t since = window == KVD_WINDOW_EVER ? s->counted_since_s : now - (cut ? up : length);
    bool known = since > 0 && since <= now;
    (void)json_object_set_new(report, "since_s", known ? u64(since) : json_null());
    (void)json_object_set_new(report, "counted_s", known ? u64(now - since) : json_null());
    (void)json_object_set_new(report, "restarted", json_boolean(cut));
}

static int report_hitrate(struct kvd_service *s, const char *by_name, const char *window_name,
                          struct kvd_diag *diag, json_t **ret)
{
    enum kvd_count_by by = KVD_BY_ALL;
    int err = by_parse(by_name, diag, &by);
    if (err) {
        return err;
    }
    int window = window_name[0] ? kvd_window_parse(window_name) : KVD_WINDOW_EVER;
    if (window < 0) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST,
                        "window '%.32s': 10s, 1m, 5m, 1h, 24h or ever are known", window_name);
    }
    json_t *rows = json_array();
    kvd_counting_report(s->counting, now_s(), by, (enum kvd_window)window, hitrate_row, rows);
    *ret = json_pack("{s:i,s:s,s:s,s:o}", "schema", REPORT_SCHEMA, "window",
                     kvd_window_name((enum kvd_window)window), "by", by_name[0] ? by_name : "all",
                     "rows", rows);
    hitrate_since(s, (enum kvd_window)window, *ret);
    return 0;
}

/* ---- status ---- */

static json_t *dram_json(struct kvd_service *s)
{
    struct kvd_pool_stat st;
    kvd_pool_stat(s->pool, &st);
    (void)pthread_mutex_lock(&s->mtx);
    uint64_t staging = s->staging_bytes;
    uint64_t leased = s->pinned_bytes;
    (void)pthread_mutex_unlock(&s->mtx);
    return json_pack("{s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:s}", "name", "dram", "cap_bytes",
                     u64(s->config->dram_cap), "used_bytes", u64(st.used_bytes), "staging_bytes",
                     u64(staging), "blocks", u64(st.blocks), "pinned_bytes", u64(st.pinned_bytes),
                     "leased_bytes", u64(leased), "evicted_blocks", u64(st.evicted_blocks),
                     "warm_blocks", u64(st.warm_blocks), "state", "ok");
}

static json_t *nvme_json(struct kvd_service *s, const struct kvd_tier_stat *st)
{
    json_t *row = json_pack(
        "{s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:s}", "name", s->nvme->ops->name, "cap_bytes",
        u64(st->cap_bytes), "used_bytes", u64(st->used_bytes), "blocks", u64(st->records),
        "segments", u64(st->segments), "queue_bytes", u64(st->queue_bytes), "written_bytes",
        u64(st->written_bytes), "read_bytes", u64(st->read_bytes), "dropped_blocks",
        u64(st->dropped_records), "failed_writes", u64(st->failed_writes), "state", st->state);
    json_t *left =
        json_pack("{s:o,s:o,s:o,s:o,s:o}", "foreign_files", u64(st->foreign_files), "foreign_bytes",
                  u64(st->foreign_bytes), "newer_files", u64(st->newer_files), "newer_bytes",
                  u64(st->newer_bytes), "quarantined", u64(quarantine_count(s->quarantine)));
    (void)json_object_update(row, left);
    json_decref(left);
    return row;
}

static json_t *scenarios_json(struct kvd_service *s)
{
    const struct kvd_scenarios *table = s->config->scenarios_table;
    uint32_t ids = 1 + UINT16_MAX;
    KVD_AUTOFREE uint64_t *dram = calloc(ids, sizeof(*dram));
    KVD_AUTOFREE uint64_t *nvme = calloc(ids, sizeof(*nvme));
    if (!dram || !nvme) {
        return NULL;
    }
    kvd_pool_scenario_bytes(s->pool, dram, ids);
    if (s->nvme) {
        s->nvme->ops->scenario_bytes(s->nvme, nvme, ids);
    }
    json_t *rows = json_array();
    for (uint32_t i = 0; i < kvd_scenarios_count(table); i++) {
        const struct kvd_scenario *sc = kvd_scenario_at(table, i);
        (void)json_array_append_new(rows,
                                    json_pack("{s:s,s:o,s:o,s:o}", "name", sc->name, "retention_s",
                                              u64(sc->retention_s), "dram_bytes", u64(dram[sc->id]),
                                              "nvme_bytes", u64(nvme[sc->id])));
    }
    return rows;
}

static void sum_hits(const char *name, const struct kvd_tally *t, void *user)
{
    struct kvd_tally *sum = user;
    *sum = *t;
}

static json_t *rates_json(struct kvd_service *s)
{
    struct kvd_tally t = {0};
    kvd_counting_report(s->counting, now_s(), KVD_BY_ALL, KVD_WINDOW_10S, sum_hits, &t);
    uint64_t hit = 0;
    for (int tier = 0; tier < KVD_TIER_COUNT; tier++) {
        hit += t.hit[tier].tokens;
    }
    return json_pack("{s:s,s:f,s:f,s:f}", "window", "10s", "lookups_per_s",
                     (double)t.lookups / 10.0, "asked_tokens_per_s", (double)t.asked.tokens / 10.0,
                     "hit_tokens_per_s", (double)hit / 10.0);
}

static void index_problems(struct kvd_service *s, json_t *list)
{
    struct kvd_index_stat st;
    kvd_index_stat(s->index, &st);
    if (!st.writable) {
        (void)json_array_append_new(
            list, json_sprintf("the index (%s/index) can't be written%s: what is put stays in dram "
                               "only; check the folder's free space and rights; it is tried again "
                               "every second, and what is used again is then written down",
                               s->config->dir, st.readable ? "" : ", nor read"));
    } else if (st.failed_writes) {
        (void)json_array_append_new(
            list,
            json_sprintf("%llu batches of changes to the index failed since start, which goes "
                         "on again (opened anew %llu times); check the log",
                         (unsigned long long)st.failed_writes, (unsigned long long)st.mended));
    }
    if (st.read_errors) {
        (void)json_array_append_new(
            list, json_sprintf("reading the index (%s/index) failed %llu times since start, and "
                               "counted as misses; check the device and the log",
                               s->config->dir, (unsigned long long)st.read_errors));
    }
}

static json_t *problems_json(struct kvd_service *s, const struct kvd_tier_stat *nvme,
                             const struct lease_places *places)
{
    json_t *list = json_array();
    uint64_t corrupt = atomic_load(&s->counts.corrupt);
    uint64_t failed = atomic_load(&s->counts.write_failures);
    int64_t skew = kvd_wall_skew_s(&s->wall);
    if (s->counters_damaged) {
        (void)json_array_append_new(list, json_string(s->counters_damaged));
    }
    if (corrupt) {
        (void)json_array_append_new(
            list,
            json_sprintf(
                "%llu records did not match their sum or identity since start and were served as "
                "misses; check the device and the log",
                (unsigned long long)corrupt));
    }
    if (failed) {
        (void)json_array_append_new(
            list, json_sprintf(
                      "%llu blocks could not be written below dram since start; check the log and "
                      "the device's free space",
                      (unsigned long long)failed));
    }
    uint64_t not_written_ns = atomic_load(&s->counts.not_written_ns);
    if (not_written_ns && kvd_mono_ns() < not_written_ns + RECENT_NS) {
        (void)json_array_append_new(
            list,
            json_sprintf(
                "%llu blocks were not written down below dram since start, the last within "
                "%d minutes: more is put than the device takes, or the index fails; they are "
                "served from dram "
                "until they are evicted (nvme.queue says how many may wait)",
                (unsigned long long)atomic_load(&s->counts.not_written_down), RECENT_MINUTES));
    }
    index_problems(s, list);
    if (s->nvme && strcmp(nvme->state, "ok") != 0) {
        (void)json_array_append_new(list, json_sprintf("nvme: %s", nvme->state));
    }
    if (atomic_load(&s->counts.unreadable)) {
        (void)json_array_append_new(
            list, json_sprintf("%llu records could not be read below dram since start and were "
                               "served as misses; check the device and the log",
                               (unsigned long long)atomic_load(&s->counts.unreadable)));
    }
    report_scrub_problems(s, list);
    struct kvd_purges_stat purges;
    kvd_purges_stat(s->purges, &purges);
    if (purges.damaged) {
        (void)json_array_append_new(
            list, json_sprintf("%u rows of the log of purges were damaged at this start: what was "
                               "stored before them is taken as purged; check the device",
                               purges.damaged));
    }
    if (places->overdue) {
        (void)json_array_append_new(
            list,
            json_sprintf("%u leases on blocks in use in place are held for longer than "
                         "client.copy-lease, the oldest for %llu s; they take room in dram "
                         "until their clients release them or end (the log names them)",
                         places->overdue, (unsigned long long)(places->oldest_ns / KVD_NS_PER_S)));
    }
    if (expiry_clock(s).frozen) {
        (void)json_array_append_new(
            list,
            json_sprintf("the system's time is %lld s %s the store's, so nothing expires; %s",
                         (long long)(skew < 0 ? -skew : skew), skew < 0 ? "behind" : "ahead of",
                         skew < 0 ? "correct the system's time; where it is right, the store was "
                                    "once used with a clock that was ahead, and waits until the "
                                    "time has caught up"
                                  : "correct the system's time; where it is right, restart "
                                    "kvdepotd"));
    }
    return list;
}

static json_t *index_json(struct kvd_service *s)
{
    struct kvd_index_stat st;
    kvd_index_stat(s->index, &st);
    return json_pack("{s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "entries", u64(st.entries_estimate), "queued",
                     u64(st.queued), "disk_bytes", u64(st.disk_bytes), "undecodable",
                     u64(st.undecodable), "undecodable_segments",
                     u64(atomic_load(&s->counts.newer_rows)), "read_errors", u64(st.read_errors),
                     "failed_writes", u64(st.failed_writes));
}

static json_t *purges_json(struct kvd_service *s)
{
    struct kvd_purges_stat st;
    kvd_purges_stat(s->purges, &st);
    return json_pack("{s:o,s:o}", "rows", u64(st.rows), "damaged", u64(st.damaged));
}

static json_t *puts_json(struct kvd_service *s)
{
    (void)pthread_mutex_lock(&s->mtx);
    uint32_t begun = s->n_puts;
    (void)pthread_mutex_unlock(&s->mtx);
    return json_pack("{s:o,s:o,s:o,s:o}", "begun", u64(begun), "committed_blocks",
                     u64(atomic_load(&s->counts.committed_blocks)), "refused_blocks",
                     u64(atomic_load(&s->counts.refused_blocks)), "not_written_down_blocks",
                     u64(atomic_load(&s->counts.not_written_down)));
}

static json_t *places_json(const struct lease_places *places)
{
    return json_pack("{s:i,s:i,s:o}", "placed_leases", (int)places->leases, "overdue",
                     (int)places->overdue, "oldest_s", u64(places->oldest_ns / KVD_NS_PER_S));
}

static int report_status(struct kvd_service *s, json_t **ret)
{
    struct kvd_tier_stat nvme = {.state = "ok"};
    json_t *tiers = json_array();
    (void)json_array_append_new(tiers, dram_json(s));
    if (s->nvme) {
        s->nvme->ops->stat(s->nvme, &nvme);
        (void)json_array_append_new(tiers, nvme_json(s, &nvme));
    }
    char store[2 * KVD_STORE_ID_BYTES + 1];
    kvd_hex(s->identity.store.b, KVD_STORE_ID_BYTES, store);
    (void)pthread_mutex_lock(&s->mtx);
    uint32_t clients = s->n_clients;
    uint32_t leases = s->n_leases;
    (void)pthread_mutex_unlock(&s->mtx);
    struct lease_places places;
    lease_places(s, kvd_mono_ns(), &places);
    json_t *problems = problems_json(s, &nvme, &places);
    *ret = json_pack(
        "{s:i,s:s,s:o,s:s,s:s,s:o,s:s,s:i,s:i,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}",
        "schema", REPORT_SCHEMA, "health", json_array_size(problems) ? "degraded" : "ok",
        "problems", problems, "version", KVDEPOT_VERSION, "store", store, "uptime_s",
        u64((kvd_mono_ns() - s->started_mono_ns) / KVD_NS_PER_S), "io", s->io->ops->name, "clients",
        (int)clients, "leases", (int)leases, "places", places_json(&places), "tiers", tiers,
        "index", index_json(s), "puts", puts_json(s), "purges", purges_json(s), "corrupt",
        u64(atomic_load(&s->counts.corrupt)), "newer_records",
        u64(atomic_load(&s->counts.newer_records)), "scrub", report_scrub(s), "threads",
        report_threads(s), "scenarios", scenarios_json(s), "rates", rates_json(s));
    return 0;
}

/* ---- options ---- */

static json_t *value_STR(const kvd_config_STR *v)
{
    return json_string(*v);
}

#define value_ENUM value_STR

static json_t *value_U64(const kvd_config_U64 *v)
{
    return u64(*v);
}

#define value_BYTES value_U64
#define value_MS value_U64

static json_t *value_BOOL(const kvd_config_BOOL *v)
{
    return json_boolean(*v);
}

static int report_options(struct kvd_service *s, json_t **ret)
{
    json_t *rows = json_array();
#define KVD_OPTION(name, type, field, def, min, max, unit, reloadable, text)                       \
    (void)json_array_append_new(rows, json_pack("{s:s,s:o,s:s,s:s}", "name", name, "value",        \
                                                value_##type(&s->config->field), "unit", unit,     \
                                                "text", text));
#include "cachesvc/config/options.def"
#undef KVD_OPTION
    *ret = json_pack("{s:i,s:o}", "schema", REPORT_SCHEMA, "options", rows);
    return 0;
}

static int report_make(struct kvd_service *service, const char *what, const char *by,
                       const char *window, struct kvd_diag *diag, json_t **ret)
{
    if (strcmp(what, "status") == 0) {
        return report_status(service, ret);
    }
    if (strcmp(what, "hitrate") == 0) {
        return report_hitrate(service, by, window, diag, ret);
    }
    if (strcmp(what, "options") == 0) {
        return report_options(service, ret);
    }
    if (strcmp(what, "verify") == 0) {
        return report_verify(service, ret);
    }
    if (strcmp(what, "identity") == 0) {
        *ret = report_identity(service);
        return 0;
    }
    if (strcmp(what, "block") == 0) {
        return report_block(service, by, diag, ret);
    }
    return kvd_fail(diag, -KVD_E_BAD_REQUEST,
                    "report '%.32s': status, hitrate, verify, options, identity or block are known",
                    what);
}

int kvd_service_report(struct kvd_service *service, const char *what, const char *by,
                       const char *window, struct kvd_diag *diag, char **ret_json)
{
    KVD_MAGIC_CHECK(service, SERVICE_MAGIC);
    json_t *root = NULL;
    int err = report_make(service, what, by ? by : "", window ? window : "", diag, &root);
    if (err) {
        return err;
    }
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (!text) {
        return kvd_fail(diag, -ENOMEM, "out of memory");
    }
    *ret_json = text;
    return 0;
}
