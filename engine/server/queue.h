/*
 * One thread that works, a bounded line of those that wait. Any thread may push and remove; `work`
 * runs in the queue's thread, one item at a time, in the order of pushing.
 */
#ifndef ENGINE_SERVER_QUEUE_H
#define ENGINE_SERVER_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/list.h"

struct kvd_queue;

/* Embedded in what is queued. Initialise the link with kvd_list_init. */
struct kvd_queue_item {
    struct kvd_list link; /* lock: queue.mtx */
};

typedef void kvd_queue_work_fn(struct kvd_queue_item *item, void *user);

/* waiting_max: how many may wait besides the one that is worked on. -ENOMEM, or the errno of
 * starting a thread. */
int kvd_queue_create(uint32_t waiting_max, kvd_queue_work_fn *work, void *user,
                     struct kvd_queue **ret);

/* -KVD_E_BUSY: the line is full. */
int kvd_queue_push(struct kvd_queue *queue, struct kvd_queue_item *item);

/* Takes an item out of the line. False: it is not in it (worked on, or done). */
bool kvd_queue_remove(struct kvd_queue *queue, struct kvd_queue_item *item);

/* Waits for the item that is worked on, and ends the thread. Nothing may wait any more. Accepts
 * NULL and a pointer to NULL. */
void kvd_queue_destroy(struct kvd_queue **queue);

#endif
