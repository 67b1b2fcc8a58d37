/* A table of text: see table.h. */
#include "tools/kvdepot/table.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/cleanup.h"

struct kvd_table {
    int n_columns;
    size_t n_cells;
    size_t room; /* cells that `cells` has room for */
    char **cells;
    bool lost; /* a cell could not be stored */
    char columns[];
};

int kvd_table_create(const char *columns, struct kvd_table **ret_table)
{
    size_t n = strlen(columns);
    struct kvd_table *table = calloc(1, sizeof(*table) + n + 1);
    if (!table) {
        return -ENOMEM;
    }
    table->n_columns = (int)n;
    memcpy(table->columns, columns, n + 1);
    *ret_table = table;
    return 0;
}

void kvd_table_destroy(struct kvd_table **table)
{
    if (!table || !*table) {
        return;
    }
    for (size_t i = 0; i < (*table)->n_cells; i++) {
        free((*table)->cells[i]);
    }
    free((*table)->cells);
    free(*table);
    *table = NULL;
}

/* Also the control characters of two bytes, U+0080 to U+009F: some terminals obey them. */
static void text_sanitise(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c; c++) {
        if (*c < 0x20 || *c == 0x7f) {
            *c = '?';
        } else if (c[0] == 0xc2 && c[1] >= 0x80 && c[1] <= 0x9f) {
            c[0] = '?';
            c[1] = '?';
        }
    }
}

/* Characters of UTF-8 text: bytes that do not continue one. */
static int text_width(const char *text)
{
    int width = 0;
    for (const char *c = text; *c; c++) {
        width += ((unsigned char)*c & 0xc0) != 0x80;
    }
    return width;
}

static int table_grow(struct kvd_table *table)
{
    if (table->n_cells < table->room) {
        return 0;
    }
    size_t room = table->room ? table->room * 2 : 64;
    char **cells = realloc(table->cells, room * sizeof(*cells));
    if (!cells) {
        return -ENOMEM;
    }
    table->cells = cells;
    table->room = room;
    return 0;
}

int kvd_table_cell(struct kvd_table *table, const char *fmt, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, fmt);
    int length = vasprintf(&text, fmt, args);
    va_end(args);
    if (length < 0 || table_grow(table)) {
        if (length >= 0) {
            free(text);
        }
        table->lost = true;
        return -ENOMEM;
    }
    text_sanitise(text);
    table->cells[table->n_cells++] = text;
    return 0;
}

static int column_width(const struct kvd_table *table, int column)
{
    int width = 0;
    for (size_t i = (size_t)column; i < table->n_cells; i += (size_t)table->n_columns) {
        int cell = text_width(table->cells[i]);
        width = cell > width ? cell : width;
    }
    return width;
}

static void row_print(const struct kvd_table *table, size_t first, const int *widths, int indent,
                      FILE *out)
{
    int owed = indent; /* blanks not yet printed: those before nothing are never printed */
    for (int column = 0; column < table->n_columns && first + (size_t)column < table->n_cells;
         column++) {
        const char *text = table->cells[first + (size_t)column];
        int pad = widths[column] - text_width(text);
        bool right = table->columns[column] == 'r';
        owed += right ? pad : 0;
        if (*text) {
            (void)fprintf(out, "%*s%s", owed, "", text);
            owed = 0;
        }
        owed += (right ? 0 : pad) + 2;
    }
    (void)fputc('\n', out);
}

int kvd_table_print(struct kvd_table *table, int indent, FILE *out)
{
    KVD_AUTOFREE int *widths = calloc((size_t)table->n_columns + 1, sizeof(*widths));
    if (!widths || table->lost) {
        return -ENOMEM;
    }
    for (int column = 0; column < table->n_columns; column++) {
        widths[column] = column_width(table, column);
    }
    for (size_t first = 0; first < table->n_cells; first += (size_t)table->n_columns) {
        row_print(table, first, widths, indent, out);
    }
    return 0;
}
