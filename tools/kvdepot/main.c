/*
 * kvdepot: the administrator's command. It asks the daemon through libkvdepot and shows what it
 * answers.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "kvdepot/kvdepot.h"
#include "tools/kvdepot/command.h"

static const struct kvd_command *const commands[] = {
    &kvd_command_status, &kvd_command_hitrate, &kvd_command_key,
    &kvd_command_verify, &kvd_command_purge,   &kvd_command_bench,
};

enum { COMMANDS = sizeof(commands) / sizeof(commands[0]) };

static void usage(FILE *out)
{
    (void)fprintf(out, "usage: kvdepot COMMAND [options]\n\n");
    for (int i = 0; i < COMMANDS; i++) {
        (void)fprintf(out, "  %-9s %s\n", commands[i]->name, commands[i]->summary);
    }
    (void)fprintf(out, "\nkvdepot COMMAND --help shows options and examples.\n"
                       "Exit status: 0 fine, 1 degraded or failed, 2 no daemon answers, 3 wrong "
                       "usage.\n");
}

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return true;
        }
    }
    return false;
}

static const struct kvd_command *command_find(const char *name)
{
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(commands[i]->name, name) == 0) {
            return commands[i];
        }
    }
    return NULL;
}

static int run(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return KVD_EXIT_USAGE;
    }
    const struct kvd_command *command = command_find(argv[1]);
    if (command) {
        if (asks_for_help(argc - 1, argv + 1)) {
            (void)fputs(command->help, stdout);
            return KVD_EXIT_OK;
        }
        return command->run(argc - 1, argv + 1);
    }
    if (strcmp(argv[1], "--version") == 0) {
        (void)printf("kvdepot %d.%d\n", KVD_VERSION_MAJOR, KVD_VERSION_MINOR);
        return KVD_EXIT_OK;
    }
    if (strcmp(argv[1], "help") == 0 || asks_for_help(argc, argv)) {
        usage(stdout);
        return KVD_EXIT_OK;
    }
    (void)fprintf(stderr, "kvdepot: there is no command '%s'\n\n", argv[1]);
    usage(stderr);
    return KVD_EXIT_USAGE;
}

/*
 * Whoever reads the output must not take a part of it for all of it. stdio may keep everything back
 * until now, so only this flush shows whether it arrived.
 */
static int output_finish(int status)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) {
        return status;
    }
    (void)fprintf(stderr,
                  "kvdepot: standard output could not be written%s%s: make room where it goes, or "
                  "send it elsewhere\n",
                  errno ? ": " : "", errno ? strerror(errno) : "");
    return status == KVD_EXIT_OK ? KVD_EXIT_FAILED : status;
}

int main(int argc, char **argv)
{
    return output_finish(run(argc, argv));
}
