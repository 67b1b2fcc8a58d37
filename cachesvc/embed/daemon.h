/*
 * The daemon as a library: service and door together. kvdepotd's main and the engine's --embedded
 * use it; nothing else of cachesvc is for others.
 */
#ifndef CACHESVC_EMBED_DAEMON_H
#define CACHESVC_EMBED_DAEMON_H

#include <stdbool.h>

#include "proto/base/error.h"
#include "proto/base/log.h"

struct kvd_config;
struct kvd_daemon;

/* listen: bind the configured socket. Without it only embedded clients are served. config and log
 * are borrowed until kvd_daemon_stop. */
int kvd_daemon_start(const struct kvd_config *config, bool drop_dram, bool listen,
                     struct kvd_log *log, struct kvd_diag *diag, struct kvd_daemon **ret);

/* A socket for kvd_client_options.fd, connected to this daemon. The caller's. Negative: an error.
 */
int kvd_daemon_connect(struct kvd_daemon *daemon);

/* Finishes what is under way, writes down what is queued, closes the store. Accepts a pointer to
 * NULL. -KVD_E_DEADLINE: a device did not answer, so threads of the daemon still run and use
 * `config`: end the process at once, by _exit. */
int kvd_daemon_stop(struct kvd_daemon **daemon);

#endif
