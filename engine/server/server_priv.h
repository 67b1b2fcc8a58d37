/* What server.c (life, loop) and http.c (requests) share. */
#ifndef ENGINE_SERVER_SERVER_PRIV_H
#define ENGINE_SERVER_SERVER_PRIV_H

#include <pthread.h>

#include <microhttpd.h>

#include "engine/server/buffer.h"
#include "engine/server/exchange.h"
#include "engine/server/server.h"
#include "proto/base/list.h"

#define KVD_SERVER_MAGIC 0x70747468U

struct kvd_server {
    uint32_t magic;
    struct kvd_server_options options;
    uint16_t port;
    struct MHD_Daemon *daemon; /* owner: loop thread, once it runs */
    struct kvd_exchange_options exchange;
    struct kvd_queue *queue;
    pthread_t thread;
    int wake_fd;          /* eventfd: an exchange has something to say, or the server stops */
    atomic_bool stopping; /* set by kvd_server_stop */
    atomic_uint requests; /* length of `open` */
    struct kvd_list open; /* owner: loop thread; requests that have an exchange */
    bool flushing;        /* owner: loop thread; nobody is suspended any more */
};

/* One HTTP request. Owner: loop thread. */
struct kvd_http_request {
    struct kvd_list link; /* in server.open once there is an exchange */
    struct kvd_server *server;
    struct MHD_Connection *connection;
    struct kvd_buffer body;
    size_t seen; /* bytes of the body that came, also those not kept */
    struct kvd_exchange *exchange;
    bool suspended;
    uint64_t created_ns; /* when the exchange was made */
    uint64_t heard_ns;   /* when the client last heard something */
};

/* Callbacks of the daemon; cls is the server. They run in the loop thread. */
enum MHD_Result kvd_http_handle(void *cls, struct MHD_Connection *connection, const char *url,
                                const char *method, const char *version, const char *upload,
                                size_t *upload_bytes, void **request_cls);
void kvd_http_completed(void *cls, struct MHD_Connection *connection, void **request_cls,
                        enum MHD_RequestTerminationCode why);

/* Lets a suspended request go on. */
void kvd_http_resume(struct kvd_http_request *request);

#endif
