/* Options of a subcommand: see args.h. */
#include "tools/kvdepot/args.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct kvd_arg *arg_find(const char *name, size_t length, const struct kvd_arg *args,
                                      int n_args)
{
    for (int i = 0; i < n_args; i++) {
        if (strlen(args[i].name) == length && memcmp(args[i].name, name, length) == 0) {
            return &args[i];
        }
    }
    return NULL;
}

static int arg_set_uint(const struct kvd_arg *arg, const char *value, struct kvd_diag *diag)
{
    char *end = NULL;
    errno = 0;
    unsigned long number = strtoul(value, &end, 10);
    if (errno || end == value || *end || value[0] == '-' || number < 1 || number > 1000000) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST,
                        "--%s takes a whole number from 1 to 1000000, not '%s'", arg->name, value);
    }
    *(unsigned *)arg->target = (unsigned)number;
    return 0;
}

static int arg_set(const struct kvd_arg *arg, const char *value, struct kvd_diag *diag)
{
    if (arg->kind == KVD_ARG_UINT) {
        return arg_set_uint(arg, value, diag);
    }
    *(const char **)arg->target = value;
    return 0;
}

int kvd_args_parse(int argc, char **argv, const struct kvd_arg *args, int n_args,
                   struct kvd_diag *diag)
{
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) != 0 || argv[i][2] == '\0') {
            return kvd_fail(diag, -KVD_E_BAD_REQUEST,
                            "'%s' is not an option; see kvdepot %s --help", argv[i], argv[0]);
        }
        const char *name = argv[i] + 2;
        const char *equals = strchr(name, '=');
        size_t length = equals ? (size_t)(equals - name) : strlen(name);
        const struct kvd_arg *arg = arg_find(name, length, args, n_args);
        if (!arg) {
            return kvd_fail(diag, -KVD_E_BAD_REQUEST,
                            "there is no option --%.*s; see kvdepot %s --help", (int)length, name,
                            argv[0]);
        }
        if (arg->kind == KVD_ARG_FLAG) {
            if (equals) {
                return kvd_fail(diag, -KVD_E_BAD_REQUEST, "--%s takes no value", arg->name);
            }
            *(bool *)arg->target = true;
            continue;
        }
        if (!equals && i + 1 == argc) {
            return kvd_fail(diag, -KVD_E_BAD_REQUEST, "--%s needs a value", arg->name);
        }
        int err = arg_set(arg, equals ? equals + 1 : argv[++i], diag);
        if (err) {
            return err;
        }
    }
    return 0;
}
