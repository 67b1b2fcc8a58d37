/*
 * What answers a request: the converter's view of an engine. The server knows nothing else of the
 * model, so that transport and queue are tested without one.
 */
#ifndef ENGINE_SERVER_BACKEND_H
#define ENGINE_SERVER_BACKEND_H

#include <stdatomic.h>
#include <stddef.h>

#include "engine/server/api.h"

struct kvd_engine;

/* A piece of the answer: whole UTF-8 sequences, no stop string. Borrowed for the call. Non-zero
 * stops the answer. */
typedef int kvd_text_fn(const char *text, size_t bytes, void *user);

struct kvd_api_result {
    enum kvd_api_finish finish;
    struct kvd_api_usage usage;
};

struct kvd_backend {
    const char *model;       /* borrowed */
    const char *fingerprint; /* borrowed */
    void *self;
    /* Answers one request, in the calling thread; one at a time. cancel becoming true ends it soon,
     * with finish aborted. Fails with error filled in. */
    int (*generate)(void *self, const struct kvd_api_request *request, const atomic_bool *cancel,
                    kvd_text_fn *on_text, void *user, struct kvd_api_error *error,
                    struct kvd_api_result *ret);
};

/* An engine as a back end. Owns nothing but memory; the engine outlives it. */
struct kvd_engine_backend {
    struct kvd_backend backend;
    struct kvd_engine *engine;
    uint32_t longest_piece; /* bytes of the longest token */
    char fingerprint[32];
};
void kvd_engine_backend_init(struct kvd_engine_backend *backend, struct kvd_engine *engine);

#endif
