/* Parts of reports that lie in files of their own; for the files of core/ only. */
#ifndef CACHESVC_CORE_REPORT_PRIVATE_H
#define CACHESVC_CORE_REPORT_PRIVATE_H

#include <jansson.h>

#include "cachesvc/core/service_private.h"

enum { REPORT_SCHEMA = 1 };

/* For status: where the scrub is, and whether the threads that keep house are alive. */
json_t *report_scrub(struct kvd_service *service);
json_t *report_threads(struct kvd_service *service);
/* Appends what is wrong, in words. */
void report_scrub_problems(struct kvd_service *service, json_t *list);

/* The course of the latest round, and every quarantined record. 0 or -ENOMEM. */
int report_verify(struct kvd_service *service, json_t **ret);

/* The store's id and the seed of its keys. NULL: no memory. */
json_t *report_identity(struct kvd_service *service);
/* What is stored under an address, "KEY/RANK/INDEX/GROUP/SPACE/TENANT". -KVD_E_BAD_REQUEST,
 * -KVD_E_IO; *ret NULL: no memory. */
int report_block(struct kvd_service *service, const char *address, struct kvd_diag *diag,
                 json_t **ret);

#endif
