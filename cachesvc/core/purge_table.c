#include "cachesvc/core/purge_table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/format/record.h"

enum { SLOTS_MIN = 64 };

/* Where `what` is, or the free slot where it would be. */
static uint32_t *slot_of(const struct purge_table *t, const struct kvd_purge_what *what)
{
    uint32_t at = (uint32_t)kvd_sum(what, sizeof(*what)) & t->mask;
    while (t->slots[at] && memcmp(&t->rows[t->slots[at] - 1].what, what, sizeof(*what)) != 0) {
        at = (at + 1) & t->mask;
    }
    return &t->slots[at];
}

uint64_t purge_table_cut(const struct purge_table *t, const struct kvd_purge_what *what)
{
    uint32_t i = t->n ? *slot_of(t, what) : 0;
    return i ? t->rows[i - 1].cut : 0;
}

static uint64_t cut_of(const struct purge_table *t, enum kvd_purge_scope scope,
                       const struct kvd_digest *space, const struct kvd_digest *tenant)
{
    struct kvd_purge_what what = kvd_purge_what_of(scope, space, tenant, NULL, 0);
    return purge_table_cut(t, &what);
}

uint64_t purge_table_tenant_cut(const struct purge_table *t, const struct kvd_digest *space,
                                const struct kvd_digest *tenant)
{
    uint64_t cut = 0;
    for (enum kvd_purge_scope s = KVD_PURGE_ALL; s <= KVD_PURGE_TENANT_IN_SPACE; s++) {
        uint64_t c = cut_of(t, s, space, tenant);
        cut = c > cut ? c : cut;
    }
    return cut;
}

static uint32_t owner_of(const struct kvd_digest *space, const struct kvd_digest *tenant)
{
    const struct kvd_digest both[2] = {*space, *tenant};
    return (uint32_t)kvd_sum(both, sizeof(both)) % PURGE_OWNERS;
}

uint64_t purge_table_block_cut(const struct purge_table *t, const struct kvd_digest *space,
                               const struct kvd_digest *tenant)
{
    return t->block_cuts[owner_of(space, tenant)];
}

/* Takes rows in, one of each thing, and makes them findable. */
static void take(struct purge_table *t, const struct kvd_purge_row *rows, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t *slot = slot_of(t, &rows[i].what);
        if (*slot == 0) {
            t->rows[t->n] = rows[i];
            *slot = ++t->n;
        } else if (rows[i].cut > t->rows[*slot - 1].cut) {
            t->rows[*slot - 1] = rows[i];
        }
    }
}

/* Whether a row of a wider scope says as much. */
static bool is_covered(const struct purge_table *t, const struct kvd_purge_row *row)
{
    const struct kvd_purge_what *w = &row->what;
    uint64_t cut = 0;
    if (w->scope == KVD_PURGE_BLOCK) {
        cut = purge_table_tenant_cut(t, &w->space, &w->tenant);
    } else if (w->scope != KVD_PURGE_ALL) {
        cut = cut_of(t, KVD_PURGE_ALL, NULL, NULL);
    }
    if (w->scope == KVD_PURGE_TENANT_IN_SPACE) {
        uint64_t of_space = cut_of(t, KVD_PURGE_SPACE, &w->space, &w->tenant);
        uint64_t of_tenant = cut_of(t, KVD_PURGE_TENANT, &w->space, &w->tenant);
        cut = of_space > cut ? of_space : cut;
        cut = of_tenant > cut ? of_tenant : cut;
    }
    return cut >= row->cut;
}

static int by_cut(const void *a, const void *b)
{
    const struct kvd_purge_row *x = a;
    const struct kvd_purge_row *y = b;
    return x->cut < y->cut ? -1 : x->cut > y->cut;
}

/* Rows again, without those that others cover, in order of their cuts. */
static void settle(struct purge_table *t, struct kvd_purge_row *scratch)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        if (!is_covered(t, &t->rows[i])) {
            scratch[n++] = t->rows[i];
        }
    }
    if (n) {
        qsort(scratch, n, sizeof(*scratch), by_cut);
    }
    memset(t->slots, 0, (t->mask + 1) * sizeof(*t->slots));
    t->n = 0;
    take(t, scratch, n);
    for (uint32_t i = 0; i < t->n; i++) { /* cuts ascend */
        const struct kvd_purge_what *w = &t->rows[i].what;
        if (w->scope == KVD_PURGE_BLOCK) {
            t->block_cuts[owner_of(&w->space, &w->tenant)] = t->rows[i].cut;
        }
        t->newest = t->rows[i].cut;
    }
}

int purge_table_make(const struct kvd_purge_row *a, uint32_t n_a, const struct kvd_purge_row *b,
                     uint32_t n_b, struct purge_table *ret)
{
    struct purge_table t = {.mask = SLOTS_MIN - 1};
    uint64_t n = (uint64_t)n_a + n_b;
    while (t.mask < 2 * n) {
        t.mask = 2 * t.mask + 1;
    }
    struct kvd_purge_row *scratch = malloc((n + 1) * sizeof(*scratch));
    t.rows = malloc((n + 1) * sizeof(*t.rows));
    t.slots = calloc(t.mask + 1, sizeof(*t.slots));
    if (!scratch || !t.rows || !t.slots) {
        free(scratch);
        purge_table_fini(&t);
        return -ENOMEM;
    }
    take(&t, a, n_a);
    take(&t, b, n_b);
    settle(&t, scratch);
    free(scratch);
    *ret = t;
    return 0;
}

void purge_table_fini(struct purge_table *t)
{
    free(t->rows);
    free(t->slots);
    *t = (struct purge_table){0};
}
