#include "cachesvc/core/workers.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "proto/base/assert.h"

struct kvd_workers {
    pthread_mutex_t mtx;
    pthread_cond_t wake;
    struct kvd_list queue; /* lock: mtx */
    bool stop;             /* lock: mtx */
    uint32_t n;
    pthread_t threads[];
};

static void *worker_main(void *arg)
{
    struct kvd_workers *w = arg;
    (void)pthread_mutex_lock(&w->mtx);
    for (;;) {
        struct kvd_list *link = kvd_list_pop_front(&w->queue);
        if (link) {
            (void)pthread_mutex_unlock(&w->mtx);
            struct kvd_work *work = KVD_CONTAINER_OF(link, struct kvd_work, link);
            work->run(work);
            (void)pthread_mutex_lock(&w->mtx);
        } else if (w->stop) {
            break;
        } else {
            (void)pthread_cond_wait(&w->wake, &w->mtx);
        }
    }
    (void)pthread_mutex_unlock(&w->mtx);
    return NULL;
}

int kvd_workers_create(uint32_t threads, struct kvd_workers **ret)
{
    struct kvd_workers *w = calloc(1, sizeof(*w) + threads * sizeof(pthread_t));
    if (!w) {
        return -ENOMEM;
    }
    (void)pthread_mutex_init(&w->mtx, NULL);
    (void)pthread_cond_init(&w->wake, NULL);
    kvd_list_init(&w->queue);
    for (; w->n < threads; w->n++) {
        int err = pthread_create(&w->threads[w->n], NULL, worker_main, w);
        if (err) {
            kvd_workers_destroy(&w);
            return -err;
        }
    }
    *ret = w;
    return 0;
}

void kvd_workers_destroy(struct kvd_workers **workers)
{
    struct kvd_workers *w = *workers;
    if (!w) {
        return;
    }
    *workers = NULL;
    (void)pthread_mutex_lock(&w->mtx);
    w->stop = true;
    (void)pthread_cond_broadcast(&w->wake);
    (void)pthread_mutex_unlock(&w->mtx);
    for (uint32_t i = 0; i < w->n; i++) {
        (void)pthread_join(w->threads[i], NULL);
    }
    KVD_ASSERT(kvd_list_empty(&w->queue));
    (void)pthread_cond_destroy(&w->wake);
    (void)pthread_mutex_destroy(&w->mtx);
    free(w);
}

void kvd_workers_submit(struct kvd_workers *w, struct kvd_work *work)
{
    (void)pthread_mutex_lock(&w->mtx);
    kvd_list_push_back(&w->queue, &work->link);
    (void)pthread_cond_signal(&w->wake);
    (void)pthread_mutex_unlock(&w->mtx);
}
