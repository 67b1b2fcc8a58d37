#include "cachesvc/core/owners.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "proto/format/record.h"

enum { OWNERS_ROWS = 1 << 14, OWNERS_WAYS = 4 };

struct owners_row {
    uint64_t tokens; /* digest of the first block's tokens; 0: free */
    uint64_t owner;  /* digest of space and tenant */
};

struct kvd_owners {
    pthread_mutex_t mtx;
    struct owners_row rows[OWNERS_ROWS][OWNERS_WAYS]; /* lock: mtx. Newest first */
};

int kvd_owners_create(struct kvd_owners **ret)
{
    struct kvd_owners *o = calloc(1, sizeof(*o));
    if (!o) {
        return -ENOMEM;
    }
    (void)pthread_mutex_init(&o->mtx, NULL);
    *ret = o;
    return 0;
}

void kvd_owners_destroy(struct kvd_owners **owners)
{
    if (*owners) {
        (void)pthread_mutex_destroy(&(*owners)->mtx);
        free(*owners);
        *owners = NULL;
    }
}

static struct owners_row row_of(const uint32_t *tokens, uint32_t n, const struct kvd_digest *space,
                                const struct kvd_digest *tenant)
{
    struct kvd_digest both[2] = {*space, *tenant};
    struct owners_row row = {
        .tokens = kvd_sum(tokens, (uint64_t)n * sizeof(*tokens)) | 1,
        .owner = kvd_sum(both, sizeof(both)),
    };
    return row;
}

void kvd_owners_note(struct kvd_owners *o, const uint32_t *tokens, uint32_t n,
                     const struct kvd_digest *space, const struct kvd_digest *tenant)
{
    struct owners_row row = row_of(tokens, n, space, tenant);
    (void)pthread_mutex_lock(&o->mtx);
    struct owners_row *ways = o->rows[row.tokens / 2 % OWNERS_ROWS];
    uint32_t at = 0; /* of the row that goes: itself, else the oldest */
    while (at < OWNERS_WAYS - 1 && (ways[at].tokens != row.tokens || ways[at].owner != row.owner)) {
        at++;
    }
    for (; at > 0; at--) {
        ways[at] = ways[at - 1];
    }
    ways[0] = row;
    (void)pthread_mutex_unlock(&o->mtx);
}

bool kvd_owners_other(struct kvd_owners *o, const uint32_t *tokens, uint32_t n,
                      const struct kvd_digest *space, const struct kvd_digest *tenant)
{
    struct owners_row row = row_of(tokens, n, space, tenant);
    bool other = false;
    (void)pthread_mutex_lock(&o->mtx);
    const struct owners_row *ways = o->rows[row.tokens / 2 % OWNERS_ROWS];
    for (uint32_t i = 0; i < OWNERS_WAYS; i++) {
        other = other || (ways[i].tokens == row.tokens && ways[i].owner != row.owner);
    }
    (void)pthread_mutex_unlock(&o->mtx);
    return other;
}
