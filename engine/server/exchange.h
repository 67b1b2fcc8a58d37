/*
 * One request's way from question to bytes: what the inference thread says goes in, what the
 * connection may send comes out. No sockets. One lock inside, held only to copy.
 *
 *     quiet ──first output──▶ begun ──end, fail──▶ ended
 *       └──────────fail, or end of a plain answer──────▲
 *
 * While it is quiet the HTTP status is open, so that an error found only when computing begins is
 * answered with its own status.
 */
#ifndef ENGINE_SERVER_EXCHANGE_H
#define ENGINE_SERVER_EXCHANGE_H

#include <sys/types.h>

#include "engine/server/backend.h"
#include "engine/server/queue.h"

struct kvd_exchange;

struct kvd_exchange_options {
    const char *model;       /* borrowed, outlives the exchange */
    const char *fingerprint; /* the same */
    bool usage_on_finish; /* a stream's usage: on the finishing chunk, not on a chunk of its own */
    void (*changed)(void *user); /* after something was added; any thread; no lock is held */
    void *user;
};

/* Takes the request on success. One reference, the caller's. */
int kvd_exchange_create(struct kvd_api_request *request, const struct kvd_exchange_options *options,
                        struct kvd_exchange **ret);
void kvd_exchange_ref(struct kvd_exchange *x);
void kvd_exchange_unref(struct kvd_exchange **x);

struct kvd_queue_item *kvd_exchange_item(struct kvd_exchange *x);
struct kvd_exchange *kvd_exchange_of_item(struct kvd_queue_item *item);

/* Inference thread: answers the request through the back end. The back end's failure is passed on
 * to the client, and returned with *error filled in. */
int kvd_exchange_run(struct kvd_exchange *x, const struct kvd_backend *backend,
                     struct kvd_api_error *error);

/* Any thread. An exchange that has ended takes no more. */
void kvd_exchange_fail(struct kvd_exchange *x, const struct kvd_api_error *error);
void kvd_exchange_keep_alive(struct kvd_exchange *x);
void kvd_exchange_cancel(struct kvd_exchange *x);

struct kvd_exchange_view {
    int status;        /* 0 while quiet */
    bool event_stream; /* content type */
    bool ended;
    size_t bytes; /* to read now */
};
void kvd_exchange_look(struct kvd_exchange *x, struct kvd_exchange_view *ret);

/* Bytes read, 0: none now, -1: the end. */
ssize_t kvd_exchange_read(struct kvd_exchange *x, char *buf, size_t max);

#endif
