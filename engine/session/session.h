/*
 * One request's timeline: prompt, prefix from the cache, the rest computed, answer sampled, every
 * full block put. Prefix first: match, load, compute what is left, put. Without a daemon it
 * computes everything and says so once. A session belongs to one thread; an engine's sessions run
 * one at a time.
 */
#ifndef ENGINE_SESSION_SESSION_H
#define ENGINE_SESSION_SESSION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/model/model.h"
#include "engine/sample/sample.h"
#include "proto/base/error.h"
#include "proto/base/log.h"

struct kvd_client;

/* Model, graph, arena and cache together: what all requests share. */
struct kvd_engine;

struct kvd_engine_options {
    const char *model_path;
    const char *fingerprint_cache; /* folder, or NULL */
    const char *model_name;        /* NULL: the model's own; part of the space's identity */
    uint32_t threads;
    const char *kernels;  /* as kvd_graph_options */
    uint64_t arena_bytes; /* 0: room for one whole context */
    uint64_t shuffle_seed;
    struct kvd_client *client; /* borrowed; NULL: no cache */
    struct kvd_log *log;
};

int kvd_engine_open(const struct kvd_engine_options *options, struct kvd_diag *diag,
                    struct kvd_engine **ret);
void kvd_engine_close(struct kvd_engine **engine);
const struct kvd_model *kvd_engine_model(const struct kvd_engine *engine);
const char *kvd_engine_model_name(const struct kvd_engine *engine);
const char *kvd_engine_kernels(const struct kvd_engine *engine);
uint32_t kvd_engine_context(const struct kvd_engine *engine);

struct kvd_request {
    const uint32_t *prompt;
    uint32_t n_prompt;
    uint32_t max_tokens; /* of the answer; cut to what the context leaves */
    struct kvd_sample_options sampling;
    const char *tenant;   /* NULL: default */
    const char *scenario; /* "chat" */
    bool ignore_end;      /* go on after end tokens (benchmarks) */
    bool digests;         /* fill in the report's SHA-256 sums: a pass over all logits and KV */
    const atomic_bool *cancel; /* looked at between chunks and tokens; true ends the request with
                                  finish "aborted". NULL: none */
};

/* Called for each token of the answer as it is chosen. Non-zero stops (finish "aborted"). */
typedef int kvd_token_fn(uint32_t id, void *user);

enum kvd_finish { KVD_FINISH_STOP, KVD_FINISH_LENGTH, KVD_FINISH_ABORTED };

enum { KVD_REPORT_TIERS = 6 };

struct kvd_request_report {
    uint32_t prompt_tokens;
    uint32_t hit_tokens;                    /* loaded and used */
    uint32_t computed_tokens;               /* of the prompt: prompt_tokens - hit_tokens */
    uint32_t hit_by_tier[KVD_REPORT_TIERS]; /* tokens, by enum kvd_tier of the client library */
    uint32_t answer_tokens;
    uint32_t put_blocks;
    uint32_t cache_failures; /* calls of the cache that failed; what they would have brought was
                                computed */
    enum kvd_finish finish;
    uint64_t ttft_ns; /* from the call to the first token chosen */
    uint64_t total_ns;
    uint8_t logits_sha256[32]; /* over the f32 logits of every generated position, in order */
    uint8_t kv_sha256[32];     /* over the KV of all whole blocks of the prompt, in order */
};

/* Runs one request. tokens (may be NULL) receives the answer's ids. -KVD_E_TOO_LONG: the prompt
 * doesn't fit the context (diag says both lengths). */
int kvd_engine_run(struct kvd_engine *engine, const struct kvd_request *request,
                   kvd_token_fn *on_token, void *user, struct kvd_tokens *tokens,
                   struct kvd_diag *diag, struct kvd_request_report *ret_report);

#endif
