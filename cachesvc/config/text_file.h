/* A whole small text file in memory; for the files of this folder only. */
#ifndef CACHESVC_CONFIG_TEXT_FILE_H
#define CACHESVC_CONFIG_TEXT_FILE_H

#include <stddef.h>

#include "proto/base/error.h"

/* *ret_text is the caller's to free, and is terminated. -KVD_E_CONFIG when it cannot be read or is
 * larger than 1 MiB, -ENOMEM. */
int kvd_text_file_read(const char *path, struct kvd_diag *diag, char **ret_text, size_t *ret_bytes);

#endif
