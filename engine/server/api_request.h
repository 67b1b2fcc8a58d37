/* From the bytes of a request's body to a checked request. Pure; safe from any thread. */
#ifndef ENGINE_SERVER_API_REQUEST_H
#define ENGINE_SERVER_API_REQUEST_H

#include <stddef.h>

#include "engine/server/api.h"

/*
 * Parses the body of POST /v1/chat/completions. header_scenario: value of X-Cache-Scenario, or
 * NULL. Everything that the contract does not know or this engine cannot do is refused with the
 * field's name in the error; nothing is ignored silently. -KVD_E_BAD_REQUEST with error (status
 * 400), -ENOMEM.
 */
int kvd_api_request_parse(const char *body, size_t bytes, const char *header_scenario,
                          struct kvd_api_error *error, struct kvd_api_request **ret);
void kvd_api_request_destroy(struct kvd_api_request **request);

/* Whether the request's model, where it names one, is this one. -KVD_E_BAD_REQUEST with error. */
int kvd_api_request_check_model(const struct kvd_api_request *request, const char *model,
                                struct kvd_api_error *error);

#endif
