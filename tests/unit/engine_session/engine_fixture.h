/* A folder with small generated models, and requests over made-up token ids. */
#ifndef TESTS_UNIT_ENGINE_SESSION_ENGINE_FIXTURE_H
#define TESTS_UNIT_ENGINE_SESSION_ENGINE_FIXTURE_H

#include <unistd.h>

#include "engine/session/session.h"
#include "kvd_test.h"
#include "proto/base/log.h"
#include "tiny_gguf.h"

struct folder {
    char path[64];
    char model[96];
    char other[96]; /* same geometry and name, other weights */
};

static inline void folder_make(struct folder *f, uint32_t context)
{
    (void)strcpy(f->path, "/tmp/kvd-engine-XXXXXX");
    assert_non_null(mkdtemp(f->path));
    (void)snprintf(f->model, sizeof(f->model), "%s/a.gguf", f->path);
    (void)snprintf(f->other, sizeof(f->other), "%s/b.gguf", f->path);
    const struct kvd_tiny_gguf_options a = {.seed = 1, .context = context};
    const struct kvd_tiny_gguf_options b = {.seed = 2, .context = context};
    assert_int_equal(kvd_tiny_gguf_write(f->model, &a), 0);
    assert_int_equal(kvd_tiny_gguf_write(f->other, &b), 0);
}

static inline void folder_remove(struct folder *f)
{
    char command[128];
    (void)snprintf(command, sizeof(command), "rm -rf %s", f->path);
    assert_int_equal(system(command), 0);
}

static inline struct kvd_engine *engine_with(const struct kvd_engine_options *options)
{
    struct kvd_engine *engine = NULL;
    struct kvd_diag diag = {0};
    if (kvd_engine_open(options, &diag, &engine)) {
        fail_msg("engine: %s", diag.text);
    }
    return engine;
}

/* Ids drawn from a seed, below the special tokens' place at neither end: any id is fine in a
 * prompt. */
static inline void ids_make(uint32_t *ids, uint32_t n, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        ids[i] = (uint32_t)(seed >> 33) % KVD_TINY_VOCAB;
    }
}

/* Runs a greedy request that goes on to max_tokens, with digests. */
static inline struct kvd_request greedy(const uint32_t *ids, uint32_t n, uint32_t max_tokens)
{
    return (struct kvd_request){.prompt = ids,
                                .n_prompt = n,
                                .max_tokens = max_tokens,
                                .sampling = {.top_p = 1},
                                .scenario = "chat",
                                .ignore_end = true,
                                .digests = true};
}

static inline struct kvd_request_report
run_ok(struct kvd_engine *engine, const struct kvd_request *request, struct kvd_tokens *tokens)
{
    struct kvd_request_report report;
    struct kvd_diag diag = {0};
    if (kvd_engine_run(engine, request, NULL, NULL, tokens, &diag, &report)) {
        fail_msg("run: %s", diag.text);
    }
    assert_int_equal(report.prompt_tokens, request->n_prompt);
    assert_int_equal(report.hit_tokens + report.computed_tokens, report.prompt_tokens);
    uint32_t by_tier = 0;
    for (int i = 0; i < KVD_REPORT_TIERS; i++) {
        by_tier += report.hit_by_tier[i];
    }
    assert_int_equal(by_tier, report.hit_tokens);
    assert_true(report.ttft_ns > 0 && report.total_ns >= report.ttft_ns);
    return report;
}

static inline void assert_same_bytes(const struct kvd_request_report *a,
                                     const struct kvd_request_report *b)
{
    assert_memory_equal(a->logits_sha256, b->logits_sha256, 32);
    assert_memory_equal(a->kv_sha256, b->kv_sha256, 32);
}

#endif
