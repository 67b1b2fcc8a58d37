/*
 * Housekeeping: one thread that wakes once a second. It writes the counters
 * and the clock down, registers new pool pages with the I/O engine, and every ten minutes removes
 * what has expired.
 */
#ifndef CACHESVC_CORE_KEEPER_H
#define CACHESVC_CORE_KEEPER_H

#include "cachesvc/core/service_private.h"

int keeper_start(struct kvd_service *service);
void keeper_stop(struct kvd_service *service);

/* Reads back what keeper wrote down: the clock and the counters. A damaged row is an error; none is
 * a new store. */
int keeper_restore(struct kvd_service *service, struct kvd_diag *diag);

/* Removes what has expired from dram, and segments of which all has. Any thread. */
int keeper_reclaim(struct kvd_service *service);

#endif
