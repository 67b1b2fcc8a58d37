/* What reading everything over found, as text: see verify_view.h. */
#include "tools/kvdepot/verify_view.h"

#include "tools/kvdepot/report.h"
#include "tools/kvdepot/table.h"
#include "tools/kvdepot/units.h"

int kvd_verify_course(const json_t *report, uint64_t *ret_round, bool *ret_ended,
                      struct kvd_diag *diag)
{
    json_int_t round = 0;
    json_int_t ended_s = 0;
    json_error_t error;
    if (json_unpack_ex((json_t *)report, &error, 0, "{s:{s:I, s:I}}", "now", "round", &round,
                       "ended_s", &ended_s) != 0) {
        return kvd_report_misses(&error, "verify", diag);
    }
    *ret_round = (uint64_t)round;
    *ret_ended = ended_s != 0;
    return 0;
}

static const json_t *tiers_of(const json_t *report)
{
    return json_object_get(json_object_get(report, "now"), "tiers");
}

static uint64_t number(const json_t *object, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(object, key));
    return n < 0 ? 0 : (uint64_t)n;
}

static const char *string(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

void kvd_verify_progress(const json_t *report, char *text, size_t size)
{
    size_t at = 0;
    size_t index = 0;
    const json_t *tier = NULL;
    char a[KVD_TEXT_BYTES], b[KVD_TEXT_BYTES], c[KVD_TEXT_BYTES];
    text[0] = '\0';
    json_array_foreach(tiers_of(report), index, tier)
    {
        if (at >= size) {
            return;
        }
        int n = snprintf(text + at, size - at, "%s%s %s of %s records, %s", at ? "; " : "",
                         string(tier, "name"), kvd_units_count(a, number(tier, "records")),
                         kvd_units_count(b, number(tier, "expected")),
                         kvd_units_bytes(c, number(tier, "bytes")));
        at += n > 0 ? (size_t)n : 0;
    }
}

int kvd_verify_judge(const json_t *report, bool *ret_good, struct kvd_diag *diag)
{
    json_t *tiers = NULL;
    json_t *bad = NULL;
    json_int_t quarantined = 0;
    json_error_t error;
    if (json_unpack_ex((json_t *)report, &error, 0, "{s:{s:o}, s:I, s:o}", "now", "tiers", &tiers,
                       "quarantined", &quarantined, "bad", &bad) != 0) {
        return kvd_report_misses(&error, "verify", diag);
    }
    size_t index = 0;
    const json_t *tier = NULL;
    *ret_good = quarantined == 0 && json_array_size(bad) == 0;
    json_array_foreach(tiers, index, tier)
    {
        json_int_t n = 0;
        if (json_unpack_ex((json_t *)tier, &error, 0, "{s:I}", "bad", &n) != 0) {
            return kvd_report_misses(&error, "verify", diag);
        }
        *ret_good = *ret_good && n == 0;
    }
    return 0;
}

static int view_tiers(const json_t *report, FILE *out)
{
    static const char *const heads[] = {"tier", "records", "bytes", "bad", "newer", "skipped"};
    struct kvd_table *table = NULL;
    int err = kvd_table_create("lrrrrr", &table);
    for (size_t i = 0; !err && i < sizeof(heads) / sizeof(heads[0]); i++) {
        err = kvd_table_cell(table, "%s", heads[i]);
    }
    size_t index = 0;
    const json_t *tier = NULL;
    char text[KVD_TEXT_BYTES];
    json_array_foreach(tiers_of(report), index, tier)
    {
        if (err) {
            break;
        }
        (void)kvd_table_cell(table, "%s", string(tier, "name"));
        (void)kvd_table_cell(table, "%s", kvd_units_count(text, number(tier, "records")));
        (void)kvd_table_cell(table, "%s", kvd_units_bytes(text, number(tier, "bytes")));
        (void)kvd_table_cell(table, "%s", kvd_units_count(text, number(tier, "bad")));
        (void)kvd_table_cell(table, "%s", kvd_units_count(text, number(tier, "newer")));
        (void)kvd_table_cell(table, "%s", kvd_units_count(text, number(tier, "skipped")));
    }
    err = err ? err : kvd_table_print(table, 0, out);
    kvd_table_destroy(&table);
    return err;
}

static int view_bad(const json_t *report, FILE *out)
{
    static const char *const heads[] = {"bad record of block", "tier", "segment", "offset",
                                        "what is wrong"};
    const json_t *rows = json_object_get(report, "bad");
    struct kvd_table *table = NULL;
    if (json_array_size(rows) == 0) {
        return 0;
    }
    int err = kvd_table_create("llrrl", &table);
    for (size_t i = 0; !err && i < sizeof(heads) / sizeof(heads[0]); i++) {
        err = kvd_table_cell(table, "%s", heads[i]);
    }
    size_t index = 0;
    const json_t *row = NULL;
    json_array_foreach(rows, index, row)
    {
        if (err) {
            break;
        }
        const char *key = string(row, "key");
        (void)kvd_table_cell(table, "%s", *key ? key : "(the segment itself)");
        (void)kvd_table_cell(table, "%s", string(row, "tier"));
        (void)kvd_table_cell(table, "%llu", (unsigned long long)number(row, "segment"));
        (void)kvd_table_cell(table, "%llu", (unsigned long long)number(row, "offset"));
        (void)kvd_table_cell(table, "%s", string(row, "reason"));
    }
    (void)fputc('\n', out);
    err = err ? err : kvd_table_print(table, 0, out);
    kvd_table_destroy(&table);
    return err;
}

int kvd_verify_view(const json_t *report, FILE *out, bool *ret_good, struct kvd_diag *diag)
{
    int err = kvd_verify_judge(report, ret_good, diag);
    if (err) {
        return err;
    }
    err = view_tiers(report, out);
    err = err ? err : view_bad(report, out);
    if (err) {
        return kvd_fail(diag, err, "%s", kvd_strerror(err));
    }
    uint64_t shown = json_array_size(json_object_get(report, "bad"));
    uint64_t all = number(report, "quarantined");
    if (all > shown) {
        char text[KVD_TEXT_BYTES];
        (void)fprintf(out, "and %s more\n", kvd_units_count(text, all - shown));
    }
    return 0;
}
