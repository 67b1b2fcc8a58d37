/* Command line of kvdepot-engine. See options.h. */
#include "engine/options.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum type { TYPE_STR, TYPE_FLAG, TYPE_U32, TYPE_U64, TYPE_REAL };

struct option_row {
    const char *name;
    enum type type;
    size_t offset;
    const char *metavar;
    const char *text;
    const char *def; /* STR */
    uint64_t int_def, int_min, int_max;
    double real_def, real_min, real_max;
};

static const struct option_row options[] = {
#define AT(field) offsetof(struct kvd_engine_cli, field)
#define KVD_ENGINE_STR(n, field, d, m, t)                                                          \
    {.name = n, .type = TYPE_STR, .offset = AT(field), .metavar = m, .text = t, .def = d},
#define KVD_ENGINE_FLAG(n, field, t)                                                               \
    {.name = n, .type = TYPE_FLAG, .offset = AT(field), .metavar = "", .text = t},
#define INTEGER(n, k, field, d, lo, hi, m, t)                                                      \
    {.name = n,                                                                                    \
     .type = k,                                                                                    \
     .offset = AT(field),                                                                          \
     .metavar = m,                                                                                 \
     .text = t,                                                                                    \
     .int_def = d,                                                                                 \
     .int_min = lo,                                                                                \
     .int_max = hi},
#define KVD_ENGINE_U32(n, field, d, lo, hi, m, t) INTEGER(n, TYPE_U32, field, d, lo, hi, m, t)
#define KVD_ENGINE_U64(n, field, d, lo, hi, m, t) INTEGER(n, TYPE_U64, field, d, lo, hi, m, t)
#define KVD_ENGINE_REAL(n, field, d, lo, hi, m, t)                                                 \
    {.name = n,                                                                                    \
     .type = TYPE_REAL,                                                                            \
     .offset = AT(field),                                                                          \
     .metavar = m,                                                                                 \
     .text = t,                                                                                    \
     .real_def = d,                                                                                \
     .real_min = lo,                                                                               \
     .real_max = hi},
#include "engine/options.def"
};

enum { N_OPTIONS = sizeof(options) / sizeof(options[0]) };

static void set_default(struct kvd_engine_cli *cli, const struct option_row *o)
{
    void *at = (char *)cli + o->offset;
    switch (o->type) {
    case TYPE_STR:
        memcpy(at, &o->def, sizeof(o->def));
        break;
    case TYPE_FLAG:
        *(bool *)at = false;
        break;
    case TYPE_U32:
        *(uint32_t *)at = (uint32_t)o->int_def;
        break;
    case TYPE_U64:
        *(uint64_t *)at = o->int_def;
        break;
    case TYPE_REAL:
        *(double *)at = o->real_def;
        break;
    }
}

static int set_integer(void *at, const struct option_row *o, const char *value,
                       struct kvd_diag *diag)
{
    char *end = NULL;
    errno = 0;
    const uint64_t v = strtoull(value, &end, 10);
    /* strtoull takes a sign and turns -1 into the largest number */
    if (!*value || strchr("+- \t\n", *value) || *end || errno || v < o->int_min || v > o->int_max) {
        return kvd_fail(diag, -KVD_E_CONFIG,
                        "--%s: '%.64s' is not an integer from %" PRIu64 " to %" PRIu64, o->name,
                        value, o->int_min, o->int_max);
    }
    if (o->type == TYPE_U32) {
        *(uint32_t *)at = (uint32_t)v;
    } else {
        *(uint64_t *)at = v;
    }
    return 0;
}

static int set_real(void *at, const struct option_row *o, const char *value, struct kvd_diag *diag)
{
    char *end = NULL;
    const double v = strtod(value, &end);
    if (end == value || *end || !(v >= o->real_min && v <= o->real_max)) {
        return kvd_fail(diag, -KVD_E_CONFIG, "--%s: '%.64s' is not a number from %g to %g", o->name,
                        value, o->real_min, o->real_max);
    }
    *(double *)at = v;
    return 0;
}

static int set_value(struct kvd_engine_cli *cli, const struct option_row *o, const char *value,
                     struct kvd_diag *diag)
{
    void *at = (char *)cli + o->offset;
    if (o->type == TYPE_STR) {
        memcpy(at, &value, sizeof(value));
        return 0;
    }
    return o->type == TYPE_REAL ? set_real(at, o, value, diag) : set_integer(at, o, value, diag);
}

static const struct option_row *find(const char *name, size_t n)
{
    for (size_t i = 0; i < N_OPTIONS; i++) {
        if (strlen(options[i].name) == n && memcmp(options[i].name, name, n) == 0) {
            return &options[i];
        }
    }
    return NULL;
}

/* Reads argv[*at] and the value after it, if it has one. given: a flag for each row of the table.
 */
static int read_flag(struct kvd_engine_cli *cli, bool *given, int argc, char **argv, int *at,
                     struct kvd_diag *diag)
{
    const char *arg = argv[*at];
    const char *name = strncmp(arg, "--", 2) == 0 ? arg + 2 : "";
    const char *equals = strchr(name, '=');
    const struct option_row *o = find(name, equals ? (size_t)(equals - name) : strlen(name));
    if (!o) {
        return kvd_fail(diag, -KVD_E_CONFIG, "'%.64s' is no option; --help lists them", arg);
    }
    given[o - options] = true;
    if (o->type == TYPE_FLAG) {
        if (equals) {
            return kvd_fail(diag, -KVD_E_CONFIG, "--%s takes no value", o->name);
        }
        *(bool *)((char *)cli + o->offset) = true;
        return 0;
    }
    if (!equals && *at + 1 >= argc) {
        return kvd_fail(diag, -KVD_E_CONFIG, "--%s needs a value: %s", o->name, o->metavar);
    }
    return set_value(cli, o, equals ? equals + 1 : argv[++*at], diag);
}

/* Options that a way to use the engine has no use for are refused, not ignored. */
static int check_use(const bool *given, const char *const *useless, size_t n, const char *way,
                     struct kvd_diag *diag)
{
    for (size_t i = 0; i < n; i++) {
        if (given[find(useless[i], strlen(useless[i])) - options]) {
            return kvd_fail(diag, -KVD_E_CONFIG, "--%s has no use %s", useless[i], way);
        }
    }
    return 0;
}

static int check_way(const struct kvd_engine_cli *cli, const bool *given, struct kvd_diag *diag)
{
    static const char *const not_http[] = {"raw",      "system", "max-tokens", "temperature",
                                           "top-p",    "seed",   "ignore-end", "user-id",
                                           "scenario", "report"};
    static const char *const not_chat[] = {"raw", "report"};
    static const char *const only_http[] = {"usage-on-finish"};
    static const char *const only_embedded[] = {"store", "dram", "nvme"};
#define LIST(list) list, sizeof(list) / sizeof((list)[0])
    int rc = 0;
    if (cli->http) {
        rc = check_use(given, LIST(not_http), "with --http: each request says it", diag);
    } else {
        rc = check_use(given, LIST(only_http), "without --http", diag);
    }
    if (rc == 0 && cli->chat) {
        rc = check_use(given, LIST(not_chat), "with --chat", diag);
    }
    if (rc == 0 && !cli->embedded) {
        rc = check_use(given, LIST(only_embedded), "without --embedded", diag);
    }
#undef LIST
    return rc;
}

static int check_together(const struct kvd_engine_cli *cli, const bool *given,
                          struct kvd_diag *diag)
{
    const int ways = !!cli->prompt + !!cli->prompt_file + !!cli->tokens_file + !!cli->prompt_list +
                     cli->chat + !!cli->http;
    if (!cli->model) {
        return kvd_fail(diag, -KVD_E_CONFIG, "--model is missing: the GGUF file to load");
    }
    if (ways != 1) {
        return kvd_fail(
            diag, -KVD_E_CONFIG,
            "give one of --prompt, --prompt-file, --tokens-file, --prompt-list, --chat and "
            "--http");
    }
    if (cli->no_cache && (cli->embedded || (cli->socket && *cli->socket))) {
        return kvd_fail(diag, -KVD_E_CONFIG, "--no-cache contradicts --embedded and --socket");
    }
    if ((cli->raw || cli->tokens_file) && cli->system) {
        return kvd_fail(diag, -KVD_E_CONFIG, "--system is for prompts with the chat template");
    }
    return check_way(cli, given, diag);
}

int kvd_engine_cli_parse(struct kvd_engine_cli *cli, int argc, char **argv, struct kvd_diag *diag)
{
    bool given[N_OPTIONS] = {false};
    for (size_t i = 0; i < N_OPTIONS; i++) {
        set_default(cli, &options[i]);
    }
    for (int at = 1; at < argc; at++) {
        const int rc = read_flag(cli, given, argc, argv, &at, diag);
        if (rc) {
            return rc;
        }
    }
    return cli->help || cli->version ? 0 : check_together(cli, given, diag);
}

static void print_default(FILE *out, const struct option_row *o)
{
    if (o->type == TYPE_STR && o->def) {
        (void)fprintf(out, " [%s]", o->def);
    } else if (o->type == TYPE_U32 || o->type == TYPE_U64) {
        (void)fprintf(out, " [%" PRIu64 "]", o->int_def);
    } else if (o->type == TYPE_REAL) {
        (void)fprintf(out, " [%g]", o->real_def);
    }
}

void kvd_engine_cli_help(FILE *out)
{
    (void)fprintf(out,
                  "usage: kvdepot-engine --model PATH "
                  "(--prompt TEXT | --chat | --http PORT | …) [OPTION]...\n"
                  "Answers prompts; KV blocks come from the cache where they are there, and go "
                  "to it.\n\n");
    for (size_t i = 0; i < N_OPTIONS; i++) {
        const struct option_row *o = &options[i];
        const int n = fprintf(out, "  --%s %s", o->name, o->metavar);
        (void)fprintf(out, "%*s%s", n < 30 ? 30 - n : 1, "", o->text);
        print_default(out, o);
        (void)fputc('\n', out);
    }
    (void)fprintf(out,
                  "\nexample: kvdepot-engine --model model.gguf --embedded --store ~/kv --chat\n");
}

int kvd_engine_cli_address(const char *text, char **ret_host, uint16_t *ret_port,
                           struct kvd_diag *diag)
{
    const char *colon = strrchr(text, ':');
    const char *port = colon ? colon + 1 : text;
    char *end = NULL;
    const unsigned long v = strtoul(port, &end, 10);
    if (*port < '0' || *port > '9' || *end || v > UINT16_MAX || colon == text) {
        return kvd_fail(diag, -KVD_E_CONFIG, "--http: '%.64s' is not PORT or HOST:PORT", text);
    }
    size_t n = colon ? (size_t)(colon - text) : 0;
    if (n >= 2 && text[0] == '[' && text[n - 1] == ']') {
        text++;
        n -= 2;
    }
    char *host = n ? strndup(text, n) : strdup("127.0.0.1");
    if (!host) {
        return -ENOMEM;
    }
    *ret_host = host;
    *ret_port = (uint16_t)v;
    return 0;
}
