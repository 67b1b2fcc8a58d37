/*
 * From an answer to the bytes that go out: whole completions, chunks of a stream, lists, errors.
 * Pure; safe from any thread. All return a text that the caller frees, its length in *ret_bytes, or
 * NULL when memory ran out.
 */
#ifndef ENGINE_SERVER_API_RESPONSE_H
#define ENGINE_SERVER_API_RESPONSE_H

#include <stddef.h>

#include "engine/server/api.h"

/* What all parts of one answer carry. Strings are borrowed. */
struct kvd_api_head {
    char id[48];      /* "chatcmpl-" and 32 hex digits */
    uint64_t created; /* seconds since 1970 */
    const char *model;
    const char *fingerprint; /* of weights and numerics: same text, same bytes */
};

char *kvd_api_error_body(const struct kvd_api_error *error, size_t *ret_bytes);
char *kvd_api_models_body(const char *model, size_t *ret_bytes);

char *kvd_api_completion_body(const struct kvd_api_head *head, const char *text, size_t text_bytes,
                              enum kvd_api_finish finish, const struct kvd_api_usage *usage,
                              size_t *ret_bytes);

/* Events of a stream, each "data: …\n\n". with_usage: the request asked for usage, so every chunk
 * has the field. */
char *kvd_api_chunk_first(const struct kvd_api_head *head, bool with_usage, size_t *ret_bytes);
char *kvd_api_chunk_text(const struct kvd_api_head *head, const char *text, size_t text_bytes,
                         bool with_usage, size_t *ret_bytes);
/* usage: put on this chunk; NULL: null where with_usage. */
char *kvd_api_chunk_finish(const struct kvd_api_head *head, enum kvd_api_finish finish,
                           bool with_usage, const struct kvd_api_usage *usage, size_t *ret_bytes);
/* The chunk of usage alone, with empty choices. */
char *kvd_api_chunk_usage(const struct kvd_api_head *head, const struct kvd_api_usage *usage,
                          size_t *ret_bytes);
/* An error after the stream has begun. */
char *kvd_api_chunk_error(const struct kvd_api_error *error, size_t *ret_bytes);

#define KVD_API_DONE "data: [DONE]\n\n"
#define KVD_API_KEEP_ALIVE ": keep-alive\n\n"

#endif
