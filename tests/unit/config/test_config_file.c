/* The YAML file: what it sets, that what is printed reads back to the same, and every kind of bad
 * file with the place of its fault. */
#include "config_test.h"

struct bench {
    struct folder folder;
    char path[PATH_MAX];
};

static int setup(void **state)
{
    struct bench *b = calloc(1, sizeof(*b));
    folder_make(&b->folder);
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    struct bench *b = *state;
    folder_remove(&b->folder);
    free(b);
    return 0;
}

static void test_sets_nested_values(void **state)
{
    struct bench *b = *state;
    CONFIG c;
    struct kvd_diag diag = {""};
    folder_write(&b->folder, "a.yaml",
                 "dir: /srv/kv depot\n"
                 "dram: {cap: 2GiB, path: \"\"}\n"
                 "nvme:\n  enabled: false\n  cap: 1.5TiB\n"
                 "client.copy-lease: 250ms # a dotted name is the same\n"
                 "log:\n  level: debug\n",
                 b->path);
    assert_int_equal(kvd_config_init(&c), 0);
    assert_int_equal(kvd_config_read_file(&c, b->path, &diag), 0);
    assert_string_equal(c.dir, "/srv/kv depot");
    assert_int_equal(c.dram_cap, UINT64_C(2) << 30);
    assert_int_equal(c.nvme_cap, UINT64_C(3) << 39);
    assert_false(c.nvme_enabled);
    assert_int_equal(c.client_copy_lease, 250);
    assert_string_equal(c.log_level, "debug");
    assert_int_equal(c.io_depth, 64); /* not named: the default stays */
}

static void assert_same(struct kvd_config *a, struct kvd_config *b)
{
    for (size_t i = 0; i < KVD_OPTION_COUNT; i++) {
        const struct kvd_option *o = &kvd_options[i];
        if (kvd_option_is_text(o)) {
            assert_string_equal(*kvd_option_str(o, a), *kvd_option_str(o, b));
        } else if (o->type == KVD_OPTION_BOOL) {
            assert_int_equal(*kvd_option_bool(o, a), *kvd_option_bool(o, b));
        } else {
            assert_int_equal(*kvd_option_u64(o, a), *kvd_option_u64(o, b));
        }
    }
}

/* Values unlike the defaults for every option, with text that YAML could read as something else. */
static void fill_with_other_values(struct kvd_config *c)
{
    static const char *const texts[] = {"/a \"b\" \\c: #d",
                                        "yes",
                                        "~",
                                        "0x10",
                                        " x ",
                                        "{a: [b]}",
                                        "/\xc3\xa4/\xe2\x82\xac/\xf0\x9f\x98\x80",
                                        "'",
                                        "- *&!%@`"};
    size_t t = 0;
    for (size_t i = 0; i < KVD_OPTION_COUNT; i++) {
        const struct kvd_option *o = &kvd_options[i];
        struct kvd_diag diag = {""};
        char number[KVD_OPTION_NUMBER_BYTES];
        const char *value = texts[t % (sizeof(texts) / sizeof(texts[0]))];
        if (kvd_option_is_number(o)) {
            kvd_option_format(o, o->max - 1, number);
            value = number;
        } else if (o->type == KVD_OPTION_BOOL) {
            value = strcmp(o->def, "true") == 0 ? "false" : "true";
        } else if (o->type == KVD_OPTION_ENUM) {
            value = "threads";
        } else if (kvd_option_check(o, value, "", &diag) == 0) {
            t++;
        } else {
            value = strcmp(o->name, "socket-mode") == 0 ? "600"
                    : strcmp(o->name, "log.level") == 0 ? "warn"
                                                        : "lru";
        }
        if (kvd_config_set(c, o->name, value, o->name, &diag) != 0) {
            fail_msg("%s", diag.text);
        }
    }
}

static void round_trip(struct bench *b, struct kvd_config *c)
{
    CONFIG back;
    struct kvd_diag diag = {""};
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    kvd_config_print_values(c, out);
    assert_int_equal(fclose(out), 0);
    folder_write(&b->folder, "back.yaml", text, b->path);
    free(text);
    assert_int_equal(kvd_config_init(&back), 0);
    if (kvd_config_read_file(&back, b->path, &diag) != 0) {
        fail_msg("%s", diag.text);
    }
    assert_same(c, &back);
}

static void test_printed_values_read_back(void **state)
{
    CONFIG c;
    assert_int_equal(kvd_config_init(&c), 0);
    round_trip(*state, &c);
    fill_with_other_values(&c);
    round_trip(*state, &c);
}

struct bad {
    const char *text;
    const char *say; /* after the path */
};

static const struct bad bad_files[] = {
    {"", ":1:1: nothing in it"},
    {"# nothing\n", ":2:1: nothing in it"},
    {"[]\n", ":1:1: not a map"},
    {"dir\n", ":1:1: not a map"},
    {"dirr: /x\n", ":1:1: no option is called \"dirr\"; did you mean dir"},
    {"dram:\n  capp: 1GiB\n", ":2:3: no option is called \"dram.capp\"; did you mean dram.cap"},
    {"nosuchthing: 1\n", ":1:1: no option is called \"nosuchthing\"; --list-options shows all"},
    {"a.very.long.name.that.nobody.would.ever.give.to.an.option.of.anything: 1\n",
     ":1:1: no option is called"},
    {"dir: {x: 1}\n", ":1:6: dir has no single value"},
    {"dir: [a]\n", ":1:6: dir has no single value"},
    {"dir:\n", ":1:5: dir has no value; write one"},
    {"dram: 1GiB\n", ":1:7: dram is a group of options; a map is needed"},
    {"dram:\n", ":1:6: dram is a group of options"},
    {"dram: [1]\n", ":1:7: dram is a group of options"},
    {"dram: {cap: {x: 1}}\n", ":1:13: dram.cap has no single value"},
    {"dram:\n  cap: 12k\n", ":2:8: dram.cap is \"12k\"; 32MiB to 1PiB"},
    {"io: {depth: 010}\n", ":1:13: io.depth is \"010\"; 1 to 4096"},
    {"nvme: {enabled: on}\n", ":1:17: nvme.enabled is \"on\"; true or false is allowed"},
    {"nvme: {enabled: True}\n", ":1:17: nvme.enabled is \"True\"; true or false is allowed"},
    {"log: {level: loud}\n", ":1:14: log.level is \"loud\"; error, warn, info or debug"},
    {"dir: /a\ndir: /b\n", ":2:6: dir a second time"},
    {"dram: {cap: 1GiB}\ndram.cap: 1GiB\n", ":2:11: dram.cap a second time"},
    {"[a]: b\n", ":1:1: a key that is not a name"},
    {"dir: &a /x\n", ":1:6: anchor &a"},
    {"dir: *a\n", ":1:6: alias *a"},
    {"dir: !!str /x\n", ":1:6: tag"},
    {"<<: {dir: /x}\n", ":1:1: no option is called \"<<\""},
    {"dir: /x\n---\ndir: /y\n", ":2:1: a second document"},
    {"dir: \"/x\n", ":2:1: not YAML"},
    {"dir: /x\nbad\n", ":3:1: not YAML"},
    {"dir: \"\\x01\"\n", ":1:6: dir is \"\x01\"; UTF-8 text without control characters"},
    {"dir: \"\xff\"\n", ": byte 6: "},
};

static void test_bad_files(void **state)
{
    struct bench *b = *state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof(bad_files) / sizeof(bad_files[0]); i++) {
        CONFIG c;
        struct kvd_diag diag = {""};
        folder_write(&b->folder, "bad.yaml", bad_files[i].text, b->path);
        assert_int_equal(kvd_config_init(&c), 0);
        int err = kvd_config_read_file(&c, b->path, &diag);
        if (err != -KVD_E_CONFIG || strncmp(diag.text, b->path, strlen(b->path)) != 0) {
            print_error("for  %s\ngot  %d %s\n", bad_files[i].text, err, diag.text);
            wrong++;
            continue;
        }
        wrong += says(bad_files[i].text, bad_files[i].say, diag.text + strlen(b->path));
    }
    assert_int_equal(wrong, 0);
}

static void test_unreadable_files(void **state)
{
    struct bench *b = *state;
    CONFIG c;
    struct kvd_diag diag = {""};
    assert_int_equal(kvd_config_init(&c), 0);
    assert_int_equal(kvd_config_read_file(&c, "/nonexistent/x.yaml", &diag), -KVD_E_CONFIG);
    assert_string_equal(diag.text, "/nonexistent/x.yaml: cannot be read: No such file or "
                                   "directory; a readable file is needed");
    assert_int_equal(kvd_config_read_file(&c, b->folder.path, &diag), -KVD_E_CONFIG);
    assert_non_null(strstr(diag.text, "Is a directory"));
    assert_int_equal(kvd_config_read_file(&c, "/dev/zero", &diag), -KVD_E_CONFIG);
    assert_non_null(strstr(diag.text, "larger than 1 MiB"));
    (void)snprintf(b->path, sizeof(b->path), "%s/fifo", b->folder.path);
    assert_int_equal(mkfifo(b->path, 0600), 0);
    assert_int_equal(kvd_config_read_file(&c, b->path, &diag), -KVD_E_CONFIG); /* doesn't hang */
}

/* Ten thousand brackets: an error, not an exhausted stack. */
static void test_deep_nesting(void **state)
{
    struct bench *b = *state;
    enum { DEEP = 10000 };
    CONFIG c;
    struct kvd_diag diag = {""};
    char *text = calloc(1, DEEP * 6 + 1);
    for (int i = 0; i < DEEP; i++) {
        (void)stpcpy(text + (size_t)i * 6, "{dram:");
    }
    folder_write(&b->folder, "deep.yaml", text, b->path);
    free(text);
    assert_int_equal(kvd_config_init(&c), 0);
    assert_int_equal(kvd_config_read_file(&c, b->path, &diag), -KVD_E_CONFIG);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(test_sets_nested_values, setup, teardown),
    cmocka_unit_test_setup_teardown(test_printed_values_read_back, setup, teardown),
    cmocka_unit_test_setup_teardown(test_bad_files, setup, teardown),
    cmocka_unit_test_setup_teardown(test_unreadable_files, setup, teardown),
    cmocka_unit_test_setup_teardown(test_deep_nesting, setup, teardown),
};
KVD_TEST_MAIN(tests)
