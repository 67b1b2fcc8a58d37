/* A store's folder, without a daemon. */
#ifndef TOOLS_KVDEPOT_STORE_H
#define TOOLS_KVDEPOT_STORE_H

#include "proto/base/error.h"
#include "proto/format/identity.h"

/* Reads the IDENTITY in a folder. errno, -KVD_E_CORRUPT, -KVD_E_NEWER; diag says what to do. */
int kvd_store_identity(const char *folder, struct kvd_diag *diag, struct kvd_identity *ret);

#endif
