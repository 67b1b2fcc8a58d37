/*
 * Sizes of the pool's pages and slots; a function of the cap alone, so that a later run with the
 * same cap finds the same.
 *
 * The cap is divided into at least 8 pages of equal size, of 64 MiB at most. The classes are those
 * slot sizes that divide a page without rest into 1, 2, 3, … slots, each number an eighth more than
 * the one before (one more while that is less). So a record wastes an eighth at most, where eight
 * of it fit a page, and pages have no unused tail.
 */
#include "cachesvc/tier/pool_internal.h"
#include "proto/base/bytes.h"

static uint64_t data_offset(const struct pool_layout *l, uint64_t slots)
{
    return kvd_round_up(POOL_GENERATIONS_OFFSET + sizeof(uint32_t) * (uint64_t)l->max_slots +
                            sizeof(struct pool_slot_header) * slots,
                        POOL_UNIT_BYTES);
}

/* Largest slot of which `slots` fit a page; 0 when none do. */
static uint32_t size_of(const struct pool_layout *l, uint32_t slots)
{
    const uint64_t used = data_offset(l, slots);
    if (used >= l->page_bytes) {
        return 0;
    }
    return (uint32_t)((l->page_bytes - used) / slots / POOL_UNIT_BYTES * POOL_UNIT_BYTES);
}

/* Most slots of that size that fit, given that `slots` do. */
static uint32_t count_of(const struct pool_layout *l, uint32_t slot_bytes, uint32_t slots)
{
    while (data_offset(l, slots + 1) + (slots + 1) * (uint64_t)slot_bytes <= l->page_bytes) {
        slots++;
    }
    return slots;
}

static void classes_init(struct pool_layout *l)
{
    struct pool_shape down[POOL_CLASSES_MAX];
    uint32_t n = 0;
    for (uint32_t slots = 1; n < POOL_CLASSES_MAX;) {
        const uint32_t size = size_of(l, slots);
        if (size == 0) {
            break;
        }
        if (n == 0 || size < down[n - 1].slot_bytes) {
            const uint32_t count = count_of(l, size, slots);
            down[n++] = (struct pool_shape){size, count, (uint32_t)data_offset(l, count)};
        }
        const uint32_t more = slots * 9 / 8;
        slots = more > slots + 1 ? more : slots + 1;
    }
    l->classes = n;
    for (uint32_t i = 0; i < n; i++) {
        l->shape[i] = down[n - 1 - i];
    }
}

void pool_layout_init(struct pool_layout *l, uint64_t cap_bytes)
{
    KVD_ASSERT(cap_bytes >= POOL_CAP_MIN_BYTES);
    const uint64_t room = cap_bytes - POOL_UNIT_BYTES;
    const uint64_t pages = (room + POOL_PAGE_MAX_BYTES - 1) / POOL_PAGE_MAX_BYTES;
    *l = (struct pool_layout){.pages = POOL_PAGES_MIN};
    if (pages > POOL_PAGES_MIN) {
        l->pages = (uint32_t)pages;
    }
    l->page_bytes = (uint32_t)(room / l->pages / POOL_UNIT_BYTES * POOL_UNIT_BYTES);
    l->file_bytes = POOL_UNIT_BYTES + (uint64_t)l->pages * l->page_bytes;
    l->max_slots = (uint32_t)kvd_round_up(l->page_bytes / POOL_UNIT_BYTES, 2);
    while (1u << l->id_shift < l->max_slots) {
        l->id_shift++;
    }
    classes_init(l);
}

int pool_layout_class(const struct pool_layout *l, uint64_t extent_bytes)
{
    for (uint32_t i = 0; i < l->classes; i++) {
        if (l->shape[i].slot_bytes >= extent_bytes) {
            return (int)i;
        }
    }
    return -1;
}
