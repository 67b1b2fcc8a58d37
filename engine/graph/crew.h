/*
 * Threads that compute one thing together: the caller and threads - 1 workers. A job is a function
 * that all of them run; inside it, work is claimed in ranges (so that a slow core takes less), and
 * a barrier separates what depends on each other. Waiting spins a little, then sleeps: a core may
 * be shared. A crew has one caller at a time.
 */
#ifndef ENGINE_GRAPH_CREW_H
#define ENGINE_GRAPH_CREW_H

#include <stdbool.h>
#include <stdint.h>

enum { KVD_CREW_THREADS_MAX = 64 };

struct kvd_crew;

typedef void kvd_crew_fn(void *user, struct kvd_crew *crew, uint32_t thread);

/* threads: 1 to 64, the caller included. */
int kvd_crew_create(uint32_t threads, struct kvd_crew **ret);
void kvd_crew_destroy(struct kvd_crew **crew);
uint32_t kvd_crew_threads(const struct kvd_crew *crew);

/* Runs fn on every thread; returns when all have ended. The caller is thread 0. */
void kvd_crew_run(struct kvd_crew *crew, kvd_crew_fn *fn, void *user);

/* Inside a job: takes the next at most `grain` of [0, total) that nobody took since the last
 * barrier. False: none is left. */
bool kvd_crew_claim(struct kvd_crew *crew, uint32_t total, uint32_t grain, uint32_t *ret_first,
                    uint32_t *ret_end);
/* Inside a job: waits until every thread is here; then claims begin at 0 again. */
void kvd_crew_barrier(struct kvd_crew *crew);

#endif
