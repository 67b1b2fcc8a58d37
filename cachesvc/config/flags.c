/*
 * The command line: "--name=value" or "--name value" for every option, and the plain flags below.
 * Two passes: the first sorts out what each argument is and finds --config, so that the file is
 * read before the flags are laid over it. Where a flag comes twice, the later one counts.
 */
#include <stdio.h>
#include <string.h>

#include "cachesvc/config/option.h"

enum plain_flag {
    PLAIN_CONFIG,
    PLAIN_HELP,
    PLAIN_VERSION,
    PLAIN_LIST_OPTIONS,
    PLAIN_CHECK_CONFIG,
    PLAIN_DROP_DRAM,
    PLAIN_COUNT
};

static const char *const plain_names[PLAIN_COUNT + 1] = {
    "config", "help", "version", "list-options", "check-config", "drop-dram", NULL,
};

/* One flag of the command line, taken apart. */
struct flag {
    char name[KVD_OPTION_NAME_MAX + 1];
    const char *value; /* NULL: none was given */
    int args;          /* how many arguments it took */
};

static int plain_of(const char *name)
{
    int i = 0;
    while (i < PLAIN_COUNT && strcmp(plain_names[i], name) != 0) {
        i++;
    }
    return i;
}

static int fail_unknown(const char *arg, const char *name, struct kvd_diag *diag)
{
    const char *near = kvd_option_nearest(name, plain_names);
    return kvd_fail(diag, -KVD_E_CONFIG, "%.100s: no such flag; %s%s%s", arg,
                    near ? "did you mean --" : "--list-options shows all", near ? near : "",
                    near ? "?" : "");
}

static int flag_name(const char *arg, struct flag *f, struct kvd_diag *diag)
{
    if (strncmp(arg, "--", 2) != 0 || !arg[2]) {
        return kvd_fail(diag, -KVD_E_CONFIG, "%.100s: not a flag; --name=value is allowed", arg);
    }
    size_t n = strcspn(arg + 2, "=");
    if (n >= sizeof(f->name)) {
        return fail_unknown(arg, arg + 2, diag);
    }
    memcpy(f->name, arg + 2, n);
    f->name[n] = 0;
    f->value = arg[2 + n] == '=' ? arg + 3 + n : NULL;
    f->args = 1;
    return 0;
}

static int flag_read(int left, char **argv, struct flag *f, struct kvd_diag *diag)
{
    int err = flag_name(argv[0], f, diag);
    if (err) {
        return err;
    }
    int plain = plain_of(f->name);
    if (plain == PLAIN_COUNT && !kvd_option_by_name(f->name)) {
        return fail_unknown(argv[0], f->name, diag);
    }
    if (plain != PLAIN_COUNT && plain != PLAIN_CONFIG) {
        return f->value ? kvd_fail(diag, -KVD_E_CONFIG,
                                   "--%s takes no value; leave out \"=%.100s\"", f->name, f->value)
                        : 0;
    }
    /* a value may well begin with one dash; two are the next flag, and the value was forgotten */
    if (!f->value && left > 1 && strncmp(argv[1], "--", 2) != 0) {
        f->value = argv[1];
        f->args = 2;
    }
    if (!f->value) {
        return kvd_fail(diag, -KVD_E_CONFIG, "--%s has no value; write --%s=%s", f->name, f->name,
                        plain == PLAIN_CONFIG ? "FILE" : kvd_option_by_name(f->name)->def);
    }
    return 0;
}

static int take_plain(const struct flag *f, struct kvd_config_flags *flags, struct kvd_diag *diag)
{
    switch (plain_of(f->name)) {
    case PLAIN_CONFIG:
        if (flags->config_file) {
            return kvd_fail(diag, -KVD_E_CONFIG, "--config a second time; one file is allowed");
        }
        flags->config_file = f->value;
        return 0;
    case PLAIN_HELP:
        flags->help = true;
        return 0;
    case PLAIN_VERSION:
        flags->version = true;
        return 0;
    case PLAIN_LIST_OPTIONS:
        flags->list_options = true;
        return 0;
    case PLAIN_CHECK_CONFIG:
        flags->check_config = true;
        return 0;
    case PLAIN_DROP_DRAM:
        flags->drop_dram = true;
        return 0;
    default:
        return 0;
    }
}

static int take_options(struct kvd_config *config, int argc, char **argv, struct kvd_diag *diag)
{
    int err = 0;
    struct flag f = {.args = 1};
    for (int i = 1; !err && i < argc; i += f.args) {
        err = flag_read(argc - i, argv + i, &f, diag);
        if (!err && plain_of(f.name) == PLAIN_COUNT) {
            char where[KVD_OPTION_NAME_MAX + 3];
            (void)snprintf(where, sizeof(where), "--%s", f.name);
            err = kvd_config_set(config, f.name, f.value, where, diag);
        }
    }
    return err;
}

int kvd_config_parse_args(struct kvd_config *config, int argc, char **argv,
                          struct kvd_config_flags *ret_flags, struct kvd_diag *diag)
{
    struct kvd_config_flags flags = {0};
    struct flag f = {.args = 1};
    for (int i = 1; i < argc; i += f.args) {
        int err = flag_read(argc - i, argv + i, &f, diag);
        err = err ? err : take_plain(&f, &flags, diag);
        if (err) {
            return err;
        }
    }
    int err = 0;
    if (!flags.help && !flags.version && !flags.list_options) {
        err = flags.config_file ? kvd_config_read_file(config, flags.config_file, diag) : 0;
        err = err ? err : take_options(config, argc, argv, diag);
        err = err ? err : kvd_config_finish(config, diag);
    }
    if (!err) {
        *ret_flags = flags;
    }
    return err;
}
