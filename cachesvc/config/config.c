/* A configuration's beginning and end, and the YAML file. See config.h. */
#include "cachesvc/config/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cachesvc/config/option.h"
#include "cachesvc/config/text_file.h"
#include "policies/yaml_reader.h"
#include "proto/base/cleanup.h"

int kvd_config_init(struct kvd_config *config)
{
    memset(config, 0, sizeof(*config));
    for (size_t i = 0; i < KVD_OPTION_COUNT; i++) {
        const struct kvd_option *o = &kvd_options[i];
        int err = kvd_config_set(config, o->name, o->def, o->name, NULL);
        if (err) {
            kvd_config_fini(config);
            return err;
        }
    }
    return 0;
}

void kvd_config_fini(struct kvd_config *config)
{
    for (size_t i = 0; i < KVD_OPTION_COUNT; i++) {
        if (kvd_option_is_text(&kvd_options[i])) {
            free(*kvd_option_str(&kvd_options[i], config));
        }
    }
    kvd_scenarios_destroy(&config->scenarios_table);
    memset(config, 0, sizeof(*config));
}

/* ---- the file ---- */

struct file_state {
    struct kvd_yaml y;
    struct kvd_config *config;
    bool seen[KVD_OPTION_COUNT];
};

/* Whether a name is the beginning of options' names: "dram" of dram.cap. */
static bool is_group(const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < KVD_OPTION_COUNT; i++) {
        if (strncmp(kvd_options[i].name, name, n) == 0 && kvd_options[i].name[n] == '.') {
            return true;
        }
    }
    return false;
}

static int fail_unknown(const struct kvd_yaml *y, const char *name)
{
    static const char *const none[] = {NULL};
    const char *near = kvd_option_nearest(name, none);
    return kvd_yaml_fail(y, "no option is called \"%.100s\"; %s%s", name,
                         near ? "did you mean " : "--list-options shows all", near ? near : "");
}

static int read_value(struct file_state *st, const char *name)
{
    struct kvd_yaml *y = &st->y;
    const struct kvd_option *o = kvd_option_by_name(name);
    const char *value = kvd_yaml_scalar(y);
    char where[320];
    if (!o) {
        return kvd_yaml_fail(y, "%s is a group of options; a map is needed, as {%s: %s}", name,
                             "name", "value");
    }
    if (!value) {
        return kvd_yaml_fail(y, "%s has no single value; one is needed", name);
    }
    if (kvd_yaml_is_null(y)) {
        return kvd_yaml_fail(y, "%s has no value; write one after the colon, \"\" for an empty one",
                             name);
    }
    if (st->seen[o - kvd_options]) {
        return kvd_yaml_fail(y, "%s a second time; once is allowed", name);
    }
    st->seen[o - kvd_options] = true;
    (void)snprintf(where, sizeof(where), "%.200s:%u:%u: %s", y->name, kvd_yaml_line(y),
                   kvd_yaml_column(y), name);
    return kvd_config_set(st->config, name, value, where, y->diag);
}

/* Options below a prefix ("" or "dram."). Every level is a known group, so the depth is bounded. */
static int read_map(struct file_state *st, const char *prefix)
{
    struct kvd_yaml *y = &st->y;
    int err = kvd_yaml_next(y);
    while (!err && y->event.type != YAML_MAPPING_END_EVENT) {
        char name[KVD_OPTION_NAME_MAX + 2];
        const char *key = kvd_yaml_scalar(y);
        if (!key) {
            return kvd_yaml_fail(y, "a key that is not a name; names of options are allowed");
        }
        int n = snprintf(name, sizeof(name), "%s%s", prefix, key);
        bool group = n < (int)sizeof(name) - 1 && is_group(name);
        if (n >= (int)sizeof(name) || (!group && !kvd_option_by_name(name))) {
            return fail_unknown(y, n >= (int)sizeof(name) ? key : name);
        }
        err = kvd_yaml_next(y);
        if (!err && group && y->event.type == YAML_MAPPING_START_EVENT) {
            (void)memcpy(name + n, ".", 2);
            err = read_map(st, name); // NOLINT(misc-no-recursion): as deep as names have dots
        } else if (!err) {
            err = read_value(st, name);
        }
        err = err ? err : kvd_yaml_next(y);
    }
    return err;
}

static int read_document(struct file_state *st)
{
    if (st->y.event.type != YAML_MAPPING_START_EVENT) {
        return kvd_yaml_fail(&st->y, "not a map; a map of options is needed, as dir: /srv/kvdepot");
    }
    int err = read_map(st, "");
    return err ? err : kvd_yaml_end(&st->y);
}

int kvd_config_read_file(struct kvd_config *config, const char *path, struct kvd_diag *diag)
{
    struct file_state st = {.config = config};
    KVD_AUTOFREE char *text = NULL;
    size_t bytes = 0;
    int err = kvd_text_file_read(path, diag, &text, &bytes);
    err = err ? err : kvd_yaml_open(&st.y, text, bytes, path, diag);
    if (err) {
        return err;
    }
    err = read_document(&st);
    kvd_yaml_close(&st.y);
    return err;
}
