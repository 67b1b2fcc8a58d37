/*
 * The messages of a chat completions request: roles and contents. Parts of type text are joined
 * with line ends, so that two parts stay two paragraphs. Whatever else a message may carry in the
 * contract (tool calls, names, images) is refused, unless it is empty.
 */
#include "engine/server/api_messages.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool is_nothing(const json_t *value)
{
    return json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

static int read_role(const json_t *value, uint32_t nth, const char **ret,
                     struct kvd_api_error *error)
{
    static const char *const known[] = {"system", "user", "assistant"};
    const char *role = json_string_value(value);
    if (!role) {
        return kvd_api_fail(error, 400, "messages[%u].role must be a string", nth);
    }
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(role, known[i]) == 0) {
            *ret = known[i];
            return 0;
        }
    }
    if (strcmp(role, "developer") == 0) {
        return kvd_api_fail(error, 400,
                            "messages[%u].role: developer is not taken here; use system", nth);
    }
    if (strcmp(role, "tool") == 0 || strcmp(role, "function") == 0) {
        return kvd_api_fail(error, 400, "messages[%u].role: this engine has no tools; leave %s out",
                            nth, role);
    }
    return kvd_api_fail(
        error, 400, "messages[%u].role: '%.32s' is not one of system, user, assistant", nth, role);
}

/* Text of one content part, or NULL with error. */
static const char *part_text(const json_t *part, uint32_t nth, size_t at,
                             struct kvd_api_error *error)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!type || strcmp(type, "text") != 0) {
        (void)kvd_api_fail(
            error, 400, "messages[%u].content[%zu]: only parts of type text are taken, not '%.32s'",
            nth, at, type ? type : "(none)");
        return NULL;
    }
    const char *text = json_string_value(json_object_get(part, "text"));
    if (!text || json_object_size(part) != 2) {
        (void)kvd_api_fail(error, 400, "messages[%u].content[%zu]: a text part has type and text",
                           nth, at);
        return NULL;
    }
    return text;
}

static int join_parts(const json_t *parts, uint32_t nth, char **ret, struct kvd_api_error *error)
{
    size_t bytes = 1;
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const char *text = part_text(json_array_get(parts, i), nth, i, error);
        if (!text) {
            return -KVD_E_BAD_REQUEST;
        }
        bytes += strlen(text) + 1;
    }
    char *joined = malloc(bytes);
    if (!joined) {
        return -ENOMEM;
    }
    char *at = joined;
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const char *text = json_string_value(json_object_get(json_array_get(parts, i), "text"));
        if (i > 0) {
            *at++ = '\n';
        }
        at = stpcpy(at, text);
    }
    *at = '\0';
    *ret = joined;
    return 0;
}

static int read_content(const json_t *value, uint32_t nth, char **ret, struct kvd_api_error *error)
{
    if (json_is_string(value)) {
        *ret = strdup(json_string_value(value));
        return *ret ? 0 : -ENOMEM;
    }
    if (json_is_array(value) && json_array_size(value) > 0) {
        return join_parts(value, nth, ret, error);
    }
    return kvd_api_fail(error, 400, "messages[%u].content must be a string or a list of text parts",
                        nth);
}

/* A client that sends an earlier answer back adds fields that say nothing; what says something is
 * refused. */
static int check_rest(json_t *message, uint32_t nth, struct kvd_api_error *error)
{
    const char *key;
    json_t *value;
    json_object_foreach(message, key, value)
    {
        if (strcmp(key, "role") == 0 || strcmp(key, "content") == 0 || is_nothing(value)) {
            continue;
        }
        if (strcmp(key, "reasoning_content") == 0 && json_is_string(value) &&
            json_string_length(value) == 0) {
            continue;
        }
        return kvd_api_fail(error, 400, "messages[%u].%.64s is not supported; leave it out", nth,
                            key);
    }
    return 0;
}

int kvd_api_messages_read(const json_t *value, struct kvd_api_request *request,
                          struct kvd_api_error *error)
{
    const size_t n = json_array_size(value);
    if (n == 0) {
        return kvd_api_fail(error, 400, "messages must be a list of at least one message");
    }
    request->messages = calloc(n, sizeof(*request->messages));
    if (!request->messages) {
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        json_t *message = json_array_get(value, i);
        if (!json_is_object(message)) {
            return kvd_api_fail(error, 400, "messages[%u] must be an object with role and content",
                                i);
        }
        const char *role = NULL;
        char *content = NULL;
        int rc = read_role(json_object_get(message, "role"), i, &role, error);
        rc = rc ? rc : read_content(json_object_get(message, "content"), i, &content, error);
        if (rc) {
            return rc;
        }
        request->messages[i] = (struct kvd_chat_message){.role = role, .content = content};
        request->n_messages = i + 1;
        rc = check_rest(message, i, error);
        if (rc) {
            return rc;
        }
    }
    return 0;
}
