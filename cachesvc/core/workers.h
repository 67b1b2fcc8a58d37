/*
 * Threads that run queued work in order of arrival. Work is a struct embedded in the caller's
 * object, which must live until its run function was called. Destroying runs what is queued first.
 */
#ifndef CACHESVC_CORE_WORKERS_H
#define CACHESVC_CORE_WORKERS_H

#include <stdint.h>

#include "proto/base/list.h"

struct kvd_workers;

struct kvd_work {
    struct kvd_list link;
    void (*run)(struct kvd_work *work);
};

int kvd_workers_create(uint32_t threads, struct kvd_workers **ret);
void kvd_workers_destroy(struct kvd_workers **workers);
/* From any thread, workers included. Never blocks. */
void kvd_workers_submit(struct kvd_workers *workers, struct kvd_work *work);

#endif
