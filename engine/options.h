/* Command line of kvdepot-engine, from the table options.def. */
#ifndef ENGINE_OPTIONS_H
#define ENGINE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "proto/base/error.h"

struct kvd_engine_cli {
/* strings are borrowed from argv */
#define KVD_ENGINE_STR(name, field, def, metavar, text) const char *field;
#define KVD_ENGINE_FLAG(name, field, text) bool field;
#define KVD_ENGINE_U32(name, field, def, min, max, metavar, text) uint32_t field;
#define KVD_ENGINE_U64(name, field, def, min, max, metavar, text) uint64_t field;
#define KVD_ENGINE_REAL(name, field, def, min, max, metavar, text) double field;
#include "engine/options.def"
#undef KVD_ENGINE_STR
#undef KVD_ENGINE_FLAG
#undef KVD_ENGINE_U32
#undef KVD_ENGINE_U64
#undef KVD_ENGINE_REAL
};

/* Defaults, then the flags: --name value or --name=value. -KVD_E_CONFIG with diag. Checks what the
 * flags mean together unless help or version was asked for. */
int kvd_engine_cli_parse(struct kvd_engine_cli *cli, int argc, char **argv, struct kvd_diag *diag);

void kvd_engine_cli_help(FILE *out);

/* "PORT", "HOST:PORT", "[V6]:PORT" in text; *ret_host is the caller's: free(). -KVD_E_CONFIG,
 * -ENOMEM. */
int kvd_engine_cli_address(const char *text, char **ret_host, uint16_t *ret_port,
                           struct kvd_diag *diag);

#endif
