/* The table of options, look-up by name, and the name that a mistyped one was meant to be. */
#include "cachesvc/config/option.h"

#include <string.h>

/* min is a number for types that have a range, and the string of alternatives for ENUM: each type
 * picks what it knows how to read. */
#define NUMBER_STR(v) 0
#define NUMBER_ENUM(v) 0
#define NUMBER_BOOL(v) 0
#define NUMBER_BYTES(v) (v)
#define NUMBER_U64(v) (v)
#define NUMBER_MS(v) (v)
#define WORDS_STR(v) NULL
#define WORDS_ENUM(v) (v)
#define WORDS_BOOL(v) NULL
#define WORDS_BYTES(v) NULL
#define WORDS_U64(v) NULL
#define WORDS_MS(v) NULL

const struct kvd_option kvd_options[KVD_OPTION_COUNT] = {
#define KVD_OPTION(name_, type_, field_, def_, min_, max_, unit_, reloadable_, text_)              \
    {.name = (name_),                                                                              \
     .type = KVD_OPTION_##type_,                                                                   \
     .offset = offsetof(struct kvd_config, field_),                                                \
     .def = (def_),                                                                                \
     .min = NUMBER_##type_(min_),                                                                  \
     .max = NUMBER_##type_(max_),                                                                  \
     .alternatives = WORDS_##type_(min_),                                                          \
     .unit = (unit_),                                                                              \
     .text = (text_)},
#include "cachesvc/config/options.def"
#undef KVD_OPTION
};

const struct kvd_option *kvd_option_by_name(const char *name)
{
    for (size_t i = 0; i < KVD_OPTION_COUNT; i++) {
        if (strcmp(kvd_options[i].name, name) == 0) {
            return &kvd_options[i];
        }
    }
    return NULL;
}

/* Edits (insert, delete, replace) that lead from a to b; both at most KVD_OPTION_NAME_MAX. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t row[KVD_OPTION_NAME_MAX + 1];
    size_t n = strlen(b);
    for (size_t j = 0; j <= n; j++) {
        row[j] = j;
    }
    for (size_t i = 1; a[i - 1]; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            best = row[j] + 1 < best ? row[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[n];
}

struct nearest {
    const char *name;
    size_t distance;
};

static void consider(struct nearest *best, const char *wrong, const char *candidate)
{
    size_t d = edit_distance(wrong, candidate);
    if (d < best->distance) {
        best->distance = d;
        best->name = candidate;
    }
}

const char *kvd_option_nearest(const char *name, const char *const *extra)
{
    size_t len = strlen(name);
    if (len > KVD_OPTION_NAME_MAX) {
        return NULL;
    }
    /* more than a third wrong is another word, not a slip */
    struct nearest best = {.name = NULL, .distance = len / 3 + 2};
    for (size_t i = 0; i < KVD_OPTION_COUNT; i++) {
        consider(&best, name, kvd_options[i].name);
    }
    for (; *extra; extra++) {
        consider(&best, name, *extra);
    }
    return best.name;
}
