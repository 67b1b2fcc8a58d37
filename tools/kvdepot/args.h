/*
 * Options of a subcommand: `--name VALUE`, `--name=VALUE`, `--flag`. Everything else is refused.
 */
#ifndef TOOLS_KVDEPOT_ARGS_H
#define TOOLS_KVDEPOT_ARGS_H

#include <stdbool.h>

#include "proto/base/error.h"

enum kvd_arg_kind {
    KVD_ARG_FLAG,   /* target: bool * */
    KVD_ARG_STRING, /* target: const char **, borrows from argv */
    KVD_ARG_UINT,   /* target: unsigned *, 1 to 1,000,000 */
};

struct kvd_arg {
    const char *name; /* without the dashes */
    enum kvd_arg_kind kind;
    void *target; /* borrowed; keeps its value when the option is not given */
};

/* argv[0] is skipped. -KVD_E_BAD_REQUEST with a message in words. */
int kvd_args_parse(int argc, char **argv, const struct kvd_arg *args, int n_args,
                   struct kvd_diag *diag);

#endif
