/* The messages of a request. Used by api_request.c. */
#ifndef ENGINE_SERVER_API_MESSAGES_H
#define ENGINE_SERVER_API_MESSAGES_H

#include <jansson.h>

#include "engine/server/api.h"

/* Reads the array into request->messages. -KVD_E_BAD_REQUEST with error, -ENOMEM. */
int kvd_api_messages_read(const json_t *value, struct kvd_api_request *request,
                          struct kvd_api_error *error);

#endif
