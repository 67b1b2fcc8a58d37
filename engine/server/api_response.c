/* From an answer to the bytes that go out. See api_response.h. */
#include "engine/server/api_response.h"

#include <string.h>

#include "engine/server/json_text.h"

static const struct status_row {
    int status;
    const char *type;
    const char *code;
} rows[] = {
#define KVD_API_STATUS(status, type, code) {status, type, code},
#include "engine/server/errors.def"
#undef KVD_API_STATUS
};

static const struct status_row *row_of(int status)
{
    const size_t n = sizeof(rows) / sizeof(rows[0]);
    for (size_t i = 0; i < n; i++) {
        if (rows[i].status == status) {
            return &rows[i];
        }
    }
    return &rows[n - 1];
}

const char *kvd_api_error_type(int status)
{
    return row_of(status)->type;
}

const char *kvd_api_error_code(int status)
{
    return row_of(status)->code;
}

static const char *finish_name(enum kvd_api_finish finish)
{
    switch (finish) {
    case KVD_API_STOP:
        return "stop";
    case KVD_API_LENGTH:
        return "length";
    case KVD_API_ABORTED:
        break;
    }
    return "aborted";
}

/* json_pack gives NULL when a part is NULL ("o" takes it), so one check at the end serves all. */
static json_t *usage_json(const struct kvd_api_usage *u)
{
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:{s:I}, s:{s:i}}", "prompt_tokens",
        (json_int_t)u->prompt_tokens, "completion_tokens", (json_int_t)u->completion_tokens,
        "total_tokens", (json_int_t)u->prompt_tokens + u->completion_tokens,
        "prompt_cache_hit_tokens", (json_int_t)u->hit_tokens, "prompt_cache_miss_tokens",
        (json_int_t)u->prompt_tokens - u->hit_tokens, "prompt_tokens_details", "cached_tokens",
        (json_int_t)u->hit_tokens, "completion_tokens_details", "reasoning_tokens", 0);
}

static json_t *error_json(const struct kvd_api_error *error)
{
    return json_pack("{s:{s:o, s:s, s:n, s:s}}", "error", "message",
                     kvd_json_text(error->message, strlen(error->message)), "type",
                     kvd_api_error_type(error->status), "param", "code",
                     kvd_api_error_code(error->status));
}

char *kvd_api_error_body(const struct kvd_api_error *error, size_t *ret_bytes)
{
    return kvd_json_render(error_json(error), "", "\n", ret_bytes);
}

char *kvd_api_chunk_error(const struct kvd_api_error *error, size_t *ret_bytes)
{
    return kvd_json_render(error_json(error), "data: ", "\n\n", ret_bytes);
}

char *kvd_api_models_body(const char *model, size_t *ret_bytes)
{
    return kvd_json_render(json_pack("{s:s, s:[{s:o, s:s, s:s}]}", "object", "list", "data", "id",
                                     kvd_json_text(model, strlen(model)), "object", "model",
                                     "owned_by", "kvdepot"),
                           "", "\n", ret_bytes);
}

static json_t *head_json(const struct kvd_api_head *head, const char *object, json_t *choices)
{
    return json_pack("{s:s, s:s, s:I, s:o, s:s, s:o}", "id", head->id, "object", object, "created",
                     (json_int_t)head->created, "model",
                     kvd_json_text(head->model, strlen(head->model)), "system_fingerprint",
                     head->fingerprint, "choices", choices);
}

/* Takes value. NULL stays NULL, so that the caller checks once. */
static json_t *with_field(json_t *object, const char *name, json_t *value)
{
    if (!object || json_object_set_new(object, name, value)) {
        json_decref(object);
        if (!object) {
            json_decref(value);
        }
        return NULL;
    }
    return object;
}

char *kvd_api_completion_body(const struct kvd_api_head *head, const char *text, size_t text_bytes,
                              enum kvd_api_finish finish, const struct kvd_api_usage *usage,
                              size_t *ret_bytes)
{
    json_t *choices = json_pack("[{s:i, s:{s:s, s:o}, s:n, s:s}]", "index", 0, "message", "role",
                                "assistant", "content", kvd_json_text(text, text_bytes), "logprobs",
                                "finish_reason", finish_name(finish));
    json_t *body =
        with_field(head_json(head, "chat.completion", choices), "usage", usage_json(usage));
    return kvd_json_render(body, "", "\n", ret_bytes);
}

/* Takes delta and usage. finish NULL: null. */
static char *chunk(const struct kvd_api_head *head, json_t *delta, const char *finish,
                   json_t *usage, size_t *ret_bytes)
{
    json_t *choices = json_pack("[{s:i, s:o, s:n, s:s?}]", "index", 0, "delta", delta, "logprobs",
                                "finish_reason", finish);
    json_t *body = head_json(head, "chat.completion.chunk", choices);
    if (usage) {
        body = with_field(body, "usage", usage);
    }
    return kvd_json_render(body, "data: ", "\n\n", ret_bytes);
}

char *kvd_api_chunk_first(const struct kvd_api_head *head, bool with_usage, size_t *ret_bytes)
{
    return chunk(head, json_pack("{s:s, s:s}", "role", "assistant", "content", ""), NULL,
                 with_usage ? json_null() : NULL, ret_bytes);
}

char *kvd_api_chunk_text(const struct kvd_api_head *head, const char *text, size_t text_bytes,
                         bool with_usage, size_t *ret_bytes)
{
    return chunk(head, json_pack("{s:o}", "content", kvd_json_text(text, text_bytes)), NULL,
                 with_usage ? json_null() : NULL, ret_bytes);
}

char *kvd_api_chunk_finish(const struct kvd_api_head *head, enum kvd_api_finish finish,
                           bool with_usage, const struct kvd_api_usage *usage, size_t *ret_bytes)
{
    json_t *figures = usage ? usage_json(usage) : with_usage ? json_null() : NULL;
    return chunk(head, json_pack("{s:s}", "content", ""), finish_name(finish), figures, ret_bytes);
}

char *kvd_api_chunk_usage(const struct kvd_api_head *head, const struct kvd_api_usage *usage,
                          size_t *ret_bytes)
{
    json_t *body = with_field(head_json(head, "chat.completion.chunk", json_array()), "usage",
                              usage_json(usage));
    return kvd_json_render(body, "data: ", "\n\n", ret_bytes);
}
