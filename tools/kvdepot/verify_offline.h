/*
 * Reading a store's segments without a daemon: by the formats of proto alone, and without changing
 * anything. A running daemon has the folder locked, and then this is refused.
 */
#ifndef TOOLS_KVDEPOT_VERIFY_OFFLINE_H
#define TOOLS_KVDEPOT_VERIFY_OFFLINE_H

#include <jansson.h>

#include "proto/base/error.h"

/* `folder` is a store's folder (with nvme/ in it) or the folder of its segments. The report has the
 * shape of verify_view.h, but the number of a segment is the one in its file's name, and each bad
 * row has "file" too. The caller owns *ret_report. -KVD_E_IN_USE; -KVD_E_NOT_FOUND (no store
 * there); errno. `stop` is asked between records; when it says so: -EINTR. */
int kvd_verify_offline(const char *folder, bool (*stop)(void), json_t **ret_report,
                       struct kvd_diag *diag);

#endif
