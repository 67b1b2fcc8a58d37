/*
 * Fuzz entry of the configuration: a YAML file of options, a file of scenarios, a command line, or
 * one size or time. What is accepted reads back from what is printed; what is refused says why.
 *
 * Input: a byte that says which, then the text (of a command line: its arguments, by line).
 */
#include <sys/mman.h>
#include <unistd.h>

#include "cachesvc/config/config.h"
#include "cachesvc/config/option.h"
#include "fuzz.h"

enum { FILE_OF_OPTIONS, FILE_OF_SCENARIOS, COMMAND_LINE, QUANTITY, KINDS };
enum { ARGS_MAX = 32 };

/* A file of these bytes; its path. */
static int file_of(const uint8_t *bytes, size_t n, char path[32])
{
    const int fd = memfd_create("config", MFD_CLOEXEC);
    FUZZ_CHECK(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    (void)snprintf(path, 32, "/proc/self/fd/%d", fd);
    return fd;
}

static void same(struct kvd_config *a, struct kvd_config *b)
{
    for (size_t i = 0; i < KVD_OPTION_COUNT; i++) {
        const struct kvd_option *o = &kvd_options[i];
        if (kvd_option_is_text(o)) {
            FUZZ_CHECK(strcmp(*kvd_option_str(o, a), *kvd_option_str(o, b)) == 0);
        } else if (o->type == KVD_OPTION_BOOL) {
            FUZZ_CHECK(*kvd_option_bool(o, a) == *kvd_option_bool(o, b));
        } else {
            const uint64_t v = *kvd_option_u64(o, a);
            FUZZ_CHECK(v == *kvd_option_u64(o, b) && v >= o->min && v <= o->max);
        }
    }
}

/* What is printed reads back to the same. */
static void reads_back(struct kvd_config *config)
{
    char path[32];
    char *text = NULL;
    size_t n = 0;
    struct kvd_config again;
    struct kvd_diag diag = {""};
    FILE *out = open_memstream(&text, &n);
    FUZZ_CHECK(out != NULL && kvd_config_init(&again) == 0);
    kvd_config_print_values(config, out);
    (void)fclose(out);
    const int fd = file_of((const uint8_t *)text, n, path);
    FUZZ_CHECK(kvd_config_read_file(&again, path, &diag) == 0);
    same(config, &again);
    (void)close(fd);
    free(text);
    kvd_config_fini(&again);
}

static void options_file(const uint8_t *bytes, size_t n)
{
    char path[32];
    struct kvd_config config;
    struct kvd_diag diag = {""};
    FUZZ_CHECK(kvd_config_init(&config) == 0);
    const int fd = file_of(bytes, n, path);
    if (kvd_config_read_file(&config, path, &diag) == 0) {
        reads_back(&config);
    } else {
        FUZZ_CHECK(strstr(diag.text, path) != NULL);
    }
    (void)close(fd);
    kvd_config_fini(&config);
}

static void scenarios(const uint8_t *bytes, size_t n)
{
    struct kvd_scenarios *table = NULL;
    struct kvd_diag diag = {""};
    char *text = (char *)fuzz_exact(bytes, n);
    if (kvd_scenarios_parse(text, n, "fuzz.yaml", &diag, &table) == 0) {
        FUZZ_CHECK(kvd_scenarios_count(table) <= KVD_SCENARIOS_MAX);
        for (uint32_t i = 0; i < kvd_scenarios_count(table); i++) {
            const struct kvd_scenario *s = kvd_scenario_at(table, i);
            FUZZ_CHECK(kvd_scenario_by_id(table, s->id) == s);
            FUZZ_CHECK(kvd_scenario_by_name(table, s->name, strlen(s->name)) == s);
            FUZZ_CHECK(s->retention_s > 0 && (!s->nvme || s->slice_s > 0));
        }
        kvd_scenarios_destroy(&table);
    } else {
        FUZZ_CHECK(strstr(diag.text, "fuzz.yaml") != NULL);
    }
    free(text);
}

/* Files and folders that the input would name are not looked at: what they hold is the machine's
 * business. */
static bool names_a_path(const char *arg)
{
    return strchr(arg, '/') != NULL || strstr(arg, "config") != NULL ||
           strstr(arg, "scenarios") != NULL;
}

static void command_line(const uint8_t *bytes, size_t n)
{
    char *argv[ARGS_MAX + 2] = {"kvdepotd"};
    int argc = 1;
    struct kvd_config config;
    struct kvd_config_flags flags;
    struct kvd_diag diag = {""};
    char *text = malloc(n + 1);
    FUZZ_CHECK(text != NULL && kvd_config_init(&config) == 0);
    memcpy(text, bytes, n);
    text[n] = 0;
    char *save = NULL;
    for (char *arg = strtok_r(text, "\n", &save); arg && argc <= ARGS_MAX;
         arg = strtok_r(NULL, "\n", &save)) {
        if (!names_a_path(arg)) {
            argv[argc++] = arg;
        }
    }
    if (kvd_config_parse_args(&config, argc, argv, &flags, &diag) == 0) {
        reads_back(&config);
    } else {
        FUZZ_CHECK(diag.text[0] != 0);
    }
    free(text);
    kvd_config_fini(&config);
}

static void quantity(const uint8_t *bytes, size_t n)
{
    uint64_t v;
    char *text = malloc(n + 1);
    FUZZ_CHECK(text != NULL);
    memcpy(text, bytes, n);
    text[n] = 0;
    (void)kvd_config_parse_bytes(text, &v);
    (void)kvd_config_parse_ms(text, &v);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t kind = size > 0 ? data[0] : 0;
    const uint8_t *text = data + (size > 0);
    const size_t n = size - (size > 0);
    switch (kind % KINDS) {
    case FILE_OF_OPTIONS:
        options_file(text, n);
        break;
    case FILE_OF_SCENARIOS:
        scenarios(text, n);
        break;
    case COMMAND_LINE:
        command_line(text, n);
        break;
    default:
        quantity(text, n);
        break;
    }
    return 0;
}
