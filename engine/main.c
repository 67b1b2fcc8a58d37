/*
 * kvdepot-engine: the inference engine. Sets up the cache (a daemon's socket, or a daemon in this
 * process) and the engine, goes one of the ways of cli.h, and takes both down again in reverse.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cachesvc/config/config.h"
#include "cachesvc/embed/daemon.h"
#include "engine/cli.h"
#include "proto/base/cleanup.h"

#define DEFAULT_SOCKET "/run/kvdepot/kvdepotd.sock"

/* The daemon in this process and its options, which it reads until it ends. */
struct embedded {
    struct kvd_config config;
    bool configured;
    struct kvd_daemon *daemon;
};

static void embedded_stop(struct embedded *e)
{
    if (kvd_daemon_stop(&e->daemon)) {
        _exit(
            EXIT_FAILURE); /* said in the log; its threads wait for a device, and can't be ended */
    }
    if (e->configured) {
        kvd_config_fini(&e->config);
    }
}

static int set_option(struct kvd_config *config, const char *name, const char *value,
                      const char *where, struct kvd_diag *diag)
{
    return value ? kvd_config_set(config, name, value, where, diag) : 0;
}

static int start_daemon(struct kvd_engine_app *app, struct kvd_diag *diag, struct embedded *e)
{
    const struct kvd_engine_cli *cli = &app->cli;
    const bool listens = cli->socket && *cli->socket;
    int rc = kvd_config_init(&e->config);
    if (rc) {
        return kvd_fail(diag, rc, "the daemon's options: %s", kvd_strerror(rc));
    }
    e->configured = true;
    rc = set_option(&e->config, "dir", cli->store, "--store", diag);
    rc = rc ? rc : set_option(&e->config, "dram.cap", cli->dram, "--dram", diag);
    rc = rc ? rc : set_option(&e->config, "nvme.cap", cli->nvme, "--nvme", diag);
    rc = rc ? rc : set_option(&e->config, "socket", listens ? cli->socket : NULL, "--socket", diag);
    rc = rc ? rc : kvd_config_finish(&e->config, diag);
    return rc ? rc : kvd_daemon_start(&e->config, false, listens, &app->log, diag, &e->daemon);
}

/* The client of a daemon: in this process, at a socket, or none. */
static int open_client(struct kvd_engine_app *app, struct kvd_diag *diag, struct embedded *e)
{
    const struct kvd_engine_cli *cli = &app->cli;
    const char *path = cli->socket ? cli->socket : DEFAULT_SOCKET;
    struct kvd_client_options options;
    kvd_client_options_init(&options);
    options.program = "kvdepot-engine";
    options.match_ms = cli->match_ms;
    KVD_AUTOCLOSE int fd = -1;
    if (cli->embedded) {
        const int rc = start_daemon(app, diag, e);
        if (rc) {
            return rc;
        }
        fd = kvd_daemon_connect(e->daemon);
        if (fd < 0) {
            return kvd_fail(diag, fd, "connecting to the embedded daemon: %s", kvd_strerror(fd));
        }
        options.fd = fd;
    } else if (cli->no_cache || !*path) {
        return 0;
    } else {
        options.socket_path = path;
    }
    const int rc = kvd_client_open(&options, &app->client);
    if (rc) {
        return kvd_fail(diag, rc, "opening the cache at %s: %s",
                        cli->embedded ? "the embedded daemon" : path, kvd_status_text(rc));
    }
    (void)kvd_take_fd(&fd); /* the client's now */
    return 0;
}

/* Where fingerprints of models are kept unless an option says so; the caller frees. NULL: nowhere.
 */
static char *fingerprint_cache(const struct kvd_engine_cli *cli)
{
    const char *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    char *path = NULL;
    int n = 0;
    if (cli->fingerprint_cache) {
        return *cli->fingerprint_cache ? strdup(cli->fingerprint_cache) : NULL;
    }
    if (cache && *cache) {
        n = asprintf(&path, "%s/kvdepot", cache);
    } else if (home && *home) {
        n = asprintf(&path, "%s/.cache/kvdepot", home);
    }
    return n > 0 ? path : NULL;
}

static uint32_t cpus(void)
{
    cpu_set_t set;
    const int n = sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
    return n < 2 ? 1 : 2;
}

static int open_engine(struct kvd_engine_app *app, struct kvd_diag *diag)
{
    const struct kvd_engine_cli *cli = &app->cli;
    KVD_AUTOFREE char *fingerprints = fingerprint_cache(cli);
    const struct kvd_engine_options options = {.model_path = cli->model,
                                               .fingerprint_cache = fingerprints,
                                               .model_name = cli->model_name,
                                               .threads = cli->threads ? cli->threads : cpus(),
                                               .kernels = cli->kernels,
                                               .shuffle_seed = cli->shuffle_pages,
                                               .client = app->client,
                                               .log = &app->log};
    return kvd_engine_open(&options, diag, &app->engine);
}

static int go(struct kvd_engine_app *app)
{
    if (app->cli.http) {
        return kvd_app_serve(app);
    }
    return app->cli.chat ? kvd_app_chat(app) : kvd_app_prompt(app);
}

static int run(struct kvd_engine_app *app)
{
    struct kvd_diag diag = {0};
    struct embedded embedded = {0};
    int rc = open_client(app, &diag, &embedded);
    rc = rc ? rc : open_engine(app, &diag);
    const int status = rc ? kvd_app_failed(&diag, rc) : go(app);
    kvd_engine_close(&app->engine);
    kvd_client_close(&app->client);
    embedded_stop(&embedded);
    return status;
}

/* Before any thread is made, so that all have it: only the server's sigwait takes these. */
static void block_signals(void)
{
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
}

int main(int argc, char **argv)
{
    struct kvd_engine_app app = {0};
    struct kvd_diag diag = {0};
    if (kvd_engine_cli_parse(&app.cli, argc, argv, &diag)) {
        (void)fprintf(stderr, "kvdepot-engine: %s\n", diag.text);
        return KVD_EXIT_USAGE;
    }
    if (app.cli.help) {
        kvd_engine_cli_help(stdout);
        return KVD_EXIT_OK;
    }
    if (app.cli.version) {
        (void)printf("kvdepot-engine %s\n", KVDEPOT_VERSION);
        return KVD_EXIT_OK;
    }
    if (app.cli.http &&
        kvd_engine_cli_address(app.cli.http, &app.http_host, &app.http_port, &diag)) {
        (void)kvd_app_failed(&diag, -ENOMEM);
        return KVD_EXIT_USAGE;
    }
    kvd_log_init(&app.log, STDERR_FILENO, "kvdepot-engine",
                 app.cli.verbose || app.cli.http ? KVD_LOG_INFO : KVD_LOG_WARN);
    (void)signal(SIGPIPE, SIG_IGN);
    if (app.cli.http) {
        block_signals();
    }
    const int status = run(&app);
    free(app.http_host);
    return status;
}
