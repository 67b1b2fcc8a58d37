/* Options for people: the table of --list-options, and the values as YAML. */
#include <stdio.h>
#include <string.h>

#include "cachesvc/config/option.h"

static const char *type_name(const struct kvd_option *o)
{
    static const char *const names[] = {
        [KVD_OPTION_STR] = "text", [KVD_OPTION_BYTES] = "size", [KVD_OPTION_U64] = "number",
        [KVD_OPTION_MS] = "time",  [KVD_OPTION_BOOL] = "bool",  [KVD_OPTION_ENUM] = "choice"};
    return o->unit[0] ? o->unit : names[o->type];
}

static void range_text(const struct kvd_option *o, char *ret_text, size_t bytes)
{
    char min[KVD_OPTION_NUMBER_BYTES];
    char max[KVD_OPTION_NUMBER_BYTES];
    if (kvd_option_is_number(o)) {
        kvd_option_format(o, o->min, min);
        kvd_option_format(o, o->max, max);
        (void)snprintf(ret_text, bytes, "%s..%s", min, max);
        return;
    }
    (void)snprintf(ret_text, bytes, "%s",
                   o->type == KVD_OPTION_BOOL   ? "true|false"
                   : o->type == KVD_OPTION_ENUM ? o->alternatives
                                                : "-");
}

struct row {
    const char *cells[4];
    char range[64];
};

static void fill_row(const struct kvd_option *o, struct row *row)
{
    range_text(o, row->range, sizeof(row->range));
    row->cells[0] = o->name;
    row->cells[1] = type_name(o);
    row->cells[2] = row->range;
    row->cells[3] = o->def[0] ? o->def : "\"\"";
}

static void widen(int widths[4], const struct row *row)
{
    for (int c = 0; c < 4; c++) {
        int n = (int)strlen(row->cells[c]);
        widths[c] = n > widths[c] ? n : widths[c];
    }
}

static void print_row(FILE *out, const int widths[4], const struct row *row, const char *text)
{
    for (int c = 0; c < 4; c++) {
        (void)fprintf(out, "%-*s  ", widths[c], row->cells[c]);
    }
    (void)fprintf(out, "%s\n", text);
}

void kvd_config_print_options(FILE *out)
{
    static const struct row head = {.cells = {"option", "unit", "range", "default"}};
    int widths[4] = {0};
    struct row row;
    widen(widths, &head);
    for (size_t i = 0; i < KVD_OPTION_COUNT; i++) {
        fill_row(&kvd_options[i], &row);
        widen(widths, &row);
    }
    print_row(out, widths, &head, "what it is");
    for (size_t i = 0; i < KVD_OPTION_COUNT; i++) {
        fill_row(&kvd_options[i], &row);
        print_row(out, widths, &row, kvd_options[i].text);
    }
}

/* Within quotes only these two mean something else; kvd_config_set lets no control characters in.
 */
static void print_quoted(FILE *out, const char *text)
{
    (void)fputc('"', out);
    for (const char *p = text; *p; p++) {
        if (*p == '"' || *p == '\\') {
            (void)fputc('\\', out);
        }
        (void)fputc(*p, out);
    }
    (void)fputs("\"\n", out);
}

static void print_value(FILE *out, const struct kvd_option *o, const struct kvd_config *config)
{
    /* the accessors serve writers too; nothing is written here */
    struct kvd_config *c = (struct kvd_config *)(uintptr_t)config;
    char number[KVD_OPTION_NUMBER_BYTES];
    if (o->type == KVD_OPTION_STR) {
        print_quoted(out, *kvd_option_str(o, c));
        return;
    }
    if (kvd_option_is_number(o)) {
        kvd_option_format(o, *kvd_option_u64(o, c), number);
    }
    (void)fprintf(out, "%s\n",
                  o->type == KVD_OPTION_ENUM   ? *kvd_option_str(o, c)
                  : o->type == KVD_OPTION_BOOL ? (*kvd_option_bool(o, c) ? "true" : "false")
                                               : number);
}

void kvd_config_print_values(const struct kvd_config *config, FILE *out)
{
    const char *group = "";
    size_t group_bytes = 0;
    for (size_t i = 0; i < KVD_OPTION_COUNT; i++) {
        const struct kvd_option *o = &kvd_options[i];
        const char *dot = strchr(o->name, '.');
        size_t n = dot ? (size_t)(dot - o->name) : 0;
        if (n && (n != group_bytes || strncmp(group, o->name, n) != 0)) {
            (void)fprintf(out, "%.*s:\n", (int)n, o->name);
        }
        group = o->name;
        group_bytes = n;
        (void)fprintf(out, "%s%s: ", n ? "  " : "", n ? dot + 1 : o->name);
        print_value(out, o, config);
    }
}
