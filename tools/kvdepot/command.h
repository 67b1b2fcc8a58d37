/*
 * A subcommand of kvdepot: one file, one struct kvd_command. main.c holds the table of all. Errors
 * go to standard error and say what to do; the exit status says what kind of failure it was.
 */
#ifndef TOOLS_KVDEPOT_COMMAND_H
#define TOOLS_KVDEPOT_COMMAND_H

enum kvd_exit {
    KVD_EXIT_OK = 0,
    KVD_EXIT_FAILED = 1, /* status: the daemon is degraded; verify: something is bad; else: what
                            was asked failed */
    KVD_EXIT_UNREACHABLE = 2, /* no daemon answers */
    KVD_EXIT_USAGE = 3,
};

struct kvd_command {
    const char *name;
    const char *summary; /* one line */
    const char *help;    /* synopsis, options, examples */
    /* argv[0] is the subcommand's name. Returns an enum kvd_exit. */
    int (*run)(int argc, char **argv);
};

extern const struct kvd_command kvd_command_status;
extern const struct kvd_command kvd_command_hitrate;
extern const struct kvd_command kvd_command_verify;
extern const struct kvd_command kvd_command_purge;
extern const struct kvd_command kvd_command_key;
extern const struct kvd_command kvd_command_bench;

#define KVD_DEFAULT_SOCKET "/run/kvdepot/kvdepotd.sock"

#endif
