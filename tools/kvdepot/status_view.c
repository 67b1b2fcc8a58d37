/* The daemon's status as text: see status_view.h. */
#include "tools/kvdepot/status_view.h"

#include <string.h>

#include "tools/kvdepot/report.h"
#include "tools/kvdepot/table.h"
#include "tools/kvdepot/units.h"

static int view_health(const json_t *report, FILE *out, bool *ret_healthy, struct kvd_diag *diag)
{
    const char *health = NULL;
    const char *version = NULL;
    const char *store = NULL;
    const char *io = NULL;
    const json_t *problems = NULL;
    json_int_t uptime_s = 0;
    json_error_t error;
    if (json_unpack_ex((json_t *)report, &error, 0, "{s:s, s:o, s:s, s:s, s:s, s:I}", "health",
                       &health, "problems", &problems, "version", &version, "store", &store, "io",
                       &io, "uptime_s", &uptime_s) != 0) {
        return kvd_report_misses(&error, "status", diag);
    }
    char up[KVD_TEXT_BYTES];
    (void)fprintf(out, "health: %s\n", health);
    size_t index = 0;
    const json_t *problem = NULL;
    json_array_foreach(problems, index, problem)
    {
        const char *text = json_string_value(problem);
        (void)fprintf(out, "  problem: %s\n", text ? text : "(not told)");
    }
    (void)fprintf(out, "kvdepotd %s, up %s, store %s, file I/O by %s\n", version,
                  kvd_units_duration(up, (uint64_t)uptime_s), store, io);
    *ret_healthy = strcmp(health, "ok") == 0;
    return 0;
}

/* What only some tiers have: shown only where there is something to say. */
static void tier_notes(const json_t *tier, char *text, size_t size)
{
    static const struct {
        const char *key;
        const char *one;
        const char *many;
        bool bytes;
    } notes[] = {
        {"pinned_bytes", "pinned", "pinned", true},
        {"segments", "segment", "segments", false},
        {"queue_bytes", "queued", "queued", true},
        {"written_bytes", "written", "written", true},
        {"read_bytes", "read", "read", true},
        {"evicted_blocks", "block evicted", "blocks evicted", false},
        {"dropped_blocks", "block thrown away", "blocks thrown away", false},
        {"quarantined", "bad record", "bad records", false},
        {"foreign_files", "file not ours", "files not ours", false},
        {"newer_files", "file of a newer version", "files of a newer version", false},
    };
    size_t at = 0;
    text[0] = '\0';
    for (size_t i = 0; i < sizeof(notes) / sizeof(notes[0]); i++) {
        json_int_t value = json_integer_value(json_object_get(tier, notes[i].key));
        char number[KVD_TEXT_BYTES];
        if (value <= 0 || at >= size) {
            continue;
        }
        const char *figure = notes[i].bytes ? kvd_units_bytes(number, (uint64_t)value)
                                            : kvd_units_count(number, (uint64_t)value);
        const char *name = value == 1 ? notes[i].one : notes[i].many;
        int length = snprintf(text + at, size - at, "%s%s %s", at ? ", " : "",
                              notes[i].bytes ? name : figure, notes[i].bytes ? figure : name);
        at += length > 0 ? (size_t)length : 0;
    }
}

static int tier_row(struct kvd_table *table, const json_t *tier, struct kvd_diag *diag)
{
    const char *name = NULL;
    const char *state = NULL;
    json_int_t cap = 0;
    json_int_t used = 0;
    json_int_t blocks = 0;
    json_error_t error;
    if (json_unpack_ex((json_t *)tier, &error, 0, "{s:s, s:s, s:I, s:I, s:I}", "name", &name,
                       "state", &state, "cap_bytes", &cap, "used_bytes", &used, "blocks",
                       &blocks) != 0) {
        return kvd_report_misses(&error, "tier", diag);
    }
    char text[KVD_TEXT_BYTES];
    char notes[256];
    (void)kvd_table_cell(table, "%s", name);
    (void)kvd_table_cell(table, "%s", state);
    (void)kvd_table_cell(table, "%s", kvd_units_bytes(text, (uint64_t)used));
    (void)kvd_table_cell(table, "%s", kvd_units_bytes(text, (uint64_t)cap));
    (void)kvd_table_cell(table, "%s", kvd_units_share(text, (uint64_t)used, (uint64_t)cap));
    (void)kvd_table_cell(table, "%s", kvd_units_count(text, (uint64_t)blocks));
    tier_notes(tier, notes, sizeof(notes));
    (void)kvd_table_cell(table, "%s", notes);
    return 0;
}

static int table_start(struct kvd_table **ret_table, const char *columns, const char *const *heads)
{
    int err = kvd_table_create(columns, ret_table);
    for (size_t i = 0; !err && i < strlen(columns); i++) {
        err = kvd_table_cell(*ret_table, "%s", heads[i]);
    }
    return err;
}

/* One table of an array of the report, a row an element. */
static int view_array(const json_t *array, const char *columns, const char *const *heads,
                      int (*row)(struct kvd_table *, const json_t *, struct kvd_diag *), FILE *out,
                      struct kvd_diag *diag)
{
    struct kvd_table *table = NULL;
    int err = table_start(&table, columns, heads);
    size_t index = 0;
    const json_t *element = NULL;
    json_array_foreach(array, index, element)
    {
        err = err ? err : row(table, element, diag);
    }
    (void)fputc('\n', out);
    err = err ? err : kvd_table_print(table, 0, out);
    kvd_table_destroy(&table);
    return err;
}

static int scenario_row(struct kvd_table *table, const json_t *scenario, struct kvd_diag *diag)
{
    const char *name = NULL;
    json_int_t retention_s = 0;
    json_int_t dram = 0;
    json_int_t nvme = 0;
    json_error_t error;
    if (json_unpack_ex((json_t *)scenario, &error, 0, "{s:s, s:I, s:I, s:I}", "name", &name,
                       "retention_s", &retention_s, "dram_bytes", &dram, "nvme_bytes",
                       &nvme) != 0) {
        return kvd_report_misses(&error, "scenario", diag);
    }
    char text[KVD_TEXT_BYTES];
    (void)kvd_table_cell(table, "%s", name);
    (void)kvd_table_cell(table, "%s", kvd_units_duration(text, (uint64_t)retention_s));
    (void)kvd_table_cell(table, "%s", kvd_units_bytes(text, (uint64_t)dram));
    (void)kvd_table_cell(table, "%s", kvd_units_bytes(text, (uint64_t)nvme));
    return 0;
}

static int view_counts(const json_t *report, FILE *out, struct kvd_diag *diag)
{
    json_int_t entries = 0, queued = 0, disk = 0;
    json_int_t committed = 0, refused = 0, not_down = 0, corrupt = 0, clients = 0, leases = 0;
    json_error_t error;
    if (json_unpack_ex((json_t *)report, &error, 0,
                       "{s:{s:I, s:I, s:I}, s:{s:I, s:I, s:I}, s:I, s:I, s:I}", "index", "entries",
                       &entries, "queued", &queued, "disk_bytes", &disk, "puts", "committed_blocks",
                       &committed, "refused_blocks", &refused, "not_written_down_blocks", &not_down,
                       "corrupt", &corrupt, "clients", &clients, "leases", &leases) != 0) {
        return kvd_report_misses(&error, "status", diag);
    }
    char a[KVD_TEXT_BYTES], b[KVD_TEXT_BYTES], c[KVD_TEXT_BYTES];
    (void)fprintf(out, "\nclients  %s, leases %s\n", kvd_units_count(a, (uint64_t)clients),
                  kvd_units_count(b, (uint64_t)leases));
    (void)fprintf(out, "index    %s entries, %s queued, %s on disk\n",
                  kvd_units_count(a, (uint64_t)entries), kvd_units_count(b, (uint64_t)queued),
                  kvd_units_bytes(c, (uint64_t)disk));
    (void)fprintf(out, "puts     %s blocks stored, %s refused, %s not written down\n",
                  kvd_units_count(a, (uint64_t)committed), kvd_units_count(b, (uint64_t)refused),
                  kvd_units_count(c, (uint64_t)not_down));
    (void)fprintf(out, "corrupt  %s records found\n", kvd_units_count(a, (uint64_t)corrupt));
    return 0;
}

static void scrub_sums(const json_t *round, json_int_t *ret_records, json_int_t *ret_expected,
                       json_int_t *ret_bytes, json_int_t *ret_bad)
{
    size_t index = 0;
    const json_t *tier = NULL;
    json_array_foreach(json_object_get(round, "tiers"), index, tier)
    {
        *ret_records += json_integer_value(json_object_get(tier, "records"));
        *ret_expected += json_integer_value(json_object_get(tier, "expected"));
        *ret_bytes += json_integer_value(json_object_get(tier, "bytes"));
        *ret_bad += json_integer_value(json_object_get(tier, "bad"));
    }
}

/* What was read over again: a round under way, else the last whole one. */
static void view_scrub(const json_t *report, FILE *out)
{
    const json_t *scrub = json_object_get(report, "scrub");
    const json_t *last = json_object_get(scrub, "last");
    bool running = json_is_true(json_object_get(scrub, "running"));
    json_int_t records = 0, expected = 0, bytes = 0, bad = 0;
    char a[KVD_TEXT_BYTES], b[KVD_TEXT_BYTES], c[KVD_TEXT_BYTES];
    if (running) {
        scrub_sums(json_object_get(scrub, "now"), &records, &expected, &bytes, &bad);
        (void)fprintf(out, "scrub    under way: %s of about %s records, %s bad\n",
                      kvd_units_count(a, (uint64_t)records), kvd_units_count(b, (uint64_t)expected),
                      kvd_units_count(c, (uint64_t)bad));
    } else if (last) {
        char ago[KVD_TEXT_BYTES];
        scrub_sums(last, &records, &expected, &bytes, &bad);
        (void)fprintf(
            out, "scrub    %s records (%s) read over again, %s bad; %s ago\n",
            kvd_units_count(a, (uint64_t)records), kvd_units_bytes(b, (uint64_t)bytes),
            kvd_units_count(c, (uint64_t)bad),
            kvd_units_duration(ago, (uint64_t)json_integer_value(json_object_get(last, "ago_s"))));
    } else if (scrub) {
        bool off = json_integer_value(json_object_get(scrub, "rate")) == 0;
        (void)fprintf(out, "scrub    %s\n", off ? "off (scrub.rate is 0)" : "no whole round yet");
    }
}

static int view_rates(const json_t *report, FILE *out, struct kvd_diag *diag)
{
    const char *window = NULL;
    double lookups = 0, asked = 0, hit = 0;
    json_error_t error;
    if (json_unpack_ex((json_t *)report, &error, 0, "{s:{s:s, s:F, s:F, s:F}}", "rates", "window",
                       &window, "lookups_per_s", &lookups, "asked_tokens_per_s", &asked,
                       "hit_tokens_per_s", &hit) != 0) {
        return kvd_report_misses(&error, "rates", diag);
    }
    (void)fprintf(out, "rates    %.1f look-ups/s, %.0f tokens/s asked, %.0f tokens/s hit (%s)\n",
                  lookups, asked, hit, window);
    return 0;
}

int kvd_status_view(const json_t *report, FILE *out, bool *ret_healthy, struct kvd_diag *diag)
{
    static const char *const tier_heads[] = {"tier", "state", "used", "cap", "full", "blocks", ""};
    static const char *const scenario_heads[] = {"scenario", "kept", "dram", "nvme"};
    int err = view_health(report, out, ret_healthy, diag);
    if (!err) {
        err = view_array(json_object_get(report, "tiers"), "llrrrrl", tier_heads, tier_row, out,
                         diag);
    }
    if (!err) {
        err = view_array(json_object_get(report, "scenarios"), "lrrr", scenario_heads, scenario_row,
                         out, diag);
    }
    if (!err) {
        err = view_counts(report, out, diag);
    }
    if (!err) {
        view_scrub(report, out);
    }
    return err ? err : view_rates(report, out, diag);
}
