#include "cachesvc/core/pins.h"

#include <stdlib.h>

#include "proto/base/assert.h"

enum { SIZE_FIRST = 64 };

static uint32_t row_home(const struct pin_table *table, const void *slot)
{
    /* slots lie at equal distances: the product's high bits depend on all of the address */
    return (uint32_t)(((uint64_t)(uintptr_t)slot * UINT64_C(0x9e3779b97f4a7c15)) >> 32) &
           (table->size - 1);
}

/* The slot's row, or the empty one where it would go. */
static uint32_t row_find(const struct pin_table *table, const void *slot)
{
    uint32_t at = row_home(table, slot);
    while (table->rows[at].slot && table->rows[at].slot != slot) {
        at = (at + 1) & (table->size - 1);
    }
    return at;
}

void pin_table_fini(struct pin_table *table)
{
    free(table->rows);
    *table = (struct pin_table){0};
}

bool pin_table_reserve(struct pin_table *table)
{
    if (2 * (table->used + 1) <= table->size) {
        return true;
    }
    struct pin_table larger = {.size = table->size ? 2 * table->size : SIZE_FIRST,
                               .used = table->used};
    larger.rows = calloc(larger.size, sizeof(*larger.rows));
    if (!larger.rows) {
        return false;
    }
    for (uint32_t i = 0; i < table->size; i++) {
        if (table->rows[i].slot) {
            larger.rows[row_find(&larger, table->rows[i].slot)] = table->rows[i];
        }
    }
    free(table->rows);
    *table = larger;
    return true;
}

bool pin_table_add(struct pin_table *table, const void *slot)
{
    KVD_ASSERT(2 * table->used < table->size);
    struct pin_row *row = &table->rows[row_find(table, slot)];
    table->used += !row->slot;
    row->slot = slot;
    return row->pins++ == 0;
}

/* Rows behind an emptied one move up, so that searches need no marks of what was there. */
static void row_empty(struct pin_table *table, uint32_t hole)
{
    const uint32_t mask = table->size - 1;
    for (uint32_t at = (hole + 1) & mask; table->rows[at].slot; at = (at + 1) & mask) {
        uint32_t home = row_home(table, table->rows[at].slot);
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            table->rows[hole] = table->rows[at];
            hole = at;
        }
    }
    table->rows[hole] = (struct pin_row){0};
    table->used--;
}

bool pin_table_remove(struct pin_table *table, const void *slot)
{
    KVD_ASSERT(table->rows);
    const uint32_t at = row_find(table, slot);
    KVD_ASSERT(table->rows[at].pins > 0);
    const bool last = --table->rows[at].pins == 0;
    if (last) {
        row_empty(table, at);
    }
    return last;
}

bool pin_table_has(const struct pin_table *table, const void *slot)
{
    return table->rows && table->rows[row_find(table, slot)].slot;
}
