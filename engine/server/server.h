/*
 * The HTTP server: chat completions over a back end.
 *
 * POST /v1/chat/completions, /chat/completions; GET /v1/models, /models. Two threads: the loop
 * thread is the only one that touches sockets, the inference thread is the only one that calls the
 * back end. kvd_server_start and _stop belong to one thread, which is neither.
 */
#ifndef ENGINE_SERVER_SERVER_H
#define ENGINE_SERVER_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/server/backend.h"
#include "proto/base/error.h"
#include "proto/base/log.h"

struct kvd_server;

struct kvd_server_options {
    const struct kvd_backend *backend; /* borrowed until kvd_server_stop returns */
    const char *host;                  /* address or name to listen on */
    uint16_t port;                     /* 0: any free one */
    bool usage_on_finish;              /* a stream's usage: on its finishing chunk */
    uint32_t waiting_max;   /* requests that wait while one computes; one more is answered 429 */
    uint32_t keep_alive_ms; /* how often a waiting client hears something */
    uint32_t start_ms;      /* a request that has not begun to compute by then is answered 503 */
    size_t body_max;        /* bytes of a request's body; more is answered 413 */
    struct kvd_log *log;
};

/* host 127.0.0.1, port 0, 16 waiting, 5 s, 10 minutes, 8 MiB; the back end and the log are the
 * caller's to set. */
void kvd_server_options_init(struct kvd_server_options *options);

/* Listens and serves. -EADDRINUSE and other errnos, -KVD_E_BAD_REQUEST (host), with diag. */
int kvd_server_start(const struct kvd_server_options *options, struct kvd_diag *diag,
                     struct kvd_server **ret);
uint16_t kvd_server_port(const struct kvd_server *server);

/* Requests that are on their way now, from the last byte of the question to the last of the answer.
 */
uint32_t kvd_server_requests(const struct kvd_server *server);

/* Takes no more requests, ends those under way (waiting ones with 503, the running one as aborted),
 * waits until they are told, at most 5 s, and frees. Accepts NULL and a pointer to NULL. */
void kvd_server_stop(struct kvd_server **server);

#endif
