/* One request's way from question to bytes. See exchange.h. */
#include "engine/server/exchange.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <sys/random.h>

#include "engine/server/api_request.h"
#include "engine/server/api_response.h"
#include "engine/server/buffer.h"
#include "proto/base/assert.h"
#include "proto/keys/keys.h"

#define EXCHANGE_MAGIC 0x78636865U

struct kvd_exchange {
    uint32_t magic;
    struct kvd_queue_item item;
    struct kvd_exchange_options options;
    struct kvd_api_request *request;
    struct kvd_api_head head;
    atomic_bool cancel;
    atomic_uint refs;
    struct kvd_buffer text; /* owner: inference thread; a plain answer's text so far */
    bool said_first;        /* owner: inference thread; the stream's first delta is out */
    pthread_mutex_t mtx;
    struct kvd_buffer out; /* lock: mtx, as all below */
    size_t read;           /* bytes of out that were read */
    int status;
    bool event_stream;
    bool ended;
};

static void make_id(struct kvd_api_head *head)
{
    uint8_t random[16] = {0};
    if (getrandom(random, sizeof(random), GRND_NONBLOCK) != sizeof(random)) {
        struct timespec now;
        (void)clock_gettime(CLOCK_REALTIME, &now);
        memcpy(random, &now, sizeof(random)); /* no entropy yet; the id need only differ */
    }
    char hex[2 * sizeof(random) + 1];
    kvd_hex(random, sizeof(random), hex);
    (void)snprintf(head->id, sizeof(head->id), "chatcmpl-%s", hex);
}

int kvd_exchange_create(struct kvd_api_request *request, const struct kvd_exchange_options *options,
                        struct kvd_exchange **ret)
{
    struct kvd_exchange *x = calloc(1, sizeof(*x));
    if (!x) {
        return -ENOMEM;
    }
    KVD_MAGIC_SET(x, EXCHANGE_MAGIC);
    kvd_list_init(&x->item.link);
    x->options = *options;
    x->request = request;
    x->head.model = options->model;
    x->head.fingerprint = options->fingerprint;
    x->head.created = (uint64_t)time(NULL);
    make_id(&x->head);
    atomic_init(&x->cancel, false);
    atomic_init(&x->refs, 1);
    (void)pthread_mutex_init(&x->mtx, NULL);
    *ret = x;
    return 0;
}

void kvd_exchange_ref(struct kvd_exchange *x)
{
    KVD_MAGIC_CHECK(x, EXCHANGE_MAGIC);
    atomic_fetch_add(&x->refs, 1);
}

void kvd_exchange_unref(struct kvd_exchange **x)
{
    struct kvd_exchange *e = *x;
    *x = NULL;
    if (!e || atomic_fetch_sub(&e->refs, 1) != 1) {
        return;
    }
    KVD_MAGIC_CHECK(e, EXCHANGE_MAGIC);
    kvd_api_request_destroy(&e->request);
    kvd_buffer_fini(&e->text);
    kvd_buffer_fini(&e->out);
    (void)pthread_mutex_destroy(&e->mtx);
    KVD_MAGIC_CLEAR(e);
    free(e);
}

struct kvd_queue_item *kvd_exchange_item(struct kvd_exchange *x)
{
    return &x->item;
}

struct kvd_exchange *kvd_exchange_of_item(struct kvd_queue_item *item)
{
    return KVD_CONTAINER_OF(item, struct kvd_exchange, item);
}

void kvd_exchange_cancel(struct kvd_exchange *x)
{
    atomic_store(&x->cancel, true);
}

/* How an addition leaves the exchange. */
enum after { GOES_ON, ENDS };

/* Adds bytes. Where nothing was said before, this decides status and content type. */
static void add_locked(struct kvd_exchange *x, const char *bytes, size_t n, int status,
                       bool event_stream, enum after after)
{
    if (x->ended) {
        return;
    }
    if (x->status == 0) {
        x->status = status;
        x->event_stream = event_stream;
    }
    /* without memory the answer can only be cut short; the client sees no finish */
    x->ended = kvd_buffer_add(&x->out, bytes, n) || after == ENDS;
}

static void add(struct kvd_exchange *x, const char *bytes, size_t n, int status, bool event_stream,
                enum after after)
{
    (void)pthread_mutex_lock(&x->mtx);
    add_locked(x, bytes, n, status, event_stream, after);
    (void)pthread_mutex_unlock(&x->mtx);
    x->options.changed(x->options.user);
}

/* Takes text, which is NULL when it could not be made. */
static int add_event(struct kvd_exchange *x, char *text, size_t n)
{
    if (!text) {
        const struct kvd_api_error error = {.status = 500, .message = "out of memory"};
        kvd_exchange_fail(x, &error);
        return -ENOMEM;
    }
    add(x, text, n, 200, true, GOES_ON);
    free(text);
    return 0;
}

static int say_first(struct kvd_exchange *x)
{
    if (x->said_first) {
        return 0;
    }
    x->said_first = true;
    size_t n = 0;
    char *event = kvd_api_chunk_first(&x->head, x->request->include_usage, &n);
    return add_event(x, event, n);
}

/* kvd_text_fn */
static int on_text(const char *text, size_t bytes, void *user)
{
    struct kvd_exchange *x = user;
    if (!x->request->stream) {
        return kvd_buffer_add(&x->text, text, bytes);
    }
    const int rc = say_first(x);
    if (rc) {
        return rc;
    }
    size_t n = 0;
    char *event = kvd_api_chunk_text(&x->head, text, bytes, x->request->include_usage, &n);
    return add_event(x, event, n);
}

static void end_stream(struct kvd_exchange *x, const struct kvd_api_result *result)
{
    const bool usage = x->request->include_usage;
    const bool apart = usage && !x->options.usage_on_finish;
    size_t n = 0;
    if (say_first(x)) {
        return;
    }
    char *event = kvd_api_chunk_finish(&x->head, result->finish, usage,
                                       usage && !apart ? &result->usage : NULL, &n);
    if (add_event(x, event, n)) {
        return;
    }
    if (apart) {
        event = kvd_api_chunk_usage(&x->head, &result->usage, &n);
        if (add_event(x, event, n)) {
            return;
        }
    }
    add(x, KVD_API_DONE, strlen(KVD_API_DONE), 200, true, ENDS);
}

static void end_plain(struct kvd_exchange *x, const struct kvd_api_result *result)
{
    size_t n = 0;
    char *body = kvd_api_completion_body(&x->head, x->text.bytes ? x->text.bytes : "", x->text.n,
                                         result->finish, &result->usage, &n);
    if (!body) {
        const struct kvd_api_error error = {.status = 500, .message = "out of memory"};
        kvd_exchange_fail(x, &error);
        return;
    }
    add(x, body, n, 200, false, ENDS);
    free(body);
}

int kvd_exchange_run(struct kvd_exchange *x, const struct kvd_backend *backend,
                     struct kvd_api_error *error)
{
    KVD_MAGIC_CHECK(x, EXCHANGE_MAGIC);
    struct kvd_api_result result;
    const int rc =
        backend->generate(backend->self, x->request, &x->cancel, on_text, x, error, &result);
    if (rc) {
        kvd_exchange_fail(x, error);
    } else if (x->request->stream) {
        end_stream(x, &result);
    } else {
        end_plain(x, &result);
    }
    return rc;
}

void kvd_exchange_fail(struct kvd_exchange *x, const struct kvd_api_error *error)
{
    static const char bare[] =
        "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\","
        "\"param\":null,\"code\":\"internal_error\"}}\n";
    size_t n = 0;
    /* rendered under the lock: a keep-alive between look and addition would begin the stream */
    (void)pthread_mutex_lock(&x->mtx);
    char *body = x->event_stream ? kvd_api_chunk_error(error, &n) : kvd_api_error_body(error, &n);
    add_locked(x, body ? body : bare, body ? n : sizeof(bare) - 1, error->status, false, ENDS);
    (void)pthread_mutex_unlock(&x->mtx);
    free(body);
    x->options.changed(x->options.user);
}

void kvd_exchange_keep_alive(struct kvd_exchange *x)
{
    const bool stream = x->request->stream;
    const char *bytes = stream ? KVD_API_KEEP_ALIVE : "\n";
    add(x, bytes, strlen(bytes), 200, stream, GOES_ON);
}

void kvd_exchange_look(struct kvd_exchange *x, struct kvd_exchange_view *ret)
{
    (void)pthread_mutex_lock(&x->mtx);
    *ret = (struct kvd_exchange_view){.status = x->status,
                                      .event_stream = x->event_stream,
                                      .ended = x->ended,
                                      .bytes = x->out.n - x->read};
    (void)pthread_mutex_unlock(&x->mtx);
}

ssize_t kvd_exchange_read(struct kvd_exchange *x, char *buf, size_t max)
{
    (void)pthread_mutex_lock(&x->mtx);
    const size_t left = x->out.n - x->read;
    const size_t n = left < max ? left : max;
    if (n > 0) {
        memcpy(buf, x->out.bytes + x->read, n);
        x->read += n;
    }
    if (x->read == x->out.n) {
        x->read = x->out.n = 0; /* all of it went out: the memory serves again */
    }
    const bool end = n == 0 && x->ended;
    (void)pthread_mutex_unlock(&x->mtx);
    return end ? -1 : (ssize_t)n;
}
