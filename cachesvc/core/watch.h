/*
 * Deadlines: a thread that answers what is late. It touches no device and no index, so that it goes
 * on while those hang.
 */
#ifndef CACHESVC_CORE_WATCH_H
#define CACHESVC_CORE_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/list.h"

struct kvd_watch;

/* Something with a deadline. Embedded in what it is about. */
struct kvd_watched {
    uint64_t deadline_ns;
    void (*late)(struct kvd_watched *w); /* at the deadline, on the watch's thread, which waits for
                                            it: short; must not call the watch */
    struct kvd_list link;                /* the watch's */
};

/* tick runs about once a second, on the watch's thread. */
int kvd_watch_create(void (*tick)(void *user), void *user, struct kvd_watch **ret);
void kvd_watch_destroy(struct kvd_watch **watch); /* nothing is watched any more; accepts NULL */

void kvd_watch_add(struct kvd_watch *watch, struct kvd_watched *w);
/* It is over. False: `late` has run (and returned). True: it never will. */
bool kvd_watch_end(struct kvd_watch *watch, struct kvd_watched *w);

#endif
