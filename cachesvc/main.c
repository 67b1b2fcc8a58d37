/* kvdepotd: the cache daemon. Everything it does is in the rooms beside this file; this reads the
 * command line, starts the daemon, and waits for a signal. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cachesvc/config/config.h"
#include "cachesvc/embed/daemon.h"
#include "proto/base/log.h"

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

static void print_usage(FILE *out)
{
    (void)fprintf(
        out,
        "usage: kvdepotd [--config FILE] [--OPTION VALUE]...\n"
        "The KV cache daemon: keeps blocks in dram and on a local device, and serves them to "
        "clients.\n\n"
        "  --config FILE   read options from a YAML file; flags on the command line come after it\n"
        "  --drop-dram     start with an empty dram tier\n"
        "  --check-config  check the configuration, print it as YAML, and stop\n"
        "  --list-options  print every option with its range and default, and stop\n"
        "  --version       print the version, and stop\n"
        "  --help          print this, and stop\n\n"
        "example: kvdepotd --dir /var/lib/kvdepot --dram.cap 8GiB --nvme.cap 200GiB\n");
}

/* What flags ask for instead of running. Returns whether there was such a flag. */
static bool answered(const struct kvd_config_flags *flags, const struct kvd_config *config)
{
    if (flags->help) {
        print_usage(stdout);
    } else if (flags->version) {
        (void)printf("kvdepotd %s\n", KVDEPOT_VERSION);
    } else if (flags->list_options) {
        kvd_config_print_options(stdout);
    } else if (flags->check_config) {
        kvd_config_print_values(config, stdout);
    } else {
        return false;
    }
    return true;
}

static void block_signals(sigset_t *ret_set)
{
    (void)sigemptyset(ret_set);
    (void)sigaddset(ret_set, SIGTERM);
    (void)sigaddset(ret_set, SIGINT);
    (void)pthread_sigmask(SIG_BLOCK, ret_set,
                          NULL); /* before any thread is made, so that all have it */
    (void)signal(SIGPIPE, SIG_IGN);
}

static int serve(const struct kvd_config *config, bool drop_dram, struct kvd_log *log)
{
    struct kvd_diag diag = {{0}};
    struct kvd_daemon *daemon = NULL;
    sigset_t set;
    block_signals(&set);
    int err = kvd_daemon_start(config, drop_dram, true, log, &diag, &daemon);
    if (err) {
        kvd_log_error(log, "%s", diag.text[0] ? diag.text : kvd_strerror(err));
        return EXIT_FAILED;
    }
    kvd_log_info(log, "ready: socket %s, store %s", config->socket, config->dir);
    int sig = 0;
    (void)sigwait(&set, &sig);
    kvd_log_info(log, "%s: finishing", strsignal(sig));
    if (kvd_daemon_stop(&daemon)) {
        _exit(EXIT_FAILED); /* threads that wait for a device can't be ended */
    }
    kvd_log_info(log, "stopped");
    return EXIT_OK;
}

int main(int argc, char **argv)
{
    struct kvd_config config;
    struct kvd_config_flags flags = {0};
    struct kvd_diag diag = {{0}};
    struct kvd_log log;
    int err = kvd_config_init(&config);
    err = err ? err : kvd_config_parse_args(&config, argc, argv, &flags, &diag);
    if (err) {
        (void)fprintf(stderr, "kvdepotd: %s\n", diag.text[0] ? diag.text : kvd_strerror(err));
        kvd_config_fini(&config);
        return EXIT_USAGE;
    }
    int status = EXIT_OK;
    if (!answered(&flags, &config)) {
        kvd_log_init(&log, STDERR_FILENO, "kvdepotd",
                     (enum kvd_log_level)kvd_log_level_parse(config.log_level));
        status = serve(&config, flags.drop_dram, &log);
    }
    kvd_config_fini(&config);
    return status;
}
