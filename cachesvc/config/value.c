/* Values of options: from text, to text, and what is allowed. Numbers are strict: no leading
 * zeros, no signs, no unit that could mean two things ("12k"). */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cachesvc/config/option.h"
#include "policies/policy.h"
#include "policies/yaml_reader.h"
#include "proto/base/log.h"

enum { SOCKET_PATH_MAX = 107, FRACTION_DIGITS_MAX = 9 };

struct unit {
    const char *name;
    uint64_t scale;
};

/* ascending; the binary ones are used for printing */
static const struct unit binary_units[] = {
    {"KiB", UINT64_C(1) << 10}, {"MiB", UINT64_C(1) << 20}, {"GiB", UINT64_C(1) << 30},
    {"TiB", UINT64_C(1) << 40}, {"PiB", UINT64_C(1) << 50}, {NULL, 0},
};
static const struct unit decimal_units[] = {
    {"B", 1},
    {"kB", UINT64_C(1000)},
    {"KB", UINT64_C(1000)},
    {"MB", UINT64_C(1000000)},
    {"GB", UINT64_C(1000000000)},
    {"TB", UINT64_C(1000000000000)},
    {"PB", UINT64_C(1000000000000000)},
    {NULL, 0},
};
static const struct unit time_units[] = {
    {"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {NULL, 0},
};

static uint64_t unit_scale(const struct unit *units, const char *name)
{
    for (; units->name; units++) {
        if (strcmp(units->name, name) == 0) {
            return units->scale;
        }
    }
    return 0;
}

/* ".5" -> 5 and 10; *ret_end is where it stopped. */
static bool read_fraction(const char *text, const char **ret_end, uint64_t *ret, uint64_t *ret_tens)
{
    const char *p = text + 1;
    uint64_t v = 0;
    uint64_t tens = 1;
    for (; *p >= '0' && *p <= '9'; p++) {
        if (p - text > FRACTION_DIGITS_MAX) {
            return false;
        }
        v = v * 10 + (uint64_t)(*p - '0');
        tens *= 10;
    }
    *ret_end = p;
    *ret = v;
    *ret_tens = tens;
    return p > text + 1;
}

/* A number with a unit of either table; with a fraction where it makes a whole result. bare: the
 * scale of a number without a unit, 0 when it needs one. */
static int parse_scaled(const char *text, const struct unit *a, const struct unit *b, uint64_t bare,
                        uint64_t *ret)
{
    const char *end = NULL;
    uint64_t whole = 0;
    uint64_t part = 0;
    uint64_t tens = 1;
    bool good = kvd_number_read(text, &end, &whole);
    bool has_fraction = good && *end == '.';
    good = good && (!has_fraction || read_fraction(end, &end, &part, &tens));
    if (!good) {
        return -KVD_E_CONFIG;
    }
    uint64_t scale = *end ? unit_scale(a, end) : has_fraction ? 0 : bare;
    scale = scale ? scale : *end ? unit_scale(b, end) : 0;
    unsigned __int128 v = (unsigned __int128)whole * scale;
    unsigned __int128 extra = (unsigned __int128)part * scale;
    if (!scale || extra % tens != 0 || v + extra / tens > UINT64_MAX) {
        return -KVD_E_CONFIG;
    }
    *ret = (uint64_t)(v + extra / tens);
    return 0;
}

int kvd_config_parse_bytes(const char *text, uint64_t *ret)
{
    return parse_scaled(text, binary_units, decimal_units, 1, ret);
}

int kvd_config_parse_ms(const char *text, uint64_t *ret)
{
    return parse_scaled(text, time_units, time_units, 0, ret);
}

static int parse_u64(const char *text, uint64_t *ret)
{
    const char *end = NULL;
    uint64_t v = 0;
    if (!kvd_number_read(text, &end, &v) || *end) {
        return -KVD_E_CONFIG;
    }
    *ret = v;
    return 0;
}

/* ---- to text ---- */

void kvd_option_format(const struct kvd_option *o, uint64_t v,
                       char ret_text[KVD_OPTION_NUMBER_BYTES])
{
    const struct unit *units = o->type == KVD_OPTION_BYTES ? binary_units : time_units;
    const struct unit *best = NULL;
    for (; o->type != KVD_OPTION_U64 && units->name; units++) {
        if (v % units->scale == 0 && (v || o->type == KVD_OPTION_MS)) {
            best = v || !best ? units : best;
        }
    }
    (void)snprintf(ret_text, KVD_OPTION_NUMBER_BYTES, "%" PRIu64 "%s", best ? v / best->scale : v,
                   best ? best->name : "");
}

/* "a|b|c" -> "a, b or c" */
static void words_to_text(const char *words, char *ret_text, size_t bytes)
{
    size_t n = 0;
    for (const char *p = words; *p && n + 5 < bytes; p++) {
        if (*p != '|') {
            ret_text[n++] = *p;
            continue;
        }
        const char *glue = strchr(p + 1, '|') ? ", " : " or ";
        memcpy(ret_text + n, glue, strlen(glue));
        n += strlen(glue);
    }
    ret_text[n] = 0;
}

void kvd_option_allowed(const struct kvd_option *o, char *ret_text, size_t bytes)
{
    char min[KVD_OPTION_NUMBER_BYTES];
    char max[KVD_OPTION_NUMBER_BYTES];
    switch (o->type) {
    case KVD_OPTION_BOOL:
        (void)snprintf(ret_text, bytes, "true or false");
        return;
    case KVD_OPTION_ENUM:
        words_to_text(o->alternatives, ret_text, bytes);
        return;
    case KVD_OPTION_STR:
        (void)snprintf(ret_text, bytes, "UTF-8 text without control characters");
        return;
    case KVD_OPTION_BYTES:
    case KVD_OPTION_U64:
    case KVD_OPTION_MS:
        kvd_option_format(o, o->min, min);
        kvd_option_format(o, o->max, max);
        (void)snprintf(ret_text, bytes, "%s to %s%s", min, max,
                       o->type == KVD_OPTION_BYTES ? ", as 4096, 64MiB, 1.5GiB or 2GB,"
                       : o->type == KVD_OPTION_MS  ? ", as 250ms, 10s or 5m,"
                                                   : ", a whole number,");
        return;
    }
}

/* ---- checks of single options beyond their range ---- */

static int check_socket(const char *value, const char *where, struct kvd_diag *diag)
{
    size_t n = strlen(value);
    if (n >= 1 && n <= SOCKET_PATH_MAX) {
        return 0;
    }
    return kvd_fail(
        diag, -KVD_E_CONFIG,
        "%s is a path of %zu bytes (\"%.160s\"); 1 to %d are allowed for a Unix socket, "
        "choose a shorter folder",
        where, n, value, SOCKET_PATH_MAX);
}

static int check_dir(const char *value, const char *where, struct kvd_diag *diag)
{
    if (value[0]) {
        return 0;
    }
    return kvd_fail(diag, -KVD_E_CONFIG, "%s is empty; the path of a folder is needed", where);
}

static int check_mode(const char *value, const char *where, struct kvd_diag *diag)
{
    size_t n = strlen(value);
    bool octal = strspn(value, "01234567") == n;
    if (octal && (n == 3 || (n == 4 && value[0] == '0'))) {
        return 0;
    }
    return kvd_fail(diag, -KVD_E_CONFIG,
                    "%s is \"%.100s\"; three octal digits with or without a 0 before them are "
                    "allowed, as 0660",
                    where, value);
}

static int check_eviction(const char *value, const char *where, struct kvd_diag *diag)
{
    char names[256] = "";
    size_t n = 0;
    if (kvd_evict_by_name(value)) {
        return 0;
    }
    for (const struct kvd_evict_ops *const *ops = kvd_evict_all; *ops && n < sizeof(names); ops++) {
        n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s", n ? ", " : "", (*ops)->name);
    }
    return kvd_fail(diag, -KVD_E_CONFIG, "%s is \"%.100s\", no eviction policy; allowed: %s", where,
                    value, names);
}

static int check_log_level(const char *value, const char *where, struct kvd_diag *diag)
{
    if (kvd_log_level_parse(value) >= 0) {
        return 0;
    }
    return kvd_fail(diag, -KVD_E_CONFIG, "%s is \"%.100s\"; error, warn, info or debug is allowed",
                    where, value);
}

int kvd_option_check(const struct kvd_option *o, const char *value, const char *where,
                     struct kvd_diag *diag)
{
    static const struct {
        const char *name;
        int (*check)(const char *value, const char *where, struct kvd_diag *diag);
    } checks[] = {{"dir", check_dir},
                  {"socket", check_socket},
                  {"socket-mode", check_mode},
                  {"dram.eviction", check_eviction},
                  {"log.level", check_log_level}};
    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
        if (strcmp(checks[i].name, o->name) == 0) {
            return checks[i].check(value, where, diag);
        }
    }
    return 0;
}

/* ---- setting ---- */

/* Length of the character at p if libyaml reads it back unchanged from within quotes, or 0. */
static size_t plain_char(const unsigned char *p)
{
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = p[0] < 0x80             ? 1
               : (p[0] & 0xe0) == 0xc0 ? 2
               : (p[0] & 0xf0) == 0xe0 ? 3
               : (p[0] & 0xf8) == 0xf0 ? 4
                                       : 0;
    uint32_t c = n == 1 ? p[0] : n ? p[0] & (0x7fu >> n) : 0;
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
        c = c << 6 | (p[i] & 0x3f);
    }
    bool good = n && c >= smallest[n] && c >= 0x20 && (c < 0x7f || c >= 0xa0) &&
                (c < 0xd800 || c > 0xdfff) && c != 0x2028 && c != 0x2029 && c != 0xfeff &&
                c != 0xfffe && c != 0xffff && c <= 0x10ffff;
    return good ? n : 0;
}

static bool text_is_plain(const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    while (*p) {
        size_t n = plain_char(p);
        if (!n) {
            return false;
        }
        p += n;
    }
    return true;
}

static bool is_one_of(const char *words, const char *value)
{
    size_t n = strcspn(value, "|"); /* the separator is in no word */
    if (value[n]) {
        return false;
    }
    for (const char *p = words; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL) {
        if (strncmp(p, value, n) == 0 && (p[n] == '|' || p[n] == 0)) {
            return n > 0;
        }
    }
    return false;
}

/* Whether a value is of the option's type and within its range; a number goes to *ret_number. */
static bool value_fits(const struct kvd_option *o, const char *value, uint64_t *ret_number)
{
    uint64_t v = 0;
    int err = 0;
    switch (o->type) {
    case KVD_OPTION_STR:
        return text_is_plain(value);
    case KVD_OPTION_ENUM:
        return is_one_of(o->alternatives, value);
    case KVD_OPTION_BOOL:
        *ret_number = strcmp(value, "true") == 0;
        return *ret_number || strcmp(value, "false") == 0;
    case KVD_OPTION_BYTES:
        err = kvd_config_parse_bytes(value, &v);
        break;
    case KVD_OPTION_MS:
        err = kvd_config_parse_ms(value, &v);
        break;
    case KVD_OPTION_U64:
        err = parse_u64(value, &v);
        break;
    }
    if (err || v < o->min || v > o->max) {
        return false;
    }
    *ret_number = v;
    return true;
}

static int set_text(char **at, const char *value, const char *where, struct kvd_diag *diag)
{
    char *copy = strdup(value);
    if (!copy) {
        return kvd_fail(diag, -ENOMEM, "%s: out of memory", where);
    }
    free(*at);
    *at = copy;
    return 0;
}

int kvd_config_set(struct kvd_config *config, const char *name, const char *value,
                   const char *where, struct kvd_diag *diag)
{
    static const char *const none[] = {NULL};
    const struct kvd_option *o = kvd_option_by_name(name);
    uint64_t number = 0;
    if (!o) {
        const char *near = kvd_option_nearest(name, none);
        return kvd_fail(diag, -KVD_E_CONFIG, "%s: no option is called \"%.100s\"%s%s%s", where,
                        name, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    }
    if (!value_fits(o, value, &number)) {
        char allowed[200];
        kvd_option_allowed(o, allowed, sizeof(allowed));
        return kvd_fail(diag, -KVD_E_CONFIG, "%s is \"%.100s\"; %s is allowed", where, value,
                        allowed);
    }
    int err = kvd_option_check(o, value, where, diag);
    if (err) {
        return err;
    }
    if (kvd_option_is_text(o)) {
        return set_text(kvd_option_str(o, config), value, where, diag);
    }
    if (o->type == KVD_OPTION_BOOL) {
        *kvd_option_bool(o, config) = number != 0;
    } else {
        *kvd_option_u64(o, config) = number;
    }
    return 0;
}
