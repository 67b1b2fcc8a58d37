/* The options as a table, made from options.def; for the files of this folder only. */
#ifndef CACHESVC_CONFIG_OPTION_H
#define CACHESVC_CONFIG_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cachesvc/config/config.h"

enum kvd_option_type {
    KVD_OPTION_STR,
    KVD_OPTION_BYTES,
    KVD_OPTION_U64,
    KVD_OPTION_MS,
    KVD_OPTION_BOOL,
    KVD_OPTION_ENUM
};

struct kvd_option {
    const char *name;
    enum kvd_option_type type;
    size_t offset; /* in struct kvd_config */
    const char *def;
    uint64_t min;             /* BYTES, U64, MS */
    uint64_t max;             /* BYTES, U64, MS */
    const char *alternatives; /* ENUM: "a|b|c"; otherwise NULL */
    const char *unit;
    const char *text;
};

enum {
    KVD_OPTION_NAME_MAX = 48, /* longest name, for buffers; a test holds the table to it */
    KVD_OPTION_COUNT = 0
#define KVD_OPTION(...) +1
#include "cachesvc/config/options.def"
#undef KVD_OPTION
};

extern const struct kvd_option kvd_options[KVD_OPTION_COUNT];

/* NULL when there is none. */
const struct kvd_option *kvd_option_by_name(const char *name);

/* The name that is most like a wrong one, or NULL when none is near. `extra` are further names,
 * ended by NULL. */
const char *kvd_option_nearest(const char *name, const char *const *extra);

/* Pointers to an option's value in a configuration. */
static inline uint64_t *kvd_option_u64(const struct kvd_option *o, struct kvd_config *config)
{
    return (uint64_t *)(void *)((char *)config + o->offset);
}

static inline char **kvd_option_str(const struct kvd_option *o, struct kvd_config *config)
{
    return (char **)(void *)((char *)config + o->offset);
}

static inline bool *kvd_option_bool(const struct kvd_option *o, struct kvd_config *config)
{
    return (bool *)(void *)((char *)config + o->offset);
}

static inline bool kvd_option_is_text(const struct kvd_option *o)
{
    return o->type == KVD_OPTION_STR || o->type == KVD_OPTION_ENUM;
}

static inline bool kvd_option_is_number(const struct kvd_option *o)
{
    return o->type == KVD_OPTION_BYTES || o->type == KVD_OPTION_U64 || o->type == KVD_OPTION_MS;
}

/* Number of an option as text that parses to the same: "1GiB", "10s", "64". */
enum { KVD_OPTION_NUMBER_BYTES = 32 };
void kvd_option_format(const struct kvd_option *o, uint64_t v,
                       char ret_text[KVD_OPTION_NUMBER_BYTES]);

/* What is allowed for an option, for messages: "true or false". */
void kvd_option_allowed(const struct kvd_option *o, char *ret_text, size_t bytes);

/* What concerns one option alone but is more than its range (a path's length, a policy's name).
 * `where` as in kvd_config_set. */
int kvd_option_check(const struct kvd_option *o, const char *value, const char *where,
                     struct kvd_diag *diag);

#endif
