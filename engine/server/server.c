/*
 * Life of the HTTP server: listening, the loop, the inference thread's work, stopping.
 *
 * The loop drives libmicrohttpd from outside (its epoll descriptor, our eventfd, one timeout), so
 * that one thread does all that concerns connections. Keep-alives are also how it is noticed that a
 * client has left: a suspended connection doesn't see that, a failed write does.
 */
#include "engine/server/server.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "engine/server/server_priv.h"
#include "proto/base/assert.h"
#include "proto/base/cleanup.h"
#include "proto/base/clock.h"

enum {
    CONNECTIONS_MAX = 64,
    CONNECTION_IDLE_S = 60,
    LISTEN_BACKLOG = 64,
    STOP_MS = 5000,
    LOOP_MS_MAX = 60000,
};

void kvd_server_options_init(struct kvd_server_options *options)
{
    *options = (struct kvd_server_options){.host = "127.0.0.1",
                                           .waiting_max = 16,
                                           .keep_alive_ms = 5000,
                                           .start_ms = 600000,
                                           .body_max = 8U << 20};
}

static void wake(void *user)
{
    struct kvd_server *server = user;
    const uint64_t one = 1;
    /* fails only where the counter is full, and then the loop wakes anyway */
    (void)!write(server->wake_fd, &one, sizeof(one));
}

/* kvd_queue_work_fn, in the inference thread */
static void work(struct kvd_queue_item *item, void *user)
{
    struct kvd_server *server = user;
    struct kvd_exchange *x = kvd_exchange_of_item(item);
    struct kvd_api_error error = {.status = 500};
    if (kvd_exchange_run(x, server->options.backend, &error) && error.status >= 500) {
        kvd_log_error(server->options.log, "%s",
                      error.message); /* ours to mend, not the client's */
    }
    kvd_exchange_unref(&x);
}

/* Takes a request out of the line and ends it with 503. */
static void drop_waiting(struct kvd_http_request *request, const char *why)
{
    if (!kvd_queue_remove(request->server->queue, kvd_exchange_item(request->exchange))) {
        return;
    }
    struct kvd_api_error error;
    (void)kvd_api_fail(&error, 503, "%s", why);
    kvd_exchange_fail(request->exchange, &error);
    struct kvd_exchange *queued = request->exchange;
    kvd_exchange_unref(&queued);
}

static uint64_t due_ns(const struct kvd_http_request *request)
{
    return request->heard_ns + (uint64_t)request->server->options.keep_alive_ms * KVD_NS_PER_MS;
}

/* What is due for one request that waits; then lets it go on where there is something to say. */
static void tend(struct kvd_http_request *request, uint64_t now)
{
    const struct kvd_server_options *options = &request->server->options;
    if (!request->suspended) {
        return;
    }
    if (now - request->created_ns >= (uint64_t)options->start_ms * KVD_NS_PER_MS) {
        drop_waiting(request, "computing did not begin in time; try again later");
    }
    if (now >= due_ns(request)) {
        kvd_exchange_keep_alive(request->exchange);
        request->heard_ns = now;
    }
    struct kvd_exchange_view view;
    kvd_exchange_look(request->exchange, &view);
    if (view.bytes > 0 || view.ended) {
        kvd_http_resume(request);
    }
}

static void tend_all(struct kvd_server *server)
{
    const uint64_t now = kvd_mono_ns();
    kvd_list_foreach_safe (link, &server->open) {
        tend(KVD_CONTAINER_OF(link, struct kvd_http_request, link), now);
    }
}

/* Milliseconds until something is due by time alone. */
static int loop_ms(struct kvd_server *server, uint64_t deadline_ns)
{
    MHD_UNSIGNED_LONG_LONG mhd_ms = 0;
    int ms = LOOP_MS_MAX;
    if (MHD_get_timeout(server->daemon, &mhd_ms) == MHD_YES && mhd_ms < (unsigned)ms) {
        ms = (int)mhd_ms;
    }
    kvd_list_foreach (link, &server->open) {
        const struct kvd_http_request *request =
            KVD_CONTAINER_OF(link, struct kvd_http_request, link);
        const int left = request->suspended ? kvd_deadline_poll_ms(due_ns(request)) : LOOP_MS_MAX;
        ms = left < ms ? left : ms;
    }
    const int left = kvd_deadline_poll_ms(deadline_ns);
    return left < ms ? left : ms;
}

/* One turn: wait, wake those that have something to say, let the library work. */
static void turn(struct kvd_server *server, int mhd_fd, uint64_t deadline_ns)
{
    struct pollfd fds[] = {{.fd = mhd_fd, .events = POLLIN},
                           {.fd = server->wake_fd, .events = POLLIN}};
    (void)poll(fds, 2, loop_ms(server, deadline_ns));
    uint64_t count = 0;
    (void)!read(server->wake_fd, &count, sizeof(count)); /* non-blocking; before looking */
    tend_all(server);
    (void)MHD_run(server->daemon);
}

/* Ends what is under way and gives it STOP_MS to be told. */
static void wind_down(struct kvd_server *server, int mhd_fd)
{
    int listen_fd = MHD_quiesce_daemon(server->daemon);
    kvd_close_fd(&listen_fd);
    const uint64_t deadline = kvd_mono_ns() + (uint64_t)STOP_MS * KVD_NS_PER_MS;
    kvd_list_foreach (link, &server->open) {
        struct kvd_http_request *request = KVD_CONTAINER_OF(link, struct kvd_http_request, link);
        kvd_exchange_cancel(request->exchange);
        drop_waiting(request, "the server is shutting down");
    }
    while (!kvd_list_empty(&server->open) && kvd_mono_ns() < deadline) {
        turn(server, mhd_fd, deadline);
    }
    /* stopping the daemon while a connection is suspended would abort the process */
    server->flushing = true;
    kvd_list_foreach (link, &server->open) {
        struct kvd_http_request *request = KVD_CONTAINER_OF(link, struct kvd_http_request, link);
        if (request->suspended) {
            kvd_http_resume(request);
        }
    }
    (void)MHD_run(server->daemon);
}

static void *loop_thread(void *arg)
{
    struct kvd_server *server = arg;
    const union MHD_DaemonInfo *info =
        MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    const int mhd_fd = info->epoll_fd;
    while (!atomic_load(&server->stopping)) {
        turn(server, mhd_fd, UINT64_MAX);
    }
    wind_down(server, mhd_fd);
    return NULL;
}

/* A socket that listens on one of the host's addresses. */
static int open_listener(const struct kvd_server_options *options, struct kvd_diag *diag,
                         int *ret_fd)
{
    char port[8];
    (void)snprintf(port, sizeof(port), "%u", options->port);
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    const int err = getaddrinfo(options->host, port, &hints, &list);
    if (err) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "address '%s' to listen on: %s", options->host,
                        gai_strerror(err));
    }
    int rc = -EADDRNOTAVAIL;
    for (const struct addrinfo *a = list; a && rc; a = a->ai_next) {
        KVD_AUTOCLOSE int fd =
            socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        const int yes = 1;
        if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
            bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, LISTEN_BACKLOG) == 0) {
            rc = 0;
            *ret_fd = kvd_take_fd(&fd);
        } else {
            rc = -errno;
        }
    }
    freeaddrinfo(list);
    return rc ? kvd_fail(diag, rc, "listening on %s port %s: %s", options->host, port,
                         kvd_strerror(rc))
              : 0;
}

static uint16_t port_of(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4; /* the port lies at the same place in both families */
        struct sockaddr_in6 v6;
    } address = {.v6 = {0}};
    socklen_t n = sizeof(address);
    return getsockname(fd, &address.any, &n) ? 0 : ntohs(address.v4.sin_port);
}

static int start_daemon(struct kvd_server *server, struct kvd_diag *diag)
{
    KVD_AUTOCLOSE int fd = -1;
    const int rc = open_listener(&server->options, diag, &fd);
    if (rc) {
        return rc;
    }
    server->port = port_of(fd);
    server->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, kvd_http_handle, server,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)CONNECTION_IDLE_S, MHD_OPTION_NOTIFY_COMPLETED,
        kvd_http_completed, server, MHD_OPTION_END);
    if (!server->daemon) {
        return kvd_fail(diag, -KVD_E_INTERNAL, "the HTTP library could not start on port %u",
                        server->port);
    }
    (void)kvd_take_fd(&fd); /* the daemon's now */
    return 0;
}

static int start_parts(struct kvd_server *server, struct kvd_diag *diag)
{
    server->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (server->wake_fd < 0) {
        return kvd_fail(diag, -errno, "eventfd: %s", kvd_strerror(-errno));
    }
    int rc = kvd_queue_create(server->options.waiting_max, work, server, &server->queue);
    if (rc) {
        return kvd_fail(diag, rc, "starting the inference thread: %s", kvd_strerror(rc));
    }
    rc = start_daemon(server, diag);
    if (rc) {
        return rc;
    }
    rc = -pthread_create(&server->thread, NULL, loop_thread, server);
    return rc ? kvd_fail(diag, rc, "starting the server's thread: %s", kvd_strerror(rc)) : 0;
}

static void server_free(struct kvd_server *server)
{
    if (server->daemon) {
        MHD_stop_daemon(server->daemon);
    }
    kvd_queue_destroy(
        &server->queue); /* waits for the request that is computed, which is cancelled */
    kvd_close_fd(&server->wake_fd);
    KVD_MAGIC_CLEAR(server);
    free(server);
}

int kvd_server_start(const struct kvd_server_options *options, struct kvd_diag *diag,
                     struct kvd_server **ret)
{
    KVD_ASSERT(options->backend && options->host);
    struct kvd_server *server = calloc(1, sizeof(*server));
    if (!server) {
        return kvd_fail(diag, -ENOMEM, "no memory for the server");
    }
    KVD_MAGIC_SET(server, KVD_SERVER_MAGIC);
    server->options = *options;
    server->exchange = (struct kvd_exchange_options){.model = options->backend->model,
                                                     .fingerprint = options->backend->fingerprint,
                                                     .usage_on_finish = options->usage_on_finish,
                                                     .changed = wake,
                                                     .user = server};
    server->wake_fd = -1;
    kvd_list_init(&server->open);
    const int rc = start_parts(server, diag);
    if (rc) {
        server_free(server);
        return rc;
    }
    *ret = server;
    return 0;
}

uint16_t kvd_server_port(const struct kvd_server *server)
{
    return server->port;
}

uint32_t kvd_server_requests(const struct kvd_server *server)
{
    return atomic_load(&server->requests);
}

void kvd_server_stop(struct kvd_server **server)
{
    if (!server || !*server) {
        return;
    }
    struct kvd_server *s = *server;
    KVD_MAGIC_CHECK(s, KVD_SERVER_MAGIC);
    atomic_store(&s->stopping, true);
    wake(s);
    (void)pthread_join(s->thread, NULL);
    server_free(s);
    *server = NULL;
}
