/*
 * Configuration of kvdepotd. Every option is declared once, in options.def; this parses flags and a
 * YAML file into a struct and prints the table. Order: flags over file over defaults. Errors name
 * the option, the file with line and column or the flag, what was wrong and what is allowed.
 */
#ifndef CACHESVC_CONFIG_CONFIG_H
#define CACHESVC_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "policies/scenario.h"
#include "proto/base/error.h"

typedef char *kvd_config_STR;
typedef char *kvd_config_ENUM;
typedef uint64_t kvd_config_BYTES;
typedef uint64_t kvd_config_U64;
typedef uint64_t kvd_config_MS;
typedef bool kvd_config_BOOL;

struct kvd_config {
#define KVD_OPTION(name, type, field, def, min, max, unit, reloadable, text)                       \
    kvd_config_##type field;
#include "cachesvc/config/options.def"
#undef KVD_OPTION
    struct kvd_scenarios *scenarios_table; /* parsed; owned */
};

/* The defaults. -ENOMEM. */
int kvd_config_init(struct kvd_config *config);
void kvd_config_fini(struct kvd_config *config);

/* Sets one option from text, as a flag would. `where` is put before messages ("--dram.cap"). */
int kvd_config_set(struct kvd_config *config, const char *name, const char *value,
                   const char *where, struct kvd_diag *diag);

/* Reads a YAML file over what is set. */
int kvd_config_read_file(struct kvd_config *config, const char *path, struct kvd_diag *diag);

/* Checks what one option alone can't: paths' lengths, policy names, caps against the file systems
 * and the cgroup; fills in what empty paths stand for except dram.path (it needs the store's id);
 * reads the scenarios. */
int kvd_config_finish(struct kvd_config *config, struct kvd_diag *diag);

/* What the flags of a command line ask for besides options. */
struct kvd_config_flags {
    bool help;
    bool version;
    bool list_options;
    bool check_config;
    bool drop_dram;
    const char *config_file; /* borrowed from argv */
};

/* Whole command line: finds --config, reads it, then applies the flags over it. Calls
 * kvd_config_finish unless help, version or list_options was asked for. */
int kvd_config_parse_args(struct kvd_config *config, int argc, char **argv,
                          struct kvd_config_flags *ret_flags, struct kvd_diag *diag);

void kvd_config_print_options(FILE *out); /* the table, aligned */
void kvd_config_print_values(const struct kvd_config *config,
                             FILE *out); /* as YAML that reads back to the same */

/* "64MiB", "1GB", "4096", "1.5GiB" -> bytes; "10s", "250ms", "5m" -> milliseconds. -KVD_E_CONFIG.
 */
int kvd_config_parse_bytes(const char *text, uint64_t *ret);
int kvd_config_parse_ms(const char *text, uint64_t *ret);

#endif
