/*
 * How often one client's leases pin each slot. The limits are about distinct slots: what a client
 * pins twice, through two leases, keeps no more of the pool from being evicted than what it pins
 * once.
 *
 * A hash table, open addressing, never more than half full. Not locked: the caller's lock.
 */
#ifndef CACHESVC_CORE_PINS_H
#define CACHESVC_CORE_PINS_H

#include <stdbool.h>
#include <stdint.h>

struct pin_row {
    const void *slot; /* NULL: empty */
    uint32_t pins;
};

struct pin_table {
    struct pin_row *rows; /* size of them, a power of 2; NULL before first use */
    uint32_t size;
    uint32_t used;
};

void pin_table_fini(struct pin_table *table);
/* Makes room for one slot more: false where there is no memory. */
bool pin_table_reserve(struct pin_table *table);
/* Counts a pin; returns whether it is the slot's first here. pin_table_reserve came before. */
bool pin_table_add(struct pin_table *table, const void *slot);
/* Takes a counted pin away; returns whether it was the slot's last here. */
bool pin_table_remove(struct pin_table *table, const void *slot);
bool pin_table_has(const struct pin_table *table, const void *slot);

#endif
