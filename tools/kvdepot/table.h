/*
 * A table of text with columns as wide as they need to be. Cells may hold names that users chose:
 * control characters become '?', so that a name cannot steer a terminal.
 */
#ifndef TOOLS_KVDEPOT_TABLE_H
#define TOOLS_KVDEPOT_TABLE_H

#include <stdio.h>

struct kvd_table;

/* One letter a column: 'l' left, 'r' right. -ENOMEM. */
int kvd_table_create(const char *columns, struct kvd_table **ret_table);
void kvd_table_destroy(struct kvd_table **table);

/* Appends the next cell, row after row. -ENOMEM; a table that lost a cell prints nothing and says
 * so. */
int kvd_table_cell(struct kvd_table *table, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Prints all rows, each after `indent` blanks, no blanks at the end of a line. An unfinished last
 * row is filled with empty cells. -ENOMEM when a cell was lost. */
int kvd_table_print(struct kvd_table *table, int indent, FILE *out);

#endif
