/* The command line: both ways to write a flag, flags over file over defaults, the plain flags, and
 * every kind of bad argument. */
#include "config_test.h"

enum { ARGS_MAX = 12, LINE_BYTES = PATH_MAX + 200 };

/* Parses the words of a line, which hold no spaces. */
static int parse(struct kvd_config *c, const char *line, struct kvd_config_flags *ret,
                 struct kvd_diag *diag, char ret_copy[LINE_BYTES] /* stays while flags are used */)
{
    char *argv[ARGS_MAX] = {"kvdepotd"};
    int argc = 1;
    char *save = NULL;
    (void)snprintf(ret_copy, LINE_BYTES, "%s", line);
    for (char *w = strtok_r(ret_copy, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        assert_true(argc < ARGS_MAX);
        argv[argc++] = w;
    }
    return kvd_config_parse_args(c, argc, argv, ret, diag);
}

static void test_both_ways(void **state)
{
    (void)state;
    CONFIG c;
    struct kvd_config_flags flags;
    struct kvd_diag diag = {""};
    char copy[LINE_BYTES];
    assert_int_equal(kvd_config_init(&c), 0);
    int err = parse(&c, "--dir=/tmp --io.depth 7 --nvme.enabled=false --dram.path= --dram.cap -1",
                    &flags, &diag, copy);
    assert_int_equal(err, -KVD_E_CONFIG); /* one dash is a value, a bad one here */
    assert_int_equal(says(copy, "--dram.cap is \"-1\"; 32MiB to 1PiB", diag.text), 0);
    err = parse(&c, "--dir=/tmp --io.depth 7 --nvme.enabled=false --dram.path= --dram.cap 32MiB",
                &flags, &diag, copy);
    assert_int_equal(err, 0);
    assert_string_equal(c.dir, "/tmp");
    assert_int_equal(c.io_depth, 7);
    assert_false(c.nvme_enabled);
    assert_string_equal(c.dram_path, "");
    assert_int_equal(c.dram_cap, 32 << 20);
    assert_non_null(c.scenarios_table); /* finished */
}

static void test_order(void **state)
{
    (void)state;
    CONFIG c;
    struct folder folder;
    struct kvd_config_flags flags;
    struct kvd_diag diag = {""};
    char path[PATH_MAX];
    char line[LINE_BYTES];
    char copy[LINE_BYTES];
    folder_make(&folder);
    folder_write(&folder, "c.yaml", "io: {depth: 11}\nclient: {max: 5}\ndram: {cap: 32MiB}\n",
                 path);
    assert_int_equal(kvd_config_init(&c), 0);
    /* the flag stands before --config, and still lies over the file */
    (void)snprintf(line, sizeof(line), "--io.depth=12 --config %s --nvme.enabled=false", path);
    assert_int_equal(parse(&c, line, &flags, &diag, copy), 0);
    assert_string_equal(flags.config_file, path);
    assert_int_equal(c.io_depth, 12);
    assert_int_equal(c.client_max, 5);
    assert_int_equal(c.client_pin_share, 50);
    /* the later of two flags counts */
    assert_int_equal(parse(&c, "--io.depth=1 --io.depth=2 --dram.cap=32MiB", &flags, &diag, copy),
                     0);
    assert_int_equal(c.io_depth, 2);
    folder_remove(&folder);
}

static void test_plain_flags(void **state)
{
    (void)state;
    CONFIG c;
    struct kvd_config_flags flags;
    struct kvd_diag diag = {""};
    char copy[LINE_BYTES];
    assert_int_equal(kvd_config_init(&c), 0);
    assert_int_equal(parse(&c, "--check-config --drop-dram --dram.cap 32MiB --nvme.enabled false",
                           &flags, &diag, copy),
                     0);
    assert_true(flags.check_config && flags.drop_dram);
    assert_false(flags.help || flags.version || flags.list_options);
    /* asking for help works with a broken configuration too */
    assert_int_equal(parse(&c, "--help --config /nonexistent --dram.cap=x", &flags, &diag, copy),
                     0);
    assert_true(flags.help && !flags.check_config);
    assert_int_equal(parse(&c, "--version", &flags, &diag, copy), 0);
    assert_true(flags.version);
    assert_int_equal(parse(&c, "--list-options", &flags, &diag, copy), 0);
    assert_true(flags.list_options);
}

struct bad {
    const char *line;
    const char *say;
};

static const struct bad bad_lines[] = {
    {"--dram.capp=1GiB", "--dram.capp=1GiB: no such flag; did you mean --dram.cap?"},
    {"--confg x", "--confg: no such flag; did you mean --config?"},
    {"--no-such-thing-at-all", "--no-such-thing-at-all: no such flag; --list-options shows all"},
    {"--a-name-that-is-longer-than-any-option-could-be-whatever-one-thinks",
     "--a-name-that-is-longer-than-any-option-could-be-whatever-one-thinks: no such flag"},
    {"--=x", "--=x: no such flag"},
    {"--", "--: not a flag"},
    {"-h", "-h: not a flag; --name=value is allowed"},
    {"dir=/x", "dir=/x: not a flag"},
    {"--dir", "--dir has no value; write --dir=/var/lib/kvdepot"},
    {"--dir --io.depth=1", "--dir has no value"},
    {"--config", "--config has no value; write --config=FILE"},
    {"--config /a --config /b", "--config a second time"},
    {"--config /nonexistent/c.yaml", "/nonexistent/c.yaml: cannot be read"},
    {"--help=yes", "--help takes no value"},
    {"--drop-dram=true", "--drop-dram takes no value"},
    {"--io.depth=010", "--io.depth is \"010\"; 1 to 4096"},
    {"--io.depth=", "--io.depth is \"\"; 1 to 4096"},
    {"--dir=", "--dir is empty"},
};

static void test_bad_lines(void **state)
{
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof(bad_lines) / sizeof(bad_lines[0]); i++) {
        CONFIG c;
        struct kvd_config_flags flags = {.help = true};
        struct kvd_diag diag = {""};
        char copy[LINE_BYTES];
        assert_int_equal(kvd_config_init(&c), 0);
        int err = parse(&c, bad_lines[i].line, &flags, &diag, copy);
        wrong += err != -KVD_E_CONFIG || !flags.help; /* outputs untouched */
        wrong += says(bad_lines[i].line, bad_lines[i].say, diag.text);
    }
    assert_int_equal(wrong, 0);
}

static void test_list_options(void **state)
{
    (void)state;
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    kvd_config_print_options(out);
    assert_int_equal(fclose(out), 0);
    /* one line a option and a head, columns aligned */
    size_t lines = 0;
    long column = -1;
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        const char *want = lines ? kvd_options[lines - 1].text : "what it is";
        const char *at = strstr(line, want);
        assert_non_null(at);
        column = column < 0 ? at - line : column;
        assert_int_equal(at - line, column);
        assert_true(!lines || strncmp(line, kvd_options[lines - 1].name,
                                      strlen(kvd_options[lines - 1].name)) == 0);
        lines++;
    }
    assert_int_equal(lines, KVD_OPTION_COUNT + 1);
    free(text);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_both_ways),    cmocka_unit_test(test_order),
    cmocka_unit_test(test_plain_flags),  cmocka_unit_test(test_bad_lines),
    cmocka_unit_test(test_list_options),
};
KVD_TEST_MAIN(tests)
