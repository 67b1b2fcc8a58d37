/*
 * The clients' door: a Unix SEQPACKET socket with peer credentials. One thread polls all
 * connections; replies of loads and commits are sent from worker threads. Garbage on the socket
 * costs its sender the connection, nothing else.
 */
#ifndef CACHESVC_LOCAL_LOCAL_H
#define CACHESVC_LOCAL_LOCAL_H

#include <stdint.h>
#include <sys/types.h>

#include "cachesvc/core/service.h"

struct kvd_local;

struct kvd_local_options {
    const char *socket_path; /* NULL: no listening socket, only kvd_local_adopt */
    mode_t socket_mode;
    struct kvd_log *log;
};

/* Binds, listens, starts the thread. A stale socket file (nobody listens) is replaced; a live one
 * is -KVD_E_IN_USE. */
int kvd_local_start(struct kvd_service *service, const struct kvd_local_options *options,
                    struct kvd_diag *diag, struct kvd_local **ret);

/* Serves an already connected SEQPACKET socket (one end of a socketpair); takes fd on success. */
int kvd_local_adopt(struct kvd_local *local, int fd);

/* Stops taking requests, finishes those under way, ends all sessions, removes the socket file. */
void kvd_local_stop(struct kvd_local **local);

#endif
