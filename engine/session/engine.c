/* Model, graph, arena and cache together: opened once, shared by all requests. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/session/engine.h"
#include "proto/base/assert.h"

static int make_arena(struct kvd_engine *engine, const struct kvd_engine_options *options,
                      struct kvd_diag *diag)
{
    const uint64_t page = kvd_graph_page_bytes(engine->graph);
    const uint32_t context = engine->model->params.context;
    const uint64_t whole =
        ((uint64_t)context + KVD_ENGINE_BLOCK_TOKENS - 1) / KVD_ENGINE_BLOCK_TOKENS;
    uint64_t pages = options->arena_bytes ? options->arena_bytes / page : whole;
    if (pages == 0) {
        return kvd_fail(diag, -KVD_E_CONFIG,
                        "the arena of %llu bytes holds no page; one page of this model has %llu",
                        (unsigned long long)options->arena_bytes, (unsigned long long)page);
    }
    pages = pages < whole ? pages : whole; /* one request at a time uses no more */
    const struct kvd_arena_options arena = {
        .page_bytes = page, .pages = (uint32_t)pages, .shuffle_seed = options->shuffle_seed};
    const int rc = kvd_arena_create(&arena, &engine->arena);
    if (rc) {
        return kvd_fail(diag, rc, "no memory for %llu KV pages of %llu bytes: %s",
                        (unsigned long long)pages, (unsigned long long)page, kvd_strerror(rc));
    }
    const uint64_t room = pages * KVD_ENGINE_BLOCK_TOKENS;
    engine->context = room < context ? (uint32_t)room : context;
    return 0;
}

static int open_parts(struct kvd_engine *engine, const struct kvd_engine_options *options,
                      struct kvd_diag *diag)
{
    int rc = kvd_model_open(options->model_path, options->fingerprint_cache, diag, &engine->model);
    if (rc) {
        return rc;
    }
    const struct kvd_graph_options graph = {.threads = options->threads ? options->threads : 1,
                                            .block_tokens = KVD_ENGINE_BLOCK_TOKENS,
                                            .kernels = options->kernels};
    rc = kvd_graph_create(engine->model, &graph, diag, &engine->graph);
    /* the graph has copied the weights: were they those that the space will be named by? */
    rc = rc ? rc : kvd_model_check_file(engine->model, diag);
    rc = rc ? rc : make_arena(engine, options, diag);
    if (rc) {
        return rc;
    }
    const uint32_t vocab = engine->model->params.vocab;
    engine->name = strdup(options->model_name ? options->model_name : engine->model->name);
    engine->logits = calloc(vocab, sizeof(float));
    engine->scratch = calloc(vocab, 8);
    if (!engine->name || !engine->logits || !engine->scratch) {
        return kvd_fail(diag, -ENOMEM, "no memory for the engine's buffers");
    }
    rc = kvd_cache_open(&engine->cache, options->client, engine->model, engine->name, options->log,
                        diag);
    if (rc) {
        return rc;
    }
    /* a page is a record's payload; both sizes come from the same geometry */
    KVD_ASSERT(!engine->cache.space ||
               kvd_space_block_bytes(engine->cache.space) == kvd_graph_page_bytes(engine->graph));
    return 0;
}

int kvd_engine_open(const struct kvd_engine_options *options, struct kvd_diag *diag,
                    struct kvd_engine **ret)
{
    struct kvd_engine *engine = calloc(1, sizeof(*engine));
    if (!engine) {
        return kvd_fail(diag, -ENOMEM, "no memory for the engine");
    }
    KVD_MAGIC_SET(engine, KVD_ENGINE_MAGIC);
    engine->log = options->log;
    const int rc = open_parts(engine, options, diag);
    if (rc) {
        kvd_engine_close(&engine);
        return rc;
    }
    *ret = engine;
    return 0;
}

void kvd_engine_close(struct kvd_engine **engine)
{
    if (!engine || !*engine) {
        return;
    }
    struct kvd_engine *e = *engine;
    KVD_MAGIC_CHECK(e, KVD_ENGINE_MAGIC);
    free(e->scratch);
    free(e->logits);
    free(e->name);
    kvd_arena_destroy(&e->arena);
    kvd_graph_destroy(&e->graph);
    kvd_model_close(&e->model);
    KVD_MAGIC_CLEAR(e);
    free(e);
    *engine = NULL;
}

const struct kvd_model *kvd_engine_model(const struct kvd_engine *engine)
{
    return engine->model;
}

const char *kvd_engine_model_name(const struct kvd_engine *engine)
{
    return engine->name;
}

const char *kvd_engine_kernels(const struct kvd_engine *engine)
{
    return kvd_graph_kernels(engine->graph);
}

uint32_t kvd_engine_context(const struct kvd_engine *engine)
{
    return engine->context;
}
