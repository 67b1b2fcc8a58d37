/*
 * Reports on identity: the seed of the store's keys, and what is stored under one address. Asking
 * is not using: nothing is counted, touched or promoted.
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <sodium.h>
#include <stdlib.h>

#include "cachesvc/core/report_private.h"
#include "cachesvc/core/service_private.h"

json_t *report_identity(struct kvd_service *service)
{
    char store[2 * KVD_STORE_ID_BYTES + 1];
    char seed[20];
    kvd_hex(service->identity.store.b, KVD_STORE_ID_BYTES, store);
    (void)snprintf(seed, sizeof(seed), "%016" PRIx64, service->identity.seed);
    return json_pack("{s:i,s:s,s:s}", "schema", REPORT_SCHEMA, "store", store, "seed", seed);
}

/* A block by all that names it. As a prompt of one block it can be asked about like any other. */
struct named_block {
    struct kvd_index_id id;
    struct service_space space;
    struct kept_prompt prompt;
};

static bool unhex(const char *hex, uint8_t *ret, size_t bytes)
{
    size_t n = 0;
    return sodium_hex2bin(ret, bytes, hex, strlen(hex), NULL, &n, NULL) == 0 && n == bytes;
}

/* "KEY/RANK/INDEX/GROUP/SPACE/TENANT" */
static int address_parse(const char *text, struct kvd_diag *diag, struct named_block *ret)
{
    char key[KVD_KEY_HEX];
    char group[2 * KVD_GROUP_ID_BYTES + 1];
    char space[KVD_DIGEST_HEX];
    char tenant[KVD_DIGEST_HEX];
    unsigned rank = 0;
    unsigned index = 0;
    int end = 0;
    if (sscanf(text, "%32[0-9a-f]/%5u/%9u/%24[0-9a-f]/%64[0-9a-f]/%64[0-9a-f]%n", key, &rank,
               &index, group, space, tenant, &end) != 6 ||
        text[end] || rank > UINT16_MAX || !unhex(key, ret->id.key.b, KVD_KEY_BYTES) ||
        !unhex(group, ret->id.group.b, KVD_GROUP_ID_BYTES) ||
        !unhex(space, ret->space.digest.b, KVD_DIGEST_BYTES) ||
        !unhex(tenant, ret->prompt.tenant.b, KVD_DIGEST_BYTES)) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST,
                        "'%.100s' names no block: KEY/RANK/INDEX/GROUP/SPACE/TENANT is wanted, all "
                        "but rank and index in hex",
                        text);
    }
    ret->id.rank = ret->prompt.rank = (uint16_t)rank;
    ret->id.index = index;
    ret->prompt.space = &ret->space;
    ret->prompt.keys = &ret->id.key;
    ret->prompt.n_blocks = 1;
    return 0;
}

static const char *scenario_name(struct kvd_service *service, uint16_t id)
{
    const struct kvd_scenario *sc = kvd_scenario_by_id(service->config->scenarios_table, id);
    return sc ? sc->name : "(not configured)";
}

static json_t *use_json(struct kvd_service *service, uint16_t scenario, uint32_t last_use_day,
                        uint64_t put_id)
{
    return json_pack("{s:s,s:I,s:I}", "scenario", scenario_name(service, scenario), "last_use_day",
                     (json_int_t)last_use_day, "put_id", (json_int_t)put_id);
}

/* NULL: not resident, or not wanted any more; then *ret_why may say so. */
static json_t *dram_copy(struct kvd_service *service, const struct named_block *block,
                         enum kvd_miss_reason *ret_why)
{
    const struct kvd_addr addr = prompt_addr(&block->prompt, 0);
    struct kvd_slot *slot = kvd_pool_pin(service->pool, &addr);
    if (!slot) {
        return NULL;
    }
    struct kvd_slot_meta m;
    kvd_pool_meta(service->pool, slot, &m);
    kvd_pool_unpin(service->pool, slot);
    if (purge_hides(service, &block->prompt, 0, m.put_id)) {
        *ret_why = KVD_MISS_PURGED;
        return NULL;
    }
    if (class_expired(service, expiry_clock(service), m.scenario, m.last_use_day, m.created_day)) {
        *ret_why = KVD_MISS_EXPIRED;
        return NULL;
    }
    json_t *row = use_json(service, m.scenario, m.last_use_day, m.put_id);
    (void)json_object_set_new(row, "bytes", json_integer((json_int_t)m.payload_bytes));
    return row;
}

static json_t *nvme_copy(struct kvd_service *service, const struct kvd_index_entry *e)
{
    json_t *row = use_json(service, e->scenario, e->last_use_day, e->put_id);
    (void)json_object_set_new(row, "segment", json_integer((json_int_t)e->segment));
    (void)json_object_set_new(row, "offset", json_integer((json_int_t)e->offset));
    (void)json_object_set_new(row, "bytes", json_integer((json_int_t)e->extent_bytes));
    return row;
}

int report_block(struct kvd_service *service, const char *address, struct kvd_diag *diag,
                 json_t **ret)
{
    struct named_block block = {0};
    struct kvd_index_entry e;
    uint8_t found = KVD_INDEX_ABSENT;
    enum kvd_miss_reason why = KVD_MISS_NEVER_SEEN;
    int err = address_parse(address, diag, &block);
    if (err) {
        return err;
    }
    purge_look(service, &block.prompt);
    err = kvd_index_lookup_id(service->index, &block.id, &e, &found);
    if (err) {
        return kvd_fail(diag, err, "the index can't be read: %s", kvd_strerror(err));
    }
    why = found == KVD_INDEX_SIBLING ? KVD_MISS_DIVERGED : why;
    json_t *dram = dram_copy(service, &block, &why);
    bool below = found == KVD_INDEX_FOUND &&
                 entry_usable(service, expiry_clock(service), &block.prompt, 0, &e, &why);
    json_t *nvme = below ? nvme_copy(service, &e) : NULL;
    const char *tier = kvd_tier_name(dram ? KVD_TIER_DRAM : nvme ? KVD_TIER_NVME : KVD_TIER_NONE);
    *ret = json_pack("{s:i,s:s,s:s?,s:o,s:o}", "schema", REPORT_SCHEMA, "tier", tier, "missing",
                     dram || nvme ? NULL : kvd_miss_reason_key(why), "dram",
                     dram ? dram : json_null(), "nvme", nvme ? nvme : json_null());
    return 0;
}
