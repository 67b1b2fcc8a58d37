#include "cachesvc/embed/daemon.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "cachesvc/config/config.h"
#include "cachesvc/core/service.h"
#include "cachesvc/local/local.h"
#include "proto/base/cleanup.h"

struct kvd_daemon {
    struct kvd_service *service;
    struct kvd_local *local;
};

int kvd_daemon_start(const struct kvd_config *config, bool drop_dram, bool listen,
                     struct kvd_log *log, struct kvd_diag *diag, struct kvd_daemon **ret)
{
    struct kvd_daemon *d = calloc(1, sizeof(*d));
    if (!d) {
        return kvd_fail(diag, -ENOMEM, "out of memory");
    }
    int err = kvd_service_open(config, drop_dram, log, diag, &d->service);
    if (!err) {
        struct kvd_local_options options = {.socket_path = listen ? config->socket : NULL,
                                            .socket_mode =
                                                (mode_t)strtoul(config->socket_mode, NULL, 8),
                                            .log = log};
        err = kvd_local_start(d->service, &options, diag, &d->local);
    }
    if (err) {
        (void)kvd_daemon_stop(&d);
        return err;
    }
    *ret = d;
    return 0;
}

int kvd_daemon_connect(struct kvd_daemon *daemon)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) {
        return -errno;
    }
    int err = kvd_local_adopt(daemon->local, pair[0]);
    if (err) {
        kvd_close_fd(&pair[0]);
        kvd_close_fd(&pair[1]);
        return err;
    }
    return pair[1];
}

int kvd_daemon_stop(struct kvd_daemon **daemon)
{
    struct kvd_daemon *d = *daemon;
    if (!d) {
        return 0;
    }
    *daemon = NULL;
    kvd_local_stop(&d->local);
    int err = kvd_service_close(&d->service);
    free(d);
    return err;
}
