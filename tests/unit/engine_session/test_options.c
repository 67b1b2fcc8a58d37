/* The command line: defaults, both spellings, every refusal with the option's name. */
#include "kvd_test.h"

#include <errno.h>

#include "engine/options.h"

static int parse(const char *const *argv, struct kvd_engine_cli *cli, struct kvd_diag *diag)
{
    int argc = 0;
    while (argv[argc]) {
        argc++;
    }
    *diag = (struct kvd_diag){0};
    return kvd_engine_cli_parse(cli, argc, (char **)(uintptr_t)argv, diag);
}

static void test_defaults_and_spellings(void **state)
{
    struct kvd_engine_cli cli;
    struct kvd_diag diag;
    const char *const argv[] = {"e",
                                "--model",
                                "m",
                                "--prompt=a=b",
                                "--max-tokens=7",
                                "--temperature",
                                "0.5",
                                "--raw",
                                "--seed=18446744073709551615",
                                NULL};
    assert_int_equal(parse(argv, &cli, &diag), 0);
    assert_string_equal(cli.model, "m");
    assert_string_equal(cli.prompt, "a=b");
    assert_int_equal(cli.max_tokens, 7);
    assert_true(cli.temperature == 0.5 && cli.top_p == 1 && cli.raw && !cli.chat);
    assert_true(cli.seed == UINT64_MAX);
    assert_string_equal(cli.scenario, "chat");
    assert_null(cli.socket);
    const char *const help[] = {"e", "--help", NULL};
    assert_int_equal(parse(help, &cli, &diag), 0);
    assert_true(cli.help);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *argv[10];
        const char *said;
    } rows[] = {
        {{"e", NULL}, "--model"},
        {{"e", "--model", "m", NULL}, "--prompt"},
        {{"e", "--model", "m", "--prompt", "a", "--chat", NULL}, "one of"},
        {{"e", "--promt", "a", NULL}, "--promt"},
        {{"e", "m", NULL}, "'m'"},
        {{"e", "--model", NULL}, "--model needs a value"},
        {{"e", "--chat=1", NULL}, "--chat takes no value"},
        {{"e", "--max-tokens", "0", NULL}, "--max-tokens"},
        {{"e", "--max-tokens", "-1", NULL}, "--max-tokens"},
        {{"e", "--max-tokens", "5x", NULL}, "--max-tokens"},
        {{"e", "--max-tokens", "", NULL}, "--max-tokens"},
        {{"e", "--max-tokens", "99999999999", NULL}, "--max-tokens"},
        {{"e", "--seed", "18446744073709551616", NULL}, "--seed"},
        {{"e", "--temperature", "2.5", NULL}, "--temperature"},
        {{"e", "--temperature", "nan", NULL}, "--temperature"},
        {{"e", "--top-p", "0", NULL}, "--top-p"},
        {{"e", "--model", "m", "--chat", "--no-cache", "--embedded", NULL}, "contradicts"},
        {{"e", "--model", "m", "--chat", "--store", "d", NULL}, "--embedded"},
        {{"e", "--model", "m", "--chat", "--report", "r", NULL}, "--report"},
        {{"e", "--model", "m", "--chat", "--raw", NULL}, "--raw has no use with --chat"},
        {{"e", "--model", "m", "--http", "1", "--max-tokens=256", NULL}, "--max-tokens has no use"},
        {{"e", "--model", "m", "--chat", "--usage-on-finish", NULL}, "--usage-on-finish"},
        {{"e", "--model", "m", "--prompt", "x", "--raw", "--system", "y", NULL}, "--system"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct kvd_engine_cli cli;
        struct kvd_diag diag;
        const int rc = parse(rows[i].argv, &cli, &diag);
        if (rc != -KVD_E_CONFIG || !strstr(diag.text, rows[i].said)) {
            fail_msg("row %zu: %d, '%s', wanted '%s'", i, rc, diag.text, rows[i].said);
        }
    }
}

static void test_addresses(void **state)
{
    static const struct {
        const char *text;
        const char *host; /* NULL: refused */
        uint16_t port;
    } rows[] = {
        {"8080", "127.0.0.1", 8080},
        {"0", "127.0.0.1", 0},
        {"0.0.0.0:80", "0.0.0.0", 80},
        {"[::1]:65535", "::1", 65535},
        {"localhost:1", "localhost", 1},
        {"", NULL, 0},
        {"x", NULL, 0},
        {":80", NULL, 0},
        {"h:", NULL, 0},
        {"h:65536", NULL, 0},
        {"h:-1", NULL, 0},
        {"h:8x", NULL, 0},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char *host = NULL;
        uint16_t port = 1;
        struct kvd_diag diag = {0};
        const int rc = kvd_engine_cli_address(rows[i].text, &host, &port, &diag);
        if (!rows[i].host) {
            assert_int_equal(rc, -KVD_E_CONFIG);
            assert_non_null(strstr(diag.text, "--http"));
            continue;
        }
        assert_int_equal(rc, 0);
        assert_string_equal(host, rows[i].host);
        assert_int_equal(port, rows[i].port);
        free(host);
    }
}

/* --help names every option of the table once. */
static void test_help_is_the_table(void **state)
{
    static const char *const names[] = {
#define KVD_ENGINE_STR(name, ...) "--" name " ",
#define KVD_ENGINE_FLAG KVD_ENGINE_STR
#define KVD_ENGINE_U32 KVD_ENGINE_STR
#define KVD_ENGINE_U64 KVD_ENGINE_STR
#define KVD_ENGINE_REAL KVD_ENGINE_STR
#include "engine/options.def"
    };
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    assert_non_null(out);
    kvd_engine_cli_help(out);
    assert_int_equal(fclose(out), 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char line[64];
        (void)snprintf(line, sizeof(line), "\n  %s", names[i]);
        const char *at = strstr(text, line);
        if (!at || strstr(at + 1, line)) {
            fail_msg("--help says '%s' not once", names[i]);
        }
    }
    free(text);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_defaults_and_spellings),
    cmocka_unit_test(test_refusals),
    cmocka_unit_test(test_addresses),
    cmocka_unit_test(test_help_is_the_table),
};
KVD_TEST_MAIN(tests)
