/* Blocks, and whole tenants and spaces, that nobody may find any more. */
#include <stdlib.h>
#include <string.h>

#include "client/src/internal.h"

enum { SPACE_TEXT_MAX = KVD_MODEL_NAME_MAX + 1 + 2 * KVD_DIGEST_BYTES };

/* ---- drop */

static int drop_locked(struct kvd_space *s, const struct kvd_prompt *prompt, uint32_t first,
                       uint32_t n, struct kvd_call **ret)
{
    Kvd__Wire__Prompt msg;
    Kvd__Wire__Range tokens;
    Kvd__Wire__DropRequest body = KVD__WIRE__DROP_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    int err = kvd_prompt_call_locked(s, KVD_CALL_DROP, prompt, (first + n) * s->desc.block_tokens,
                                     0, true, s->client->io_ns, &msg, &tokens, ret);
    if (err) {
        return err;
    }
    body.prompt = &msg;
    body.first_block = first;
    body.n_blocks = n;
    req.body_case = KVD__WIRE__REQUEST__BODY_DROP;
    req.drop = &body;
    return kvd_call_run_locked(ret, &req);
}

int kvd_drop(struct kvd_space *space, const struct kvd_prompt *prompt, uint32_t first, uint32_t n,
             uint32_t *ret_dropped)
{
    KVD_MAGIC_CHECK(space, KVD_SPACE_MAGIC);
    struct kvd_client *c = space->client;
    struct kvd_call *call = NULL;
    int err = kvd_prompt_check(space, prompt);
    if (err) {
        return err;
    }
    uint32_t have = prompt->n_tokens / space->desc.block_tokens;
    if (n < 1 || first >= have || n > have - first) {
        return kvd_client_fail(c, KVD_BAD_REQUEST,
                               "drop: %u blocks from block %u on, the prompt has %u", n, first,
                               have);
    }
    kvd_client_lock(c);
    err = drop_locked(space, prompt, first, n, &call);
    uint32_t dropped = err ? 0 : call->count[0];
    if (!err && dropped > n) {
        err = kvd_client_fail(c, KVD_INTERNAL, "the daemon dropped more blocks than were named");
    }
    kvd_call_free_locked(&call);
    kvd_client_unlock(c);
    if (!err && ret_dropped) {
        *ret_dropped = dropped;
    }
    return err;
}

/* ---- purge */

static int scope_check(struct kvd_client *c, const struct kvd_purge_scope *scope)
{
    bool some = scope->tenant || scope->space;
    if (scope->everything == some) {
        return kvd_client_fail(c, KVD_BAD_REQUEST,
                               "purge: either everything, or a tenant, a space, or both");
    }
    if (scope->tenant && strlen(scope->tenant) > KVD_TENANT_NAME_MAX) {
        return kvd_client_fail(c, KVD_BAD_REQUEST, "purge: the tenant has %zu bytes, may have %d",
                               strlen(scope->tenant), KVD_TENANT_NAME_MAX);
    }
    size_t n = scope->space ? strlen(scope->space) : 1;
    if (n < 1 || n > SPACE_TEXT_MAX) {
        return kvd_client_fail(c, KVD_BAD_REQUEST,
                               "purge: the space has %zu bytes, may have 1 to "
                               "%d",
                               n, SPACE_TEXT_MAX);
    }
    return 0;
}

int kvd_purge(struct kvd_client *client, const struct kvd_purge_scope *scope,
              struct kvd_purge_result *ret_result)
{
    KVD_MAGIC_CHECK(client, KVD_CLIENT_MAGIC);
    Kvd__Wire__PurgeRequest body = KVD__WIRE__PURGE_REQUEST__INIT;
    Kvd__Wire__Request req = KVD__WIRE__REQUEST__INIT;
    struct kvd_call *call = NULL;
    int err = scope_check(client, scope);
    if (err) {
        return err;
    }
    body.all = scope->everything;
    body.has_tenant = scope->tenant != NULL;
    body.tenant_name.data = (uint8_t *)scope->tenant;
    body.tenant_name.len = scope->tenant ? strlen(scope->tenant) : 0;
    body.space = (char *)(scope->space ? scope->space : "");
    req.body_case = KVD__WIRE__REQUEST__BODY_PURGE;
    req.purge = &body;
    kvd_client_lock(client);
    err = kvd_simple_call_locked(client, KVD_CALL_PURGE, client->io_ns, &req, &call);
    if (!err && ret_result) {
        *ret_result = call->purged;
    }
    kvd_call_free_locked(&call);
    kvd_client_unlock(client);
    return err;
}
