#include "cachesvc/core/watch.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "proto/base/assert.h"
#include "proto/base/clock.h"
#include "proto/base/protect.h"

struct kvd_watch {
    pthread_mutex_t mtx;
    pthread_cond_t wake;
    struct kvd_list all; /* lock: mtx. In no order: loads under way are few */
    uint64_t wakes_ns;   /* lock: mtx. When the thread looks next; 0: it is awake */
    bool stop;           /* lock: mtx */
    void (*tick)(void *user);
    void *user;
    pthread_t thread;
};

/* lock: mtx. Runs what is late; returns when the next deadline is, `until` at the latest. */
static uint64_t run_late(struct kvd_watch *watch, uint64_t now_ns, uint64_t until_ns)
{
    kvd_list_foreach_safe (it, &watch->all) {
        struct kvd_watched *w = KVD_CONTAINER_OF(it, struct kvd_watched, link);
        if (KVD_PROTECT(LATE_IS_ANSWERED) && w->deadline_ns <= now_ns) {
            kvd_list_remove(&w->link);
            w->late(w);
        } else if (w->deadline_ns < until_ns) {
            until_ns = w->deadline_ns;
        }
    }
    return until_ns;
}

static void *watch_main(void *arg)
{
    struct kvd_watch *watch = arg;
    uint64_t tick_ns = kvd_mono_ns();
    (void)pthread_mutex_lock(&watch->mtx);
    while (!watch->stop) {
        uint64_t now_ns = kvd_mono_ns();
        if (now_ns >= tick_ns) {
            tick_ns = now_ns + KVD_NS_PER_S;
            (void)pthread_mutex_unlock(&watch->mtx);
            watch->tick(watch->user);
            (void)pthread_mutex_lock(&watch->mtx);
            continue;
        }
        uint64_t next_ns = run_late(watch, now_ns, tick_ns);
        const struct timespec until = {.tv_sec = (time_t)(next_ns / KVD_NS_PER_S),
                                       .tv_nsec = (long)(next_ns % KVD_NS_PER_S)};
        watch->wakes_ns = next_ns;
        (void)pthread_cond_timedwait(&watch->wake, &watch->mtx, &until);
        watch->wakes_ns = 0;
    }
    (void)pthread_mutex_unlock(&watch->mtx);
    return NULL;
}

int kvd_watch_create(void (*tick)(void *user), void *user, struct kvd_watch **ret)
{
    struct kvd_watch *watch = calloc(1, sizeof(*watch));
    if (!watch) {
        return -ENOMEM;
    }
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&watch->mtx, NULL);
    (void)pthread_cond_init(&watch->wake, &attr);
    (void)pthread_condattr_destroy(&attr);
    kvd_list_init(&watch->all);
    watch->tick = tick;
    watch->user = user;
    int err = -pthread_create(&watch->thread, NULL, watch_main, watch);
    if (err) {
        (void)pthread_cond_destroy(&watch->wake);
        (void)pthread_mutex_destroy(&watch->mtx);
        free(watch);
        return err;
    }
    *ret = watch;
    return 0;
}

void kvd_watch_destroy(struct kvd_watch **at)
{
    struct kvd_watch *watch = *at;
    if (!watch) {
        return;
    }
    *at = NULL;
    (void)pthread_mutex_lock(&watch->mtx);
    watch->stop = true;
    (void)pthread_cond_signal(&watch->wake);
    (void)pthread_mutex_unlock(&watch->mtx);
    (void)pthread_join(watch->thread, NULL);
    KVD_ASSERT(kvd_list_empty(&watch->all));
    (void)pthread_cond_destroy(&watch->wake);
    (void)pthread_mutex_destroy(&watch->mtx);
    free(watch);
}

void kvd_watch_add(struct kvd_watch *watch, struct kvd_watched *w)
{
    (void)pthread_mutex_lock(&watch->mtx);
    kvd_list_push_back(&watch->all, &w->link);
    if (w->deadline_ns < watch->wakes_ns) { /* seldom: so a load mostly wakes nobody */
        (void)pthread_cond_signal(&watch->wake);
    }
    (void)pthread_mutex_unlock(&watch->mtx);
}

bool kvd_watch_end(struct kvd_watch *watch, struct kvd_watched *w)
{
    (void)pthread_mutex_lock(&watch->mtx);
    bool in_time = !kvd_list_empty(&w->link);
    kvd_list_remove(&w->link);
    (void)pthread_mutex_unlock(&watch->mtx);
    return in_time;
}
