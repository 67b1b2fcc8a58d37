/* Last use: what retention counts from. Kept by the day, so that a busy block costs the index one
 * write a day. */
#include <errno.h>
#include <stdlib.h>

#include "cachesvc/core/service_private.h"
#include "proto/base/assert.h"

void touch_block(struct kvd_service *service, const struct kept_prompt *prompt, uint32_t index,
                 struct use_seen *seen, struct kvd_slot *slot)
{
    uint32_t today = kvd_day_of(kvd_wall_now_s(&service->wall));
    uint16_t scenario = class_longer(service, seen->scenario, prompt->scenario);
    if (slot) {
        kvd_pool_touch(service->pool, slot, scenario, today);
    }
    if (seen->last_use_day >= today && seen->scenario == scenario) {
        return;
    }
    struct kvd_index_change change = {.kind = KVD_INDEX_TOUCH,
                                      .entry = {.last_use_day = today, .scenario = scenario}};
    prompt_index_id(prompt, index, &change.id);
    if (kvd_index_submit(service->index, &change, 1, NULL, NULL) == 0) {
        *seen = (struct use_seen){today, scenario};
    }
}

/* Where block `index` is stored and wanted: touches it. */
static void touch_stored(struct kvd_service *service, const struct kept_prompt *prompt,
                         uint32_t index, const struct kvd_index_entry *entry, uint8_t found)
{
    struct kvd_addr addr = prompt_addr(prompt, index);
    struct kvd_slot *slot = kvd_pool_pin(service->pool, &addr);
    struct use_seen seen = {0, 0};
    bool stored = false;
    if (slot) {
        struct kvd_slot_meta meta;
        kvd_pool_meta(service->pool, slot, &meta);
        seen = (struct use_seen){meta.last_use_day, meta.scenario};
        stored = !purge_hides(service, prompt, index, meta.put_id) &&
                 !class_expired(service, expiry_clock(service), meta.scenario, meta.last_use_day,
                                meta.created_day);
    } else if (found == KVD_INDEX_FOUND) {
        enum kvd_miss_reason why;
        seen = (struct use_seen){entry->last_use_day, entry->scenario};
        stored = entry_usable(service, expiry_clock(service), prompt, index, entry, &why);
    }
    if (stored) {
        touch_block(service, prompt, index, &seen, slot);
    }
    if (slot) {
        kvd_pool_unpin(service->pool, slot);
    }
}

int kvd_service_touch(struct kvd_session *session, const struct kvd_prompt_ref *ref, uint32_t n,
                      struct kvd_diag *diag)
{
    KVD_MAGIC_CHECK(session, SESSION_MAGIC);
    struct kept_prompt prompt;
    int err = prompt_keep(session, ref, n, diag, &prompt);
    if (err) {
        return err;
    }
    struct kvd_index_entry *entries = calloc(n + 1, sizeof(*entries));
    uint8_t *found = calloc(n + 1, 1);
    err = !entries || !found ? kvd_fail(diag, -ENOMEM, "out of memory") : 0;
    if (!err &&
        kvd_index_lookup(session->service->index, prompt.keys, 0, n, prompt.rank, entries, found)) {
        memset(found, KVD_INDEX_ABSENT, n); /* what is in dram is touched all the same */
    }
    for (uint32_t i = err ? 0 : n; i-- > 0;) { /* tail first */
        touch_stored(session->service, &prompt, i, &entries[i], found[i]);
    }
    free(entries);
    free(found);
    prompt_fini(&prompt);
    return err;
}
