/* Retention: see policy.h. Last use is kept by the day, so a block's real age is known to within a
 * day; counting from the end of that day errs towards keeping. */
#include "policies/policy.h"

uint64_t kvd_retention_expiry_s(const struct kvd_scenario *scenario, uint32_t last_use_day,
                                uint32_t created_day)
{
    uint64_t day = scenario->sliding ? last_use_day : created_day;
    return (day + 1) * KVD_DAY_S + scenario->retention_s;
}

const struct kvd_scenario *kvd_retention_longer(const struct kvd_scenario *a,
                                                const struct kvd_scenario *b)
{
    if (a->retention_s != b->retention_s) {
        return a->retention_s > b->retention_s ? a : b;
    }
    /* as long, but every use begins it anew */
    return b->sliding && !a->sliding ? b : a;
}
