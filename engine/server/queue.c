/* One thread that works, a bounded line of those that wait. See queue.h. */
#include "engine/server/queue.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "proto/base/assert.h"
#include "proto/base/error.h"

#define QUEUE_MAGIC 0x75657571U

struct kvd_queue {
    uint32_t magic;
    kvd_queue_work_fn *work;
    void *user;
    uint32_t waiting_max;
    pthread_t thread;
    pthread_mutex_t mtx;
    pthread_cond_t changed;
    struct kvd_list line; /* lock: mtx, as all below */
    uint32_t waiting;
    bool working;
    bool ending;
};

static void *queue_thread(void *arg)
{
    struct kvd_queue *q = arg;
    (void)pthread_mutex_lock(&q->mtx);
    for (;;) {
        struct kvd_list *link = kvd_list_pop_front(&q->line);
        if (link) {
            q->waiting--;
            q->working = true;
            (void)pthread_mutex_unlock(&q->mtx);
            q->work(KVD_CONTAINER_OF(link, struct kvd_queue_item, link), q->user);
            (void)pthread_mutex_lock(&q->mtx);
            q->working = false;
        } else if (q->ending) {
            break;
        } else {
            /* no deadline: it ends by a push or by kvd_queue_destroy, both of which are ours */
            (void)pthread_cond_wait(&q->changed, &q->mtx);
        }
    }
    (void)pthread_mutex_unlock(&q->mtx);
    return NULL;
}

int kvd_queue_create(uint32_t waiting_max, kvd_queue_work_fn *work, void *user,
                     struct kvd_queue **ret)
{
    struct kvd_queue *q = calloc(1, sizeof(*q));
    if (!q) {
        return -ENOMEM;
    }
    KVD_MAGIC_SET(q, QUEUE_MAGIC);
    q->work = work;
    q->user = user;
    q->waiting_max = waiting_max;
    kvd_list_init(&q->line);
    (void)pthread_mutex_init(&q->mtx, NULL);
    (void)pthread_cond_init(&q->changed, NULL);
    const int err = pthread_create(&q->thread, NULL, queue_thread, q);
    if (err) {
        (void)pthread_cond_destroy(&q->changed);
        (void)pthread_mutex_destroy(&q->mtx);
        free(q);
        return -err;
    }
    *ret = q;
    return 0;
}

int kvd_queue_push(struct kvd_queue *queue, struct kvd_queue_item *item)
{
    KVD_MAGIC_CHECK(queue, QUEUE_MAGIC);
    int rc = -KVD_E_BUSY;
    (void)pthread_mutex_lock(&queue->mtx);
    /* counted together: an item just pushed waits until the thread wakes, and must not take a place
     * from the line */
    if (queue->waiting + queue->working <= queue->waiting_max) {
        kvd_list_push_back(&queue->line, &item->link);
        queue->waiting++;
        (void)pthread_cond_signal(&queue->changed);
        rc = 0;
    }
    (void)pthread_mutex_unlock(&queue->mtx);
    return rc;
}

bool kvd_queue_remove(struct kvd_queue *queue, struct kvd_queue_item *item)
{
    KVD_MAGIC_CHECK(queue, QUEUE_MAGIC);
    (void)pthread_mutex_lock(&queue->mtx);
    const bool waits = !kvd_list_empty(&item->link);
    if (waits) {
        kvd_list_remove(&item->link);
        queue->waiting--;
    }
    (void)pthread_mutex_unlock(&queue->mtx);
    return waits;
}

void kvd_queue_destroy(struct kvd_queue **queue)
{
    if (!queue || !*queue) {
        return;
    }
    struct kvd_queue *q = *queue;
    KVD_MAGIC_CHECK(q, QUEUE_MAGIC);
    (void)pthread_mutex_lock(&q->mtx);
    KVD_ASSERT(kvd_list_empty(&q->line));
    q->ending = true;
    (void)pthread_cond_signal(&q->changed);
    (void)pthread_mutex_unlock(&q->mtx);
    (void)pthread_join(q->thread, NULL);
    (void)pthread_cond_destroy(&q->changed);
    (void)pthread_mutex_destroy(&q->mtx);
    KVD_MAGIC_CLEAR(q);
    free(q);
    *queue = NULL;
}
