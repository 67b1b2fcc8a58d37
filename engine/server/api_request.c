/*
 * From the bytes of a request's body to a checked request. Every field is one row of fields.def and
 * one reader here.
 */
#include "engine/server/api_request.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/server/api_messages.h"
#include "engine/server/json_text.h"
#include "proto/keys/keys.h"

struct reading {
    struct kvd_api_request *request;
    struct kvd_api_error *error;
};

typedef int field_fn(struct reading *r, const char *name, json_t *value);

int kvd_api_fail(struct kvd_api_error *error, int status, const char *fmt, ...)
{
    error->status = status;
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(error->message, sizeof(error->message), fmt, args);
    va_end(args);
    return -KVD_E_BAD_REQUEST;
}

static int take_string(struct reading *r, const char *name, const json_t *value, size_t max,
                       char **ret)
{
    if (!json_is_string(value)) {
        return kvd_api_fail(r->error, 400, "%s must be a string", name);
    }
    if (json_string_length(value) > max) {
        return kvd_api_fail(r->error, 400, "%s has %zu bytes; at most %zu are taken", name,
                            json_string_length(value), max);
    }
    char *copy = strdup(json_string_value(value));
    if (!copy) {
        return -ENOMEM;
    }
    free(*ret);
    *ret = copy;
    return 0;
}

static int field_messages(struct reading *r, const char *name, json_t *value)
{
    return kvd_api_messages_read(value, r->request, r->error);
}

static int field_model(struct reading *r, const char *name, json_t *value)
{
    return take_string(r, name, value, KVD_MODEL_NAME_MAX, &r->request->model);
}

static int field_max_tokens(struct reading *r, const char *name, json_t *value)
{
    const json_int_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < 1 || n > INT32_MAX) {
        return kvd_api_fail(r->error, 400, "%s must be an integer, at least 1", name);
    }
    if (r->request->max_tokens && r->request->max_tokens != (uint32_t)n) {
        return kvd_api_fail(r->error, 400,
                            "max_tokens and max_completion_tokens disagree; send one");
    }
    r->request->max_tokens = (uint32_t)n;
    return 0;
}

static int field_temperature(struct reading *r, const char *name, json_t *value)
{
    const double v = json_number_value(value);
    if (!json_is_number(value) || !(v >= 0 && v <= 2)) {
        return kvd_api_fail(r->error, 400, "temperature must be a number from 0 to 2");
    }
    r->request->temperature = v;
    return 0;
}

static int field_top_p(struct reading *r, const char *name, json_t *value)
{
    const double v = json_number_value(value);
    if (!json_is_number(value) || !(v > 0 && v <= 1)) {
        return kvd_api_fail(r->error, 400, "top_p must be a number above 0 and at most 1");
    }
    r->request->top_p = v;
    return 0;
}

static int field_seed(struct reading *r, const char *name, json_t *value)
{
    if (!json_is_integer(value)) {
        return kvd_api_fail(r->error, 400, "seed must be an integer");
    }
    r->request->seed = (uint64_t)json_integer_value(value);
    r->request->has_seed = true;
    return 0;
}

static int add_stop(struct reading *r, const json_t *value)
{
    char **slot = &r->request->stops[r->request->n_stops];
    const int rc = take_string(r, "stop", value, KVD_API_STOP_BYTES_MAX, slot);
    if (rc) {
        return rc;
    }
    r->request->n_stops++;
    return **slot ? 0 : kvd_api_fail(r->error, 400, "stop must not hold an empty string");
}

static int field_stop(struct reading *r, const char *name, json_t *value)
{
    if (!json_is_array(value)) {
        return json_is_string(value)
                   ? add_stop(r, value)
                   : kvd_api_fail(r->error, 400, "stop must be a string or a list of strings");
    }
    if (json_array_size(value) > KVD_API_STOPS_MAX) {
        return kvd_api_fail(r->error, 400, "stop has %zu strings; at most %d are taken",
                            json_array_size(value), KVD_API_STOPS_MAX);
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        const int rc = add_stop(r, json_array_get(value, i));
        if (rc) {
            return rc;
        }
    }
    return 0;
}

static int field_stream(struct reading *r, const char *name, json_t *value)
{
    if (!json_is_boolean(value)) {
        return kvd_api_fail(r->error, 400, "stream must be true or false");
    }
    r->request->stream = json_is_true(value);
    return 0;
}

static int field_stream_options(struct reading *r, const char *name, json_t *value)
{
    if (!json_is_object(value)) {
        return kvd_api_fail(r->error, 400, "stream_options must be an object");
    }
    const char *key;
    json_t *option;
    json_object_foreach(value, key, option)
    {
        if (strcmp(key, "include_usage") != 0) {
            return kvd_api_fail(r->error, 400, "stream_options.%.64s is not known here", key);
        }
        if (!json_is_boolean(option)) {
            return kvd_api_fail(r->error, 400,
                                "stream_options.include_usage must be true or false");
        }
        r->request->include_usage = json_is_true(option);
    }
    return 0;
}

static int field_user_id(struct reading *r, const char *name, json_t *value)
{
    return take_string(r, name, value, KVD_API_USER_ID_MAX, &r->request->user_id);
}

static int field_cache_scenario(struct reading *r, const char *name, json_t *value)
{
    const int rc = take_string(r, name, value, KVD_API_SCENARIO_MAX, &r->request->scenario);
    if (rc) {
        return rc;
    }
    return *r->request->scenario ? 0 : kvd_api_fail(r->error, 400, "cache_scenario is empty");
}

static int field_n(struct reading *r, const char *name, json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) == 1
               ? 0
               : kvd_api_fail(r->error, 400, "n must be 1: this engine gives one answer a request");
}

/* An object whose only field is a type that asks for nothing beyond what is done anyway. */
static int take_type(struct reading *r, const char *name, const json_t *value, const char *allowed)
{
    const char *type = json_string_value(json_object_get(value, "type"));
    if (!type) {
        return kvd_api_fail(r->error, 400, "%s must be an object with a type", name);
    }
    if (strcmp(type, allowed) != 0 || json_object_size(value) != 1) {
        return kvd_api_fail(r->error, 400,
                            "%s: type '%.32s' is not supported by this engine; only '%s' is", name,
                            type, allowed);
    }
    return 0;
}

static int field_response_format(struct reading *r, const char *name, json_t *value)
{
    return take_type(r, name, value, "text");
}

static int field_thinking(struct reading *r, const char *name, json_t *value)
{
    return take_type(r, name, value, "disabled");
}

static int field_ignored(struct reading *r, const char *name, json_t *value)
{
    return json_is_number(value) ? 0 : kvd_api_fail(r->error, 400, "%s must be a number", name);
}

static int field_refused(struct reading *r, const char *name, json_t *value)
{
    const char *text = json_string_value(value);
    if (json_is_false(value) || (json_is_array(value) && json_array_size(value) == 0) ||
        (text && strcmp(text, "none") == 0)) {
        return 0;
    }
    return kvd_api_fail(r->error, 400, "%s is not supported by this engine; leave it out", name);
}

static const struct field {
    const char *name;
    field_fn *read;
} fields[] = {
#define KVD_API_FIELD(name, reader, text) {name, field_##reader},
#include "engine/server/fields.def"
#undef KVD_API_FIELD
};

static int read_field(struct reading *r, const char *key, json_t *value)
{
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (strcmp(key, fields[i].name) == 0) {
            return json_is_null(value) ? 0 : fields[i].read(r, key, value);
        }
    }
    if (strcmp(key, "user") == 0) {
        return kvd_api_fail(r->error, 400,
                            "user is not known here; user_id says whose cache it is");
    }
    return kvd_api_fail(r->error, 400, "%.64s is not a field that this engine knows; leave it out",
                        key);
}

/* What one field alone can't tell. */
static int check_whole(struct reading *r, const json_t *root, const char *header_scenario)
{
    struct kvd_api_request *q = r->request;
    if (!q->messages) {
        return kvd_api_fail(r->error, 400, "messages is missing");
    }
    if (!q->stream && json_is_object(json_object_get(root, "stream_options"))) {
        return kvd_api_fail(r->error, 400, "stream_options is only for requests with stream true");
    }
    if (!header_scenario) {
        return 0;
    }
    const size_t n = strlen(header_scenario);
    if (n == 0 || n > KVD_API_SCENARIO_MAX) {
        return kvd_api_fail(r->error, 400, "header X-Cache-Scenario must have 1 to %d bytes",
                            KVD_API_SCENARIO_MAX);
    }
    if (q->scenario) {
        return strcmp(q->scenario, header_scenario) == 0
                   ? 0
                   : kvd_api_fail(r->error, 400,
                                  "cache_scenario and header X-Cache-Scenario disagree; send one");
    }
    q->scenario = strdup(header_scenario);
    return q->scenario ? 0 : -ENOMEM;
}

static json_t *load_object(const char *body, size_t bytes, struct kvd_api_error *error)
{
    if (!kvd_json_depth_ok(body, bytes, KVD_API_JSON_DEPTH_MAX)) {
        (void)kvd_api_fail(error, 400, "the body nests deeper than %d levels",
                           KVD_API_JSON_DEPTH_MAX);
        return NULL;
    }
    json_error_t at;
    json_t *root = json_loadb(body, bytes, JSON_REJECT_DUPLICATES, &at);
    if (!root) {
        (void)kvd_api_fail(error, 400, "the body is not valid JSON: line %d, column %d: %s",
                           at.line, at.column, at.text);
        return NULL;
    }
    if (!json_is_object(root)) {
        (void)kvd_api_fail(error, 400, "the body must be a JSON object");
        json_decref(root);
        return NULL;
    }
    return root;
}

int kvd_api_request_parse(const char *body, size_t bytes, const char *header_scenario,
                          struct kvd_api_error *error, struct kvd_api_request **ret)
{
    json_t *root = load_object(body, bytes, error);
    if (!root) {
        return -KVD_E_BAD_REQUEST;
    }
    struct kvd_api_request *request = calloc(1, sizeof(*request));
    int rc = request ? 0 : -ENOMEM;
    if (request) {
        request->temperature = 1.0;
        request->top_p = 1.0;
    }
    struct reading r = {.request = request, .error = error};
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value)
    {
        rc = rc ? rc : read_field(&r, key, value);
    }
    rc = rc ? rc : check_whole(&r, root, header_scenario);
    json_decref(root);
    if (rc) {
        kvd_api_request_destroy(&request);
        return rc;
    }
    *ret = request;
    return 0;
}

void kvd_api_request_destroy(struct kvd_api_request **request)
{
    struct kvd_api_request *r = *request;
    if (!r) {
        return;
    }
    for (uint32_t i = 0; i < r->n_messages; i++) {
        free((void *)(uintptr_t)r->messages[i].content);
    }
    for (uint32_t i = 0; i < r->n_stops; i++) {
        free(r->stops[i]);
    }
    free(r->messages);
    free(r->model);
    free(r->user_id);
    free(r->scenario);
    free(r);
    *request = NULL;
}

int kvd_api_request_check_model(const struct kvd_api_request *request, const char *model,
                                struct kvd_api_error *error)
{
    if (!request->model || strcmp(request->model, model) == 0) {
        return 0;
    }
    return kvd_api_fail(error, 400,
                        "model '%.128s' does not exist here; the model served is '%.255s'",
                        request->model, model);
}
