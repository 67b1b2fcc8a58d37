/* The table of eviction policies: a new one is a file, a line in policy.h and a line here. */
#include "policies/policy.h"

#include <string.h>

const struct kvd_evict_ops *const kvd_evict_all[] = {&kvd_evict_lru, NULL};

const struct kvd_evict_ops *kvd_evict_by_name(const char *name)
{
    for (const struct kvd_evict_ops *const *ops = kvd_evict_all; *ops; ops++) {
        if (strcmp((*ops)->name, name) == 0) {
            return *ops;
        }
    }
    return NULL;
}
