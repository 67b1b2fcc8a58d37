/* HTTP until a signal ends it. */
#include <signal.h>
#include <string.h>

#include "engine/cli.h"
#include "engine/server/server.h"

static int listen_and_wait(struct kvd_engine_app *app, const struct kvd_server_options *options,
                           struct kvd_diag *diag)
{
    struct kvd_server *server = NULL;
    const int rc = kvd_server_start(options, diag, &server);
    if (rc) {
        return kvd_app_failed(diag, rc);
    }
    const bool v6 = strchr(options->host, ':') != NULL;
    (void)printf("listening on http://%s%s%s:%u\n", v6 ? "[" : "", options->host, v6 ? "]" : "",
                 kvd_server_port(server));
    (void)fflush(stdout);
    sigset_t set;
    int sig = 0;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGTERM);
    (void)sigwait(&set, &sig);
    kvd_log_info(&app->log, "%s: finishing", strsignal(sig));
    kvd_server_stop(&server);
    return KVD_EXIT_OK;
}

int kvd_app_serve(struct kvd_engine_app *app)
{
    struct kvd_diag diag = {0};
    struct kvd_engine_backend backend;
    struct kvd_server_options options;
    kvd_server_options_init(&options);
    kvd_engine_backend_init(&backend, app->engine);
    options.backend = &backend.backend;
    options.host = app->http_host;
    options.port = app->http_port;
    options.usage_on_finish = app->cli.usage_on_finish;
    options.log = &app->log;
    return listen_and_wait(app, &options, &diag);
}
