/*
 * An engine as a back end of the server: messages become tokens, tokens become text.
 *
 *     token → bytes → whole UTF-8 sequences → text without stop strings → out
 *
 * Special tokens of an answer are no text.
 */
#include "engine/server/backend.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/random.h>

#include "engine/server/stop.h"
#include "engine/session/session.h"
#include "proto/base/cleanup.h"

enum { FINGERPRINT_BYTES = 6 };

struct answer {
    const struct kvd_tokenizer *tokenizer;
    struct kvd_utf8_gate gate;
    struct kvd_stop stop;
    char *whole; /* what the gate lets through */
    size_t cap;
    kvd_text_fn *on_text;
    void *user;
    int error;
};

static void answer_fini(struct answer *a)
{
    kvd_stop_fini(&a->stop);
    free(a->whole);
}

static int tell(const struct answer *a, const char *text, size_t bytes)
{
    return bytes > 0 ? a->on_text(text, bytes, a->user) : 0;
}

static int answer_token(uint32_t id, void *user)
{
    struct answer *a = user;
    uint32_t bytes = 0;
    const char *piece = kvd_tokenizer_piece(a->tokenizer, id, &bytes);
    if (!piece || kvd_tokenizer_is_special(a->tokenizer, id)) {
        return 0;
    }
    if (bytes + sizeof(a->gate.held) > a->cap) {
        const size_t cap = bytes + 256;
        char *grown = realloc(a->whole, cap);
        if (!grown) {
            a->error = -ENOMEM;
            return 1;
        }
        a->whole = grown;
        a->cap = cap;
    }
    const uint32_t whole = kvd_utf8_gate_feed(&a->gate, piece, bytes, a->whole);
    const char *out = NULL;
    size_t n = 0;
    a->error = kvd_stop_feed(&a->stop, a->whole, whole, &out, &n);
    if (a->error) {
        return 1;
    }
    return tell(a, out, n) || a->stop.found;
}

static int fail_as_http(int rc, const char *text, struct kvd_api_error *error)
{
    switch (rc) {
    case -KVD_E_TOO_LONG:
    case -KVD_E_BAD_REQUEST:
    case -KVD_E_UNKNOWN_SCENARIO:
        (void)kvd_api_fail(error, 400, "%s", text);
        break;
    default:
        (void)kvd_api_fail(error, 500, "the request failed: %s", *text ? text : kvd_strerror(rc));
        break;
    }
    return rc;
}

static uint64_t seed_of(const struct kvd_api_request *request)
{
    uint64_t seed = request->seed;
    if (!request->has_seed && getrandom(&seed, sizeof(seed), GRND_NONBLOCK) != sizeof(seed)) {
        seed = 1; /* no entropy yet: the same answer twice is better than none */
    }
    return seed;
}

/* A prompt that can't fit, whatever its tokens are, is refused before the one inference thread
 * spends seconds on them. */
static int check_bytes(const struct kvd_engine_backend *b, const struct kvd_api_request *request,
                       struct kvd_diag *diag)
{
    const uint32_t context = kvd_engine_context(b->engine);
    const uint64_t most = (uint64_t)context * b->longest_piece;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < request->n_messages; i++) {
        bytes += strlen(request->messages[i].content);
    }
    return bytes <= most ? 0
                         : kvd_fail(diag, -KVD_E_TOO_LONG,
                                    "the messages have %llu bytes; the context holds %u tokens, "
                                    "which are at most %llu bytes",
                                    (unsigned long long)bytes, context, (unsigned long long)most);
}

static int run(const struct kvd_engine_backend *b, const struct kvd_api_request *request,
               const atomic_bool *cancel, struct answer *a, struct kvd_diag *diag,
               struct kvd_request_report *report)
{
    struct kvd_tokens prompt = {0};
    int rc = check_bytes(b, request, diag);
    rc =
        rc ? rc
           : kvd_template_chat(a->tokenizer, request->messages, request->n_messages, &prompt, diag);
    if (rc == 0) {
        const struct kvd_request q = {
            .prompt = prompt.ids,
            .n_prompt = prompt.n,
            .max_tokens = request->max_tokens ? request->max_tokens : UINT32_MAX,
            .sampling = {.temperature = (float)request->temperature,
                         .top_p = (float)request->top_p,
                         .seed = seed_of(request)},
            .tenant = request->user_id,
            .scenario = request->scenario ? request->scenario : "chat",
            .cancel = cancel,
        };
        rc = kvd_engine_run(b->engine, &q, answer_token, a, NULL, diag, report);
    }
    kvd_tokens_fini(&prompt);
    return rc ? rc : a->error;
}

static int generate(void *self, const struct kvd_api_request *request, const atomic_bool *cancel,
                    kvd_text_fn *on_text, void *user, struct kvd_api_error *error,
                    struct kvd_api_result *ret)
{
    struct kvd_engine_backend *b = self;
    KVD_CLEANUP(answer_fini)
    struct answer a = {.tokenizer = kvd_engine_model(b->engine)->tokenizer,
                       .stop = {.stops = request->stops, .n = request->n_stops},
                       .on_text = on_text,
                       .user = user};
    struct kvd_diag diag = {0};
    struct kvd_request_report report;
    const int rc = run(b, request, cancel, &a, &diag, &report);
    if (rc) {
        return fail_as_http(rc, diag.text, error);
    }
    const bool stopped = a.stop.found;
    const char *rest = NULL;
    size_t n = 0;
    kvd_stop_end(&a.stop, &rest, &n);
    (void)tell(&a, rest, n);
    ret->finish = stopped || report.finish == KVD_FINISH_STOP ? KVD_API_STOP
                  : report.finish == KVD_FINISH_LENGTH        ? KVD_API_LENGTH
                                                              : KVD_API_ABORTED;
    ret->usage = (struct kvd_api_usage){.prompt_tokens = report.prompt_tokens,
                                        .hit_tokens = report.hit_tokens,
                                        .completion_tokens = report.answer_tokens};
    return 0;
}

void kvd_engine_backend_init(struct kvd_engine_backend *backend, struct kvd_engine *engine)
{
    char hex[2 * FINGERPRINT_BYTES + 1];
    kvd_hex(kvd_engine_model(engine)->weights.b, FINGERPRINT_BYTES, hex);
    (void)snprintf(backend->fingerprint, sizeof(backend->fingerprint), "fp_%s", hex);
    const struct kvd_tokenizer *tokenizer = kvd_engine_model(engine)->tokenizer;
    backend->longest_piece = 1;
    for (uint32_t id = 0; id < kvd_tokenizer_vocab(tokenizer); id++) {
        uint32_t bytes = 0;
        if (kvd_tokenizer_piece(tokenizer, id, &bytes) && bytes > backend->longest_piece) {
            backend->longest_piece = bytes;
        }
    }
    backend->engine = engine;
    backend->backend = (struct kvd_backend){.model = kvd_engine_model_name(engine),
                                            .fingerprint = backend->fingerprint,
                                            .self = backend,
                                            .generate = generate};
}
