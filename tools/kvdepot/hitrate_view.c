/* The daemon's hit rate as text: see hitrate_view.h. */
#include "tools/kvdepot/hitrate_view.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "tools/kvdepot/report.h"
#include "tools/kvdepot/table.h"
#include "tools/kvdepot/units.h"

static const char *const amount_keys[] = {"tokens", "blocks", "bytes"};

enum { AMOUNTS = 3 };

/* What a reason means. One that is not here is shown by its key. */
static const struct {
    const char *key;
    const char *text;
} reasons[] = {
    {"never_seen", "never stored"},
    {"expired", "its retention had ended"},
    {"evicted", "thrown away for room"},
    {"other_owner", "stored, but for another tenant or space"},
    {"diverged", "the stored chain goes on with other tokens"},
    {"pending", "being put at that moment"},
    {"failed", "found, but could not be read or verified"},
    {"short", "shorter than a block, or the last token"},
    {"purged", "thrown away because somebody asked for it"},
};

static const char *reason_text(const char *key)
{
    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
        if (strcmp(reasons[i].key, key) == 0) {
            return reasons[i].text;
        }
    }
    return "";
}

static uint64_t amount_of(const json_t *amount, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(amount, key));
}

static uint64_t tokens_of(const json_t *amount)
{
    return amount_of(amount, "tokens");
}

/* Sum of one unit over an object of amounts. */
static uint64_t amounts_sum(const json_t *amounts, const char *unit)
{
    uint64_t sum = 0;
    const char *key = NULL;
    json_t *amount = NULL;
    json_object_foreach((json_t *)amounts, key, amount)
    {
        sum += amount_of(amount, unit);
    }
    return sum;
}

static int amount_check(const json_t *amount, const char *name, struct kvd_diag *diag)
{
    for (int i = 0; i < AMOUNTS; i++) {
        const json_t *value = json_object_get(amount, amount_keys[i]);
        if (!json_is_integer(value) || json_integer_value(value) < 0) {
            return kvd_fail(diag, -KVD_E_FORMAT,
                            "the daemon's hit rate has no number of %s under '%s': use the kvdepot "
                            "that came with the daemon",
                            amount_keys[i], name);
        }
    }
    return 0;
}

static int row_check(const json_t *row, struct kvd_diag *diag)
{
    const char *name = NULL;
    json_int_t lookups = 0;
    json_t *asked = NULL;
    json_t *parts[2] = {NULL, NULL};
    json_error_t error;
    if (json_unpack_ex((json_t *)row, &error, 0, "{s:s, s:I, s:o, s:o, s:o}", "name", &name,
                       "lookups", &lookups, "asked", &asked, "hit", &parts[0], "missed",
                       &parts[1]) != 0) {
        return kvd_report_misses(&error, "hit rate", diag);
    }
    int err = amount_check(asked, "asked", diag);
    for (int i = 0; i < 2 && !err; i++) {
        const char *key = NULL;
        json_t *amount = NULL;
        json_object_foreach(parts[i], key, amount)
        {
            err = err ? err : amount_check(amount, key, diag);
        }
    }
    for (int i = 0; i < AMOUNTS && !err; i++) {
        uint64_t sum =
            amounts_sum(parts[0], amount_keys[i]) + amounts_sum(parts[1], amount_keys[i]);
        if (sum != amount_of(asked, amount_keys[i])) {
            err = kvd_fail(diag, -KVD_E_CORRUPT,
                           "the daemon's counts of '%s' do not add up: %llu %s asked, %llu hit or "
                           "missed; that is a fault of the daemon, please report it",
                           name, (unsigned long long)amount_of(asked, amount_keys[i]),
                           amount_keys[i], (unsigned long long)sum);
        }
    }
    return err;
}

int kvd_hitrate_check(const json_t *report, struct kvd_diag *diag)
{
    const char *window = NULL;
    const char *by = NULL;
    json_t *rows = NULL;
    json_error_t error;
    if (json_unpack_ex((json_t *)report, &error, 0, "{s:s, s:s, s:o}", "window", &window, "by", &by,
                       "rows", &rows) != 0) {
        return kvd_report_misses(&error, "hit rate", diag);
    }
    if (!json_is_array(rows) || (strcmp(by, "all") == 0 && json_array_size(rows) != 1)) {
        return kvd_fail(diag, -KVD_E_FORMAT,
                        "the daemon's hit rate has no rows, or too many: use the kvdepot that came "
                        "with the daemon");
    }
    size_t index = 0;
    const json_t *row = NULL;
    json_array_foreach(rows, index, row)
    {
        int err = row_check(row, diag);
        if (err) {
            return err;
        }
    }
    return 0;
}

/* "hit", "dram", amounts, share, text */
static void tier_line(struct kvd_table *table, const char *group, const char *name,
                      const json_t *amount, uint64_t asked_tokens, const char *text)
{
    char cell[KVD_TEXT_BYTES];
    (void)kvd_table_cell(table, "%s", group);
    (void)kvd_table_cell(table, "%s", name);
    (void)kvd_table_cell(table, "%s", kvd_units_count(cell, tokens_of(amount)));
    (void)kvd_table_cell(table, "%s", kvd_units_share(cell, tokens_of(amount), asked_tokens));
    (void)kvd_table_cell(table, "%s", kvd_units_count(cell, amount_of(amount, "blocks")));
    (void)kvd_table_cell(table, "%s", kvd_units_bytes(cell, amount_of(amount, "bytes")));
    (void)kvd_table_cell(table, "%s", text);
}

static void tier_lines(struct kvd_table *table, const char *group, const json_t *amounts,
                       uint64_t asked_tokens, const char *(*text)(const char *key))
{
    const char *key = NULL;
    json_t *amount = NULL;
    json_object_foreach((json_t *)amounts, key, amount)
    {
        tier_line(table, group, key, amount, asked_tokens, text ? text(key) : "");
    }
}

/* Of what time the report is, where its window's name does not say it. */
static void since_line(const json_t *report, FILE *out)
{
    const json_t *since = json_object_get(report, "since_s");
    const bool ever = strcmp(json_string_value(json_object_get(report, "window")), "ever") == 0;
    char text[KVD_TEXT_BYTES];
    const time_t at = (time_t)json_integer_value(since);
    struct tm tm;
    if (json_is_true(json_object_get(report, "restarted"))) {
        (void)fprintf(out, "the daemon was started %s ago and has counted since then only\n",
                      kvd_units_duration(text, (uint64_t)json_integer_value(
                                                   json_object_get(report, "counted_s"))));
    } else if (ever && json_is_integer(since) && gmtime_r(&at, &tm)) {
        (void)strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &tm);
        (void)fprintf(out, "counted since %s\n", text);
    }
}

int kvd_hitrate_view_tiers(const json_t *report, FILE *out)
{
    static const char *const heads[] = {"", "", "tokens", "share", "blocks", "bytes", ""};
    const json_t *row = json_array_get(json_object_get(report, "rows"), 0);
    const json_t *asked = json_object_get(row, "asked");
    const json_t *hit = json_object_get(row, "hit");
    const json_t *missed = json_object_get(row, "missed");
    char a[KVD_TEXT_BYTES], b[KVD_TEXT_BYTES], c[KVD_TEXT_BYTES];
    struct kvd_table *table = NULL;
    if (kvd_table_create("llrrrrl", &table)) {
        return -ENOMEM;
    }
    for (int i = 0; i < 7; i++) {
        (void)kvd_table_cell(table, "%s", heads[i]);
    }
    uint64_t whole = tokens_of(asked);
    tier_line(table, "asked", "", asked, whole, "");
    tier_lines(table, "hit", hit, whole, NULL);
    tier_lines(table, "missed", missed, whole, reason_text);
    (void)fprintf(out, "look-ups: %s (window: %s)\n", kvd_units_count(a, amount_of(row, "lookups")),
                  json_string_value(json_object_get(report, "window")));
    since_line(report, out);
    (void)fprintf(out, "\n");
    int err = kvd_table_print(table, 0, out);
    kvd_table_destroy(&table);
    (void)fprintf(out, "\nhit %s + missed %s = asked %s tokens\n",
                  kvd_units_count(a, amounts_sum(hit, "tokens")),
                  kvd_units_count(b, amounts_sum(missed, "tokens")), kvd_units_count(c, whole));
    return err;
}

/* Whether any row has tokens under row.group.key. */
static int any_row_has(const json_t *rows, const char *group, const char *key)
{
    size_t index = 0;
    const json_t *row = NULL;
    json_array_foreach(rows, index, row)
    {
        if (tokens_of(json_object_get(json_object_get(row, group), key)) > 0) {
            return 1;
        }
    }
    return 0;
}

/* For each key under `group` of the first row that some row has tokens under: fn(key). */
static void each_used_key(const json_t *rows, const char *group,
                          void (*fn)(const char *group, const char *key, void *user), void *user)
{
    const char *key = NULL;
    json_t *amount = NULL;
    json_object_foreach(json_object_get(json_array_get(rows, 0), group), key, amount)
    {
        if (any_row_has(rows, group, key)) {
            fn(group, key, user);
        }
    }
}

struct row_context {
    struct kvd_table *table;
    const json_t *row;
};

static void head_cell(const char *group, const char *key, void *user)
{
    (void)kvd_table_cell(user, "%s %s", group, key);
}

static void share_cell(const char *group, const char *key, void *user)
{
    const struct row_context *context = user;
    char cell[KVD_TEXT_BYTES];
    (void)kvd_table_cell(
        context->table, "%s",
        kvd_units_share(cell, tokens_of(json_object_get(json_object_get(context->row, group), key)),
                        tokens_of(json_object_get(context->row, "asked"))));
}

static void count_key(const char *group, const char *key, void *user)
{
    (void)group;
    (void)key;
    (*(size_t *)user)++;
}

static void rows_fill(struct kvd_table *table, const json_t *rows, const char *by)
{
    (void)kvd_table_cell(table, "%s", by);
    (void)kvd_table_cell(table, "look-ups");
    (void)kvd_table_cell(table, "asked tokens");
    (void)kvd_table_cell(table, "hit");
    each_used_key(rows, "hit", head_cell, table);
    each_used_key(rows, "missed", head_cell, table);
    size_t index = 0;
    const json_t *row = NULL;
    json_array_foreach(rows, index, row)
    {
        struct row_context context = {table, row};
        char cell[KVD_TEXT_BYTES];
        const char *name = json_string_value(json_object_get(row, "name"));
        uint64_t asked = tokens_of(json_object_get(row, "asked"));
        (void)kvd_table_cell(table, "%s", *name ? name : "(default)");
        (void)kvd_table_cell(table, "%s", kvd_units_count(cell, amount_of(row, "lookups")));
        (void)kvd_table_cell(table, "%s", kvd_units_count(cell, asked));
        (void)kvd_table_cell(
            table, "%s",
            kvd_units_share(cell, amounts_sum(json_object_get(row, "hit"), "tokens"), asked));
        each_used_key(rows, "hit", share_cell, &context);
        each_used_key(rows, "missed", share_cell, &context);
    }
}

int kvd_hitrate_view_rows(const json_t *report, FILE *out)
{
    const json_t *rows = json_object_get(report, "rows");
    const char *by = json_string_value(json_object_get(report, "by"));
    char columns[64] = "lrrr";
    size_t used = 0;
    each_used_key(rows, "hit", count_key, &used);
    each_used_key(rows, "missed", count_key, &used);
    used = used < sizeof(columns) - 5 ? used : sizeof(columns) - 5;
    memset(columns + 4, 'r', used);
    struct kvd_table *table = NULL;
    if (kvd_table_create(columns, &table)) {
        return -ENOMEM;
    }
    rows_fill(table, rows, by);
    (void)fprintf(out, "shares of the tokens asked (window: %s)\n",
                  json_string_value(json_object_get(report, "window")));
    since_line(report, out);
    (void)fprintf(out, "\n");
    int err = kvd_table_print(table, 0, out);
    kvd_table_destroy(&table);
    return err;
}

static int tier_append(json_t *rows, const char *name, json_int_t tokens, json_int_t blocks,
                       json_int_t bytes)
{
    return json_array_append_new(rows, json_pack("{s:s, s:I, s:I, s:I}", "name", name, "tokens",
                                                 tokens, "blocks", blocks, "bytes", bytes));
}

json_t *kvd_hitrate_by_tier(const json_t *report)
{
    const json_t *row = json_array_get(json_object_get(report, "rows"), 0);
    const json_t *missed = json_object_get(row, "missed");
    json_t *rows = json_array();
    const char *key = NULL;
    json_t *amount = NULL;
    int err = rows ? 0 : -1;
    json_object_foreach(json_object_get(row, "hit"), key, amount)
    {
        err |= tier_append(rows, key, (json_int_t)tokens_of(amount),
                           (json_int_t)amount_of(amount, "blocks"),
                           (json_int_t)amount_of(amount, "bytes"));
    }
    err |= tier_append(rows, "missed", (json_int_t)amounts_sum(missed, "tokens"),
                       (json_int_t)amounts_sum(missed, "blocks"),
                       (json_int_t)amounts_sum(missed, "bytes"));
    if (err) {
        json_decref(rows);
        return NULL;
    }
    json_t *tiers = json_pack("{s:i, s:O, s:s, s:I, s:O, s:o}", "schema", 1, "window",
                              json_object_get(report, "window"), "by", "tier", "lookups",
                              (json_int_t)amount_of(row, "lookups"), "asked",
                              json_object_get(row, "asked"), "rows", rows);
    static const char *const times[] = {"since_s", "counted_s", "restarted"};
    for (size_t i = 0; tiers && i < sizeof(times) / sizeof(times[0]); i++) {
        json_t *time = json_object_get(report, times[i]);
        if (time) {
            (void)json_object_set(tiers, times[i], time);
        }
    }
    return tiers;
}
