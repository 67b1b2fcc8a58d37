/*
 * Words of the HTTP contract (chat completions): an error, a request, usage, how an answer ended.
 * Plain data; conversion from JSON is api_request.c, to JSON api_response.c. Neither knows of
 * sockets or of the model, so each is tested alone.
 */
#ifndef ENGINE_SERVER_API_H
#define ENGINE_SERVER_API_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/model/template.h"

enum {
    KVD_API_STOPS_MAX = 16,
    KVD_API_STOP_BYTES_MAX = 1024,
    KVD_API_USER_ID_MAX = 512,
    KVD_API_SCENARIO_MAX = 31,
    KVD_API_ERROR_BYTES = 640,
    KVD_API_JSON_DEPTH_MAX = 32,
};

/* Status and text; type and code of the error body follow from the status (errors.def). */
struct kvd_api_error {
    int status;
    char message[KVD_API_ERROR_BYTES];
};

/* Fills error and returns -KVD_E_BAD_REQUEST, so that `return kvd_api_fail(error, 400, …)` works.
 */
int kvd_api_fail(struct kvd_api_error *error, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* "type" and "code" of a status's error body; an unknown status is answered as 500 would be. */
const char *kvd_api_error_type(int status);
const char *kvd_api_error_code(int status);

/* A checked request. Strings are owned by it. */
struct kvd_api_request {
    struct kvd_chat_message *messages; /* roles are constants, contents are owned */
    uint32_t n_messages;
    char *model;         /* NULL: not named */
    uint32_t max_tokens; /* 0: not given, as many as the context leaves */
    double temperature;
    double top_p;
    uint64_t seed;
    bool has_seed;
    bool stream;
    bool include_usage;
    char *stops[KVD_API_STOPS_MAX];
    uint32_t n_stops;
    char *user_id;  /* NULL: the default tenant */
    char *scenario; /* NULL: not named */
};

struct kvd_api_usage {
    uint32_t prompt_tokens;
    uint32_t hit_tokens; /* of the prompt, from the cache */
    uint32_t completion_tokens;
};

enum kvd_api_finish { KVD_API_STOP, KVD_API_LENGTH, KVD_API_ABORTED };

#endif
