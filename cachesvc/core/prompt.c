/* Prompts: checked once, kept with their keys. */
#include <errno.h>
#include <stdlib.h>

#include "cachesvc/core/service_private.h"
#include "proto/base/assert.h"
#include "proto/base/protect.h"

static int prompt_check(struct kvd_session *session, const struct kvd_prompt_ref *ref,
                        uint32_t n_blocks, struct kvd_diag *diag, struct session_space **ret_space,
                        const struct kvd_scenario **ret_scenario)
{
    struct session_space *sp = session_space_of(session, ref->space_handle);
    if (!sp) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "space handle %u isn't open in this connection",
                        ref->space_handle);
    }
    const struct kvd_space_desc *d = &sp->space->desc;
    if (ref->rank >= d->ranks) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "rank %u: the space has %u", ref->rank, d->ranks);
    }
    if (ref->tenant_bytes > KVD_TENANT_NAME_MAX) {
        return kvd_fail(diag, -KVD_E_TOO_LONG, "tenant name of %u bytes: at most %d are allowed",
                        ref->tenant_bytes, KVD_TENANT_NAME_MAX);
    }
    if (ref->n_tokens > KVD_WIRE_PROMPT_TOKENS_MAX) {
        return kvd_fail(diag, -KVD_E_TOO_LONG, "prompt of %u tokens: at most %d are allowed",
                        ref->n_tokens, KVD_WIRE_PROMPT_TOKENS_MAX);
    }
    if ((uint64_t)n_blocks * d->block_tokens > ref->n_tokens) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST,
                        "%u blocks of %u tokens don't fit in a prompt of %u tokens", n_blocks,
                        d->block_tokens, ref->n_tokens);
    }
    const struct kvd_scenario *sc = kvd_scenario_by_name(session->service->config->scenarios_table,
                                                         ref->scenario, strlen(ref->scenario));
    if (!sc) {
        return kvd_fail(diag, -KVD_E_UNKNOWN_SCENARIO,
                        "scenario '%.64s' is not configured; see `kvdepot status` for the names",
                        ref->scenario);
    }
    *ret_space = sp;
    *ret_scenario = sc;
    return 0;
}

int prompt_keep(struct kvd_session *session, const struct kvd_prompt_ref *ref, uint32_t n_blocks,
                struct kvd_diag *diag, struct kept_prompt *ret)
{
    struct session_space *sp = NULL;
    struct kept_prompt p = {.n_blocks = n_blocks,
                            .rank = KVD_PROTECT(RANK_IN_ADDRESS) ? (uint16_t)ref->rank : 0};
    int err = prompt_check(session, ref, n_blocks, diag, &sp, &p.scenario);
    if (err) {
        return err;
    }
    p.space = sp->space;
    uint32_t bt = sp->space->desc.block_tokens;
    p.keys = malloc((n_blocks + 1) * sizeof(*p.keys));
    p.tokens = malloc(((size_t)n_blocks * bt + 1) * sizeof(*p.tokens));
    if (!p.keys || !p.tokens) {
        prompt_fini(&p);
        return kvd_fail(diag, -ENOMEM, "out of memory");
    }
    if (n_blocks > 0) {
        memcpy(p.tokens, ref->tokens, (size_t)n_blocks * bt * sizeof(*p.tokens));
    }
    if (ref->tenant_bytes > 0) {
        memcpy(p.tenant_name, ref->tenant, ref->tenant_bytes);
    }
    kvd_tenant_digest(ref->tenant, ref->tenant_bytes, &p.tenant);
    uint64_t seed = session->service->identity.seed;
    kvd_key_root(seed, &p.space->digest, &p.tenant, ref->extra, &p.root);
    kvd_key_chain(seed, &p.root, p.tokens, bt, n_blocks, p.keys);
    purge_look(session->service, &p);
    *ret = p;
    return 0;
}

void prompt_fini(struct kept_prompt *prompt)
{
    free(prompt->keys);
    free(prompt->tokens);
    prompt->keys = NULL;
    prompt->tokens = NULL;
}

struct kvd_addr prompt_addr(const struct kept_prompt *prompt, uint32_t index)
{
    KVD_ASSERT(index < prompt->n_blocks);
    return (struct kvd_addr){.key = prompt->keys[index], .rank = prompt->rank};
}

void prompt_index_id(const struct kept_prompt *prompt, uint32_t index, struct kvd_index_id *ret)
{
    kvd_group_of(prompt->keys, index, &ret->group);
    ret->index = index;
    ret->key = prompt->keys[index];
    ret->rank = prompt->rank;
}

void prompt_who(const struct kept_prompt *prompt, struct kvd_count_who *ret)
{
    *ret = (struct kvd_count_who){.scenario = prompt->scenario->name,
                                  .space = prompt->space->digest,
                                  .space_name = prompt->space->model,
                                  .tenant = prompt->tenant,
                                  .tenant_name = prompt->tenant_name};
}

struct kvd_record_expect prompt_expect(const struct kept_prompt *prompt, uint32_t index)
{
    uint32_t bt = prompt->space->desc.block_tokens;
    return (struct kvd_record_expect){.space = &prompt->space->digest,
                                      .tenant = &prompt->tenant,
                                      .parent = index ? &prompt->keys[index - 1] : &prompt->root,
                                      .key = &prompt->keys[index],
                                      .tokens = prompt->tokens + (size_t)index * bt,
                                      .n_tokens = bt,
                                      .index = index,
                                      .rank = prompt->rank};
}
