/*
 * HTTP requests: routes, bodies, answers that come when they come.
 *
 *     body comes in → parsed → exchange queued, connection suspended → (something to say: resumed)
 * → status and headers → bytes; nothing more now: suspended again → … → end
 *
 * Everything here runs in the loop thread, which is also the only one that suspends and resumes.
 * That is why looking for bytes and suspending need no common lock with the inference thread: it
 * adds bytes and then wakes the loop, which looks again.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/server/api_request.h"
#include "engine/server/api_response.h"
#include "engine/server/server_priv.h"
#include "proto/base/assert.h"
#include "proto/base/clock.h"

enum { RESPONSE_BLOCK = 16384 };

enum route { ROUTE_NONE, ROUTE_CHAT, ROUTE_MODELS };

static enum route route_of(const char *url)
{
    static const struct {
        const char *url;
        enum route route;
    } routes[] = {{"/v1/chat/completions", ROUTE_CHAT},
                  {"/chat/completions", ROUTE_CHAT},
                  {"/v1/models", ROUTE_MODELS},
                  {"/models", ROUTE_MODELS}};
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        if (strcmp(url, routes[i].url) == 0) {
            return routes[i].route;
        }
    }
    return ROUTE_NONE;
}

/* Queues a response with headers and gives it up. */
static enum MHD_Result respond(struct MHD_Connection *connection, int status, const char *type,
                               struct MHD_Response *response)
{
    if (!response) {
        return MHD_NO;
    }
    enum MHD_Result rc = MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (rc == MHD_YES && status == 429) {
        rc = MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    }
    if (rc == MHD_YES) {
        rc = MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    }
    if (rc == MHD_YES) {
        rc = MHD_queue_response(connection, (unsigned)status, response);
    }
    MHD_destroy_response(response);
    return rc;
}

/* Takes body, which may be NULL when memory ran out: then the connection is closed. */
static enum MHD_Result respond_json(struct MHD_Connection *connection, int status, char *body,
                                    size_t bytes)
{
    if (!body) {
        return MHD_NO;
    }
    struct MHD_Response *response =
        MHD_create_response_from_buffer(bytes, body, MHD_RESPMEM_MUST_FREE);
    if (!response) {
        free(body);
    }
    return respond(connection, status, "application/json", response);
}

static enum MHD_Result respond_error(struct MHD_Connection *connection,
                                     const struct kvd_api_error *error)
{
    size_t n = 0;
    char *body = kvd_api_error_body(error, &n);
    return respond_json(connection, error->status, body, n);
}

static void suspend(struct kvd_http_request *request)
{
    request->suspended = true;
    MHD_suspend_connection(request->connection);
}

void kvd_http_resume(struct kvd_http_request *request)
{
    request->suspended = false;
    MHD_resume_connection(request->connection);
}

/* MHD_ContentReaderCallback */
static ssize_t read_exchange(void *cls, uint64_t pos, char *buf, size_t max)
{
    struct kvd_http_request *request = cls;
    const ssize_t n = kvd_exchange_read(request->exchange, buf, max);
    if (n < 0) {
        return MHD_CONTENT_READER_END_OF_STREAM;
    }
    if (n > 0) {
        request->heard_ns = kvd_mono_ns();
        return n;
    }
    if (request->server->flushing) {
        return MHD_CONTENT_READER_END_WITH_ERROR; /* not ended, and nobody will wake us any more */
    }
    suspend(request);
    return 0;
}

/* Answers when the exchange has begun; else waits on. */
static enum MHD_Result answer(struct kvd_http_request *request)
{
    struct kvd_exchange_view view;
    kvd_exchange_look(request->exchange, &view);
    if (view.status == 0) {
        if (request->server->flushing) {
            return MHD_NO;
        }
        suspend(request);
        return MHD_YES;
    }
    const uint64_t size = view.ended ? view.bytes : MHD_SIZE_UNKNOWN;
    return respond(
        request->connection, view.status,
        view.event_stream ? "text/event-stream; charset=utf-8" : "application/json",
        MHD_create_response_from_callback(size, RESPONSE_BLOCK, read_exchange, request, NULL));
}

/* Parses and queues. Takes place once the whole body is there. */
static int queue_chat(struct kvd_http_request *request, struct kvd_api_error *error)
{
    struct kvd_server *server = request->server;
    const char *scenario =
        MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, "X-Cache-Scenario");
    struct kvd_api_request *parsed = NULL;
    int rc = kvd_api_request_parse(request->body.bytes ? request->body.bytes : "", request->body.n,
                                   scenario, error, &parsed);
    rc = rc ? rc : kvd_api_request_check_model(parsed, server->options.backend->model, error);
    kvd_buffer_fini(&request->body);
    if (rc) {
        kvd_api_request_destroy(&parsed);
        return rc;
    }
    rc = kvd_exchange_create(parsed, &server->exchange, &request->exchange);
    if (rc) {
        kvd_api_request_destroy(&parsed);
        return rc;
    }
    kvd_exchange_ref(request->exchange); /* the queue's, given up by the inference thread */
    rc = kvd_queue_push(server->queue, kvd_exchange_item(request->exchange));
    if (rc) {
        struct kvd_exchange *queued = request->exchange;
        kvd_exchange_unref(&queued);
        kvd_exchange_unref(&request->exchange);
        (void)kvd_api_fail(error, 429, "one request computes and %u wait; try again later",
                           server->options.waiting_max);
        return rc;
    }
    return 0;
}

static enum MHD_Result handle_chat(struct kvd_http_request *request)
{
    struct kvd_server *server = request->server;
    struct kvd_api_error error = {.status = 500, .message = "out of memory"};
    if (atomic_load(&server->stopping)) {
        (void)kvd_api_fail(&error, 503, "the server is shutting down");
        return respond_error(request->connection, &error);
    }
    if (queue_chat(request, &error)) {
        return respond_error(request->connection, &error);
    }
    request->created_ns = request->heard_ns = kvd_mono_ns();
    kvd_list_push_back(&server->open, &request->link);
    (void)atomic_fetch_add(&server->requests, 1);
    suspend(request);
    return MHD_YES;
}

static enum MHD_Result dispatch(struct kvd_http_request *request, const char *url,
                                const char *method)
{
    static const char *const needs[] = {[ROUTE_CHAT] = "POST", [ROUTE_MODELS] = "GET"};
    struct MHD_Connection *connection = request->connection;
    const enum route route = route_of(url);
    struct kvd_api_error error;
    if (route == ROUTE_NONE) {
        (void)kvd_api_fail(&error, 404, "no such path: %.128s", url);
        return respond_error(connection, &error);
    }
    if (strcmp(method, needs[route]) != 0) {
        (void)kvd_api_fail(&error, 405, "%.64s takes %s", url, needs[route]);
        return respond_error(connection, &error);
    }
    if (request->seen > request->server->options.body_max) {
        (void)kvd_api_fail(&error, 413, "the body is larger than %zu bytes",
                           request->server->options.body_max);
        return respond_error(connection, &error);
    }
    if (route == ROUTE_CHAT) {
        return handle_chat(request);
    }
    size_t n = 0;
    char *body = kvd_api_models_body(request->server->options.backend->model, &n);
    return respond_json(connection, 200, body, n);
}

/* Keeps a piece of the body; what is beyond the limit is dropped, and at four times the limit the
 * connection too. */
static enum MHD_Result take_body(struct kvd_http_request *request, const char *upload, size_t n)
{
    const size_t max = request->server->options.body_max;
    request->seen += n;
    if (request->seen <= max) {
        return kvd_buffer_add(&request->body, upload, n) ? MHD_NO : MHD_YES;
    }
    kvd_buffer_fini(&request->body);
    return request->seen / 4 > max ? MHD_NO : MHD_YES;
}

/* First call of a request, when only headers are there. A body that says it is too large is not
 * waited for. */
static enum MHD_Result begin(struct kvd_server *server, struct MHD_Connection *connection,
                             void **request_cls)
{
    const char *length =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    if (length && strtoull(length, NULL, 10) > server->options.body_max) {
        struct kvd_api_error error;
        (void)kvd_api_fail(&error, 413, "the body has %.20s bytes; at most %zu are taken", length,
                           server->options.body_max);
        return respond_error(connection, &error);
    }
    struct kvd_http_request *request = calloc(1, sizeof(*request));
    if (!request) {
        return MHD_NO;
    }
    kvd_list_init(&request->link);
    request->server = server;
    request->connection = connection;
    *request_cls = request;
    return MHD_YES;
}

enum MHD_Result kvd_http_handle(void *cls, struct MHD_Connection *connection, const char *url,
                                const char *method, const char *version, const char *upload,
                                size_t *upload_bytes, void **request_cls)
{
    struct kvd_server *server = cls;
    KVD_MAGIC_CHECK(server, KVD_SERVER_MAGIC);
    struct kvd_http_request *request = *request_cls;
    if (!request) {
        return begin(server, connection, request_cls);
    }
    if (*upload_bytes > 0) {
        const size_t n = *upload_bytes;
        *upload_bytes = 0;
        return take_body(request, upload, n);
    }
    return request->exchange ? answer(request) : dispatch(request, url, method);
}

void kvd_http_completed(void *cls, struct MHD_Connection *connection, void **request_cls,
                        enum MHD_RequestTerminationCode why)
{
    struct kvd_http_request *request = *request_cls;
    *request_cls = NULL;
    if (!request) {
        return;
    }
    struct kvd_server *server = cls;
    if (request->exchange) {
        kvd_exchange_cancel(request->exchange); /* no effect where it has ended */
        if (kvd_queue_remove(server->queue, kvd_exchange_item(request->exchange))) {
            struct kvd_exchange *queued = request->exchange;
            kvd_exchange_unref(&queued);
        }
        kvd_exchange_unref(&request->exchange);
        kvd_list_remove(&request->link);
        (void)atomic_fetch_sub(&server->requests, 1);
    }
    kvd_buffer_fini(&request->body);
    free(request);
}
