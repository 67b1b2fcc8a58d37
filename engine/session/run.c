/*
 * One request, from tokens to tokens.
 *
 *     check → prefix from the cache → rest of the prompt in chunks → (choose → tell → put what
 * became full → compute the chosen token)…
 *
 * Blocks are put after the first token was chosen and told, so that storing never delays it; from
 * then on each block as soon as the token that fills it was computed. Generated blocks are put as
 * they are: decode's KV is the same bytes as prefill's (numerics family KVD_NUMERICS). The token
 * chosen last is not computed, so a block that it would fill is never put.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "engine/session/engine.h"
#include "proto/base/assert.h"
#include "proto/base/clock.h"
#include "proto/base/protect.h"

struct run {
    struct kvd_engine *engine;
    const struct kvd_request *request;
    kvd_token_fn *on_token;
    void *user;
    struct kvd_tokens all; /* the prompt, then the answer */
    int *pages;            /* block table */
    uint32_t n_pages;
    uint32_t computed; /* positions whose KV is in the pages */
    uint32_t put_to;   /* blocks before it are in the cache, or were offered to it */
    bool put_ended;    /* the cache failed: later blocks would have no head there */
    uint32_t answer_max;
    uint64_t failures_before; /* of the cache */
    uint64_t started_ns;
    crypto_hash_sha256_state logits;
    struct kvd_request_report report;
};

static int check(struct run *r, struct kvd_diag *diag)
{
    const struct kvd_request *q = r->request;
    const uint32_t context = r->engine->context;
    if (q->n_prompt == 0) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "the prompt is empty");
    }
    if (q->n_prompt >= context) {
        return kvd_fail(
            diag, -KVD_E_TOO_LONG,
            "the prompt has %u tokens; the context holds %u, one of them for the answer",
            q->n_prompt, context);
    }
    if (q->max_tokens == 0) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "max_tokens is 0; ask for at least 1");
    }
    if (q->tenant && strlen(q->tenant) > KVD_TENANT_NAME_MAX) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST,
                        "the user's id has %zu bytes; at most %d are taken", strlen(q->tenant),
                        KVD_TENANT_NAME_MAX);
    }
    const uint32_t left = context - q->n_prompt;
    r->answer_max = q->max_tokens < left ? q->max_tokens : left;
    return 0;
}

static int take_prompt(struct run *r, struct kvd_diag *diag)
{
    const struct kvd_request *q = r->request;
    const uint32_t positions = q->n_prompt + r->answer_max;
    r->all.ids = malloc(positions * sizeof(uint32_t));
    r->pages = calloc(positions / KVD_ENGINE_BLOCK_TOKENS + 1, sizeof(int));
    if (!r->all.ids || !r->pages) {
        return kvd_fail(diag, -ENOMEM, "no memory for a request of %u tokens", positions);
    }
    r->all.cap = positions;
    memcpy(r->all.ids, q->prompt, q->n_prompt * sizeof(uint32_t));
    r->all.n = q->n_prompt;
    return 0;
}

/* Pages for positions [0, positions). */
static int need_pages(struct run *r, uint32_t positions, struct kvd_diag *diag)
{
    while (r->n_pages * KVD_ENGINE_BLOCK_TOKENS < positions) {
        const int page = kvd_arena_get(r->engine->arena);
        if (page < 0) {
            return kvd_fail(diag, page, "no KV page is free for position %u",
                            r->n_pages * KVD_ENGINE_BLOCK_TOKENS);
        }
        r->pages[r->n_pages++] = page;
    }
    return 0;
}

static struct kvd_kv_view view(const struct run *r)
{
    return (struct kvd_kv_view){.arena = r->engine->arena, .pages = r->pages};
}

static struct kvd_prompt prompt_of(const struct run *r, uint32_t n_tokens)
{
    return (struct kvd_prompt){.scenario = r->request->scenario ? r->request->scenario : "chat",
                               .tenant = r->request->tenant,
                               .tokens = r->all.ids,
                               .n_tokens = n_tokens};
}

static int load_prefix(struct run *r, struct kvd_diag *diag)
{
    const struct kvd_prompt prompt = prompt_of(r, r->request->n_prompt);
    const struct kvd_kv_view kv = view(r);
    struct kvd_cache_hit hit;
    r->failures_before = r->engine->cache.failures;
    const int rc = kvd_cache_load(&r->engine->cache, &prompt, &kv, diag, &hit);
    if (rc) {
        return rc;
    }
    _Static_assert((int)KVD_REPORT_TIERS == (int)KVD_IN_SHARED + 1, "one row a tier");
    for (int i = 0; i < KVD_REPORT_TIERS; i++) {
        r->report.hit_by_tier[i] = hit.by_tier[i] * KVD_ENGINE_BLOCK_TOKENS;
    }
    r->computed = hit.blocks * KVD_ENGINE_BLOCK_TOKENS;
    r->put_to = hit.blocks;
    r->report.hit_tokens = r->computed;
    return 0;
}

static bool cancelled(const struct run *r)
{
    return r->request->cancel && atomic_load_explicit(r->request->cancel, memory_order_relaxed);
}

/* Computes the next n tokens. logits: of the last one. */
static int forward(struct run *r, uint32_t n, bool logits, struct kvd_diag *diag)
{
    const int rc = need_pages(r, r->computed + n, diag);
    if (rc) {
        return rc;
    }
    const struct kvd_kv_view kv = view(r);
    const int err = kvd_graph_forward(r->engine->graph, &kv, r->computed, r->all.ids + r->computed,
                                      n, logits ? r->engine->logits : NULL, logits ? 1 : 0);
    if (err) {
        return kvd_fail(diag, err, "computing tokens %u to %u failed: %s", r->computed,
                        r->computed + n - 1, kvd_strerror(err));
    }
    r->computed += n;
    return 0;
}

/* The prompt from r->computed on, in chunks that end on block boundaries. */
static int prefill(struct run *r, struct kvd_diag *diag)
{
    const uint32_t n_prompt = r->request->n_prompt;
    while (r->computed < n_prompt && !cancelled(r)) {
        const uint32_t left = n_prompt - r->computed;
        const uint32_t n = left < KVD_GRAPH_CHUNK_MAX ? left : KVD_GRAPH_CHUNK_MAX;
        const int rc = forward(r, n, n == left, diag);
        if (rc) {
            return rc;
        }
    }
    return 0;
}

/* Puts the blocks that became full since the last time. */
static void put_full(struct run *r)
{
    const uint32_t full = r->computed / KVD_ENGINE_BLOCK_TOKENS;
    if (full <= r->put_to || r->put_ended) {
        return;
    }
    const struct kvd_prompt prompt = prompt_of(r, full * KVD_ENGINE_BLOCK_TOKENS);
    const struct kvd_kv_view kv = view(r);
    uint32_t stored = 0;
    const bool put =
        kvd_cache_put(&r->engine->cache, &prompt, &kv, r->put_to, full - r->put_to, &stored);
    r->put_ended = !put && KVD_PROTECT(PUT_ENDS);
    r->report.put_blocks += stored;
    r->put_to = full;
}

/* Chooses the token after the last one computed. */
static uint32_t choose(struct run *r)
{
    const struct kvd_engine *e = r->engine;
    const uint32_t vocab = e->model->params.vocab;
    const uint32_t id = kvd_sample(&r->request->sampling, r->all.n, e->logits, vocab, e->scratch);
    if (r->report.ttft_ns == 0) {
        r->report.ttft_ns = kvd_mono_ns() - r->started_ns;
    }
    if (r->request->digests) {
        (void)crypto_hash_sha256_update(&r->logits, (const uint8_t *)e->logits,
                                        vocab * sizeof(float));
    }
    return id;
}

static int generate(struct run *r, struct kvd_diag *diag)
{
    r->report.finish = KVD_FINISH_ABORTED;
    while (!cancelled(r)) {
        const uint32_t id = choose(r);
        if (!r->request->ignore_end && kvd_tokenizer_is_end(r->engine->model->tokenizer, id)) {
            r->report.finish = KVD_FINISH_STOP;
            return 0;
        }
        r->all.ids[r->all.n++] = id;
        r->report.answer_tokens++;
        if (r->on_token && r->on_token(id, r->user)) {
            return 0;
        }
        put_full(r);
        if (r->report.answer_tokens == r->answer_max) {
            r->report.finish = KVD_FINISH_LENGTH;
            return 0;
        }
        const int rc = forward(r, 1, true, diag);
        if (rc) {
            return rc;
        }
    }
    return 0;
}

static void digest_kv(struct run *r)
{
    crypto_hash_sha256_state state;
    (void)crypto_hash_sha256_init(&state);
    const uint64_t bytes = kvd_graph_page_bytes(r->engine->graph);
    const uint32_t whole = r->request->n_prompt / KVD_ENGINE_BLOCK_TOKENS;
    for (uint32_t i = 0; i < whole; i++) {
        (void)crypto_hash_sha256_update(&state, kvd_arena_page(r->engine->arena, r->pages[i]),
                                        bytes);
    }
    (void)crypto_hash_sha256_final(&state, r->report.kv_sha256);
}

static int run_all(struct run *r, struct kvd_diag *diag)
{
    int rc = check(r, diag);
    rc = rc ? rc : take_prompt(r, diag);
    rc = rc ? rc : need_pages(r, r->request->n_prompt, diag);
    rc = rc ? rc : load_prefix(r, diag);
    rc = rc ? rc : prefill(r, diag);
    rc = rc ? rc : generate(r, diag);
    put_full(r); /* also what a failed or given-up request computed: those blocks are right */
    if (rc) {
        return rc;
    }
    r->report.prompt_tokens = r->request->n_prompt;
    r->report.computed_tokens = r->request->n_prompt - r->report.hit_tokens;
    r->report.cache_failures = (uint32_t)(r->engine->cache.failures - r->failures_before);
    r->report.total_ns = kvd_mono_ns() - r->started_ns;
    if (r->request->digests) {
        (void)crypto_hash_sha256_final(&r->logits, r->report.logits_sha256);
        digest_kv(r);
    }
    return 0;
}

static int give_answer(const struct run *r, struct kvd_tokens *tokens)
{
    for (uint32_t i = r->request->n_prompt; tokens && i < r->all.n; i++) {
        const int rc = kvd_tokens_push(tokens, r->all.ids[i]);
        if (rc) {
            return rc;
        }
    }
    return 0;
}

int kvd_engine_run(struct kvd_engine *engine, const struct kvd_request *request,
                   kvd_token_fn *on_token, void *user, struct kvd_tokens *tokens,
                   struct kvd_diag *diag, struct kvd_request_report *ret_report)
{
    KVD_MAGIC_CHECK(engine, KVD_ENGINE_MAGIC);
    struct run r = {.engine = engine,
                    .request = request,
                    .on_token = on_token,
                    .user = user,
                    .started_ns = kvd_mono_ns()};
    (void)crypto_hash_sha256_init(&r.logits);
    int rc = run_all(&r, diag);
    rc = rc ? rc : give_answer(&r, tokens);
    for (uint32_t i = 0; i < r.n_pages; i++) {
        kvd_arena_put(engine->arena, r.pages[i]);
    }
    free(r.pages);
    kvd_tokens_fini(&r.all);
    if (rc == 0) {
        *ret_report = r.report;
    }
    return rc;
}
