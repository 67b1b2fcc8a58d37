/* Reads scenarios.yaml: see scenario.h for the contract and scenarios.yaml for the keys. A key is
 * one row of scenario_keys; the reader checks that all that are needed came, each once. */
#include "policies/scenario.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "policies/yaml_reader.h"
#include "proto/base/assert.h"
#include "proto/base/cleanup.h"

enum {
    SCENARIOS_MAGIC = 0x53434e31,
    ID_MAX = UINT16_MAX,
    DAY_S = 86400,
    RETENTION_MAX_D = 3650,
    SLICE_MIN_S = 60, /* segments of less than that would hold next to nothing */
    SLICE_MAX_D = 30,
};

/* from policies/scenarios.yaml, by embed.sh */
extern const unsigned char kvd_scenarios_text[];
extern const size_t kvd_scenarios_text_bytes;

struct kvd_scenarios {
    uint32_t magic;
    uint32_t count;
    struct kvd_scenario rows[KVD_SCENARIOS_MAX];
};

/* ---- values ---- */

static int read_id(const struct kvd_yaml *y, const char *text, struct kvd_scenario *s)
{
    const char *end = NULL;
    uint64_t v = 0;
    if (!kvd_number_read(text, &end, &v) || *end || v < 1 || v > ID_MAX) {
        return kvd_yaml_fail(y, "id is \"%s\"; a whole number from 1 to %d is allowed", text,
                             ID_MAX);
    }
    s->id = (uint16_t)v;
    return 0;
}

static int read_name(const struct kvd_yaml *y, const char *text, struct kvd_scenario *s)
{
    size_t n = strlen(text);
    bool good = n >= 1 && n <= KVD_SCENARIO_NAME_MAX && text[0] >= 'a' && text[0] <= 'z' &&
                strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_-") == n;
    if (!good) {
        return kvd_yaml_fail(y,
                             "name is \"%s\"; a small letter, then small letters, digits, - and _ "
                             "are allowed, %d at most",
                             text, KVD_SCENARIO_NAME_MAX);
    }
    memcpy(s->name, text, n + 1);
    return 0;
}

static uint64_t unit_seconds(const char *unit)
{
    static const struct {
        const char *name;
        uint32_t seconds;
    } units[] = {{"s", 1}, {"m", 60}, {"h", 3600}, {"d", DAY_S}};
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcmp(unit, units[i].name) == 0) {
            return units[i].seconds;
        }
    }
    return 0;
}

static int read_duration(const struct kvd_yaml *y, const char *key, const char *text,
                         uint64_t min_s, uint64_t max_d, uint64_t *ret)
{
    const char *end = NULL;
    uint64_t v = 0;
    uint64_t unit = kvd_number_read(text, &end, &v) ? unit_seconds(end) : 0;
    if (!unit || __builtin_mul_overflow(v, unit, &v) || v < min_s || v > max_d * DAY_S) {
        return kvd_yaml_fail(y,
                             "%s is \"%s\"; a whole number with a unit s, m, h or d is allowed, "
                             "from %llus to %llud",
                             key, text, (unsigned long long)min_s, (unsigned long long)max_d);
    }
    *ret = v;
    return 0;
}

static int read_retention(const struct kvd_yaml *y, const char *text, struct kvd_scenario *s)
{
    return read_duration(y, "retention", text, 1, RETENTION_MAX_D, &s->retention_s);
}

static int read_slice(const struct kvd_yaml *y, const char *text, struct kvd_scenario *s)
{
    return read_duration(y, "slice", text, SLICE_MIN_S, SLICE_MAX_D, &s->slice_s);
}

static int read_either(const struct kvd_yaml *y, const char *key, const char *text, const char *yes,
                       const char *no, bool *ret)
{
    bool is_yes = strcmp(text, yes) == 0;
    if (!is_yes && strcmp(text, no) != 0) {
        return kvd_yaml_fail(y, "%s is \"%s\"; %s or %s is allowed", key, text, yes, no);
    }
    *ret = is_yes;
    return 0;
}

static int read_from(const struct kvd_yaml *y, const char *text, struct kvd_scenario *s)
{
    return read_either(y, "from", text, "last-use", "put", &s->sliding);
}

static int read_nvme(const struct kvd_yaml *y, const char *text, struct kvd_scenario *s)
{
    return read_either(y, "nvme", text, "true", "false", &s->nvme);
}

enum scenario_key { KEY_ID, KEY_NAME, KEY_RETENTION, KEY_FROM, KEY_NVME, KEY_SLICE, KEYS };

static const struct {
    const char *name;
    int (*read)(const struct kvd_yaml *y, const char *text, struct kvd_scenario *s);
} scenario_keys[KEYS] = {
    [KEY_ID] = {"id", read_id},
    [KEY_NAME] = {"name", read_name},
    [KEY_RETENTION] = {"retention", read_retention},
    [KEY_FROM] = {"from", read_from},
    [KEY_NVME] = {"nvme", read_nvme},
    [KEY_SLICE] = {"slice", read_slice},
};
#define KEY_NAMES "id, name, retention, from, nvme, slice"

/* ---- structure ---- */

/* Where a class began, for what is found wrong at its end. */
struct row_state {
    struct kvd_scenario row;
    uint32_t seen; /* bits of enum scenario_key */
    uint32_t line;
    uint32_t column;
};

static int row_fail(const struct kvd_yaml *y, const struct row_state *st, const char *text)
{
    return kvd_fail(y->diag, -KVD_E_CONFIG, "%s:%u:%u: %s", y->name, st->line, st->column, text);
}

static int read_pair(struct kvd_yaml *y, struct row_state *st)
{
    const char *key = kvd_yaml_scalar(y);
    unsigned k = 0;
    while (key && k < KEYS && strcmp(key, scenario_keys[k].name) != 0) {
        k++;
    }
    if (!key || k == KEYS) {
        return kvd_yaml_fail(y, "unknown key \"%s\"; " KEY_NAMES " are allowed", key ? key : "{}");
    }
    if (st->seen & (1u << k)) {
        return kvd_yaml_fail(y, "%s a second time; once is allowed", key);
    }
    st->seen |= 1u << k;
    int err = kvd_yaml_next(y);
    if (err) {
        return err;
    }
    const char *value = kvd_yaml_scalar(y);
    if (!value || kvd_yaml_is_null(y)) {
        return kvd_yaml_fail(y, "%s has no single value; write it after the colon",
                             scenario_keys[k].name);
    }
    return scenario_keys[k].read(y, value, &st->row);
}

static int check_row(const struct kvd_yaml *y, const struct row_state *st,
                     const struct kvd_scenarios *table)
{
    uint32_t need = (1u << KEY_ID) | (1u << KEY_NAME) | (1u << KEY_RETENTION) | (1u << KEY_FROM) |
                    (1u << KEY_NVME);
    if ((st->seen & need) != need) {
        return row_fail(y, st, "a class needs id, name, retention, from and nvme");
    }
    bool sliced = st->seen & (1u << KEY_SLICE);
    if (sliced != st->row.nvme) {
        return row_fail(
            y, st,
            sliced ? "slice without nvme: true; a class of dram alone has no slices"
                   : "nvme: true without slice; say how long a segment's slice is, as 12h");
    }
    for (uint32_t i = 0; i < table->count; i++) {
        if (table->rows[i].id == st->row.id) {
            return row_fail(y, st, "its id is another class's; each has its own");
        }
        if (strcmp(table->rows[i].name, st->row.name) == 0) {
            return row_fail(y, st, "its name is another class's; each has its own");
        }
    }
    return 0;
}

static int read_row(struct kvd_yaml *y, struct kvd_scenarios *table)
{
    struct row_state st = {.line = kvd_yaml_line(y), .column = kvd_yaml_column(y)};
    if (y->event.type != YAML_MAPPING_START_EVENT) {
        return kvd_yaml_fail(y, "not a map; each class is a map of " KEY_NAMES);
    }
    if (table->count == KVD_SCENARIOS_MAX) {
        return kvd_yaml_fail(y, "one class too many; %d are allowed", KVD_SCENARIOS_MAX);
    }
    int err = kvd_yaml_next(y);
    while (!err && y->event.type != YAML_MAPPING_END_EVENT) {
        err = read_pair(y, &st);
        err = err ? err : kvd_yaml_next(y);
    }
    err = err ? err : check_row(y, &st, table);
    if (err) {
        return err;
    }
    if (!st.row.nvme) {
        st.row.slice_s = st.row.retention_s; /* never used; never zero either */
    }
    table->rows[table->count++] = st.row;
    return 0;
}

static int read_list(struct kvd_yaml *y, struct kvd_scenarios *table)
{
    if (y->event.type != YAML_SEQUENCE_START_EVENT) {
        return kvd_yaml_fail(y, "scenarios is not a list; a list of classes is needed");
    }
    int err = kvd_yaml_next(y);
    while (!err && y->event.type != YAML_SEQUENCE_END_EVENT) {
        err = read_row(y, table);
        err = err ? err : kvd_yaml_next(y);
    }
    if (!err && table->count == 0) {
        return kvd_yaml_fail(y, "no class in the list; at least one is needed");
    }
    return err;
}

static int read_document(struct kvd_yaml *y, struct kvd_scenarios *table)
{
    if (y->event.type != YAML_MAPPING_START_EVENT) {
        return kvd_yaml_fail(y, "not a map; a map with the key scenarios is needed");
    }
    int err = kvd_yaml_next(y);
    if (err) {
        return err;
    }
    const char *key = kvd_yaml_scalar(y);
    if (!key || strcmp(key, "scenarios") != 0) {
        return kvd_yaml_fail(y, "unknown key \"%s\"; scenarios is allowed", key ? key : "{}");
    }
    err = kvd_yaml_next(y);
    err = err ? err : read_list(y, table);
    err = err ? err : kvd_yaml_next(y);
    if (!err && y->event.type != YAML_MAPPING_END_EVENT) {
        return kvd_yaml_fail(y, "a second key; scenarios alone is allowed");
    }
    return err ? err : kvd_yaml_end(y);
}

int kvd_scenarios_parse(const char *text, size_t bytes, const char *name, struct kvd_diag *diag,
                        struct kvd_scenarios **ret)
{
    KVD_CLEANUP(kvd_scenarios_destroy) struct kvd_scenarios *table = calloc(1, sizeof(*table));
    struct kvd_yaml y;
    if (!table) {
        return kvd_fail(diag, -ENOMEM, "%s: out of memory", name);
    }
    KVD_MAGIC_SET(table, SCENARIOS_MAGIC);
    int err = kvd_yaml_open(&y, text, bytes, name, diag);
    if (err) {
        return err;
    }
    err = read_document(&y, table);
    kvd_yaml_close(&y);
    if (!err) {
        *ret = KVD_TAKE(table);
    }
    return err;
}

void kvd_scenarios_destroy(struct kvd_scenarios **scenarios)
{
    if (*scenarios) {
        KVD_MAGIC_CHECK(*scenarios, SCENARIOS_MAGIC);
        KVD_MAGIC_CLEAR(*scenarios);
        free(*scenarios);
        *scenarios = NULL;
    }
}

const char *kvd_scenarios_builtin(size_t *ret_bytes)
{
    *ret_bytes = kvd_scenarios_text_bytes;
    return (const char *)kvd_scenarios_text;
}

/* ---- asking ---- */

const struct kvd_scenario *kvd_scenario_by_name(const struct kvd_scenarios *s, const char *name,
                                                size_t name_bytes)
{
    KVD_MAGIC_CHECK(s, SCENARIOS_MAGIC);
    for (uint32_t i = 0; i < s->count; i++) {
        const struct kvd_scenario *row = &s->rows[i];
        if (strlen(row->name) == name_bytes && memcmp(row->name, name, name_bytes) == 0) {
            return row;
        }
    }
    return NULL;
}

const struct kvd_scenario *kvd_scenario_by_id(const struct kvd_scenarios *s, uint16_t id)
{
    KVD_MAGIC_CHECK(s, SCENARIOS_MAGIC);
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->rows[i].id == id) {
            return &s->rows[i];
        }
    }
    return NULL;
}

uint32_t kvd_scenarios_count(const struct kvd_scenarios *s)
{
    KVD_MAGIC_CHECK(s, SCENARIOS_MAGIC);
    return s->count;
}

const struct kvd_scenario *kvd_scenario_at(const struct kvd_scenarios *s, uint32_t nth)
{
    KVD_MAGIC_CHECK(s, SCENARIOS_MAGIC);
    return nth < s->count ? &s->rows[nth] : NULL;
}
