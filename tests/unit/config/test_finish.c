/* What options can't tell alone: caps against file systems, what empty paths become, scenarios. */
#include "config_test.h"

static void make(struct kvd_config *c)
{
    assert_int_equal(kvd_config_init(c), 0);
    struct kvd_diag diag;
    assert_int_equal(kvd_config_set(c, "dram.cap", "32MiB", "", &diag), 0);
    assert_int_equal(kvd_config_set(c, "nvme.cap", "16MiB", "", &diag), 0);
}

static void set(struct kvd_config *c, const char *name, const char *value)
{
    struct kvd_diag diag = {""};
    if (kvd_config_set(c, name, value, name, &diag) != 0) {
        fail_msg("%s", diag.text);
    }
}

static void expect_refusal(struct kvd_config *c, const char *say)
{
    struct kvd_diag diag = {""};
    assert_int_equal(kvd_config_finish(c, &diag), -KVD_E_CONFIG);
    assert_int_equal(says("finish", say, diag.text), 0);
}

static void test_fills_what_is_empty(void **state)
{
    (void)state;
    CONFIG c;
    struct kvd_diag diag = {""};
    make(&c);
    set(&c, "dir", "/tmp/none/such");
    assert_int_equal(kvd_config_finish(&c, &diag), 0);
    assert_string_equal(c.nvme_path, "/tmp/none/such/nvme");
    assert_string_equal(c.dram_path, "");
    assert_non_null(kvd_scenario_by_name(c.scenarios_table, "chat", 4));
    assert_int_equal(kvd_config_finish(&c, &diag), 0); /* twice does no harm */
    set(&c, "nvme.path", "/tmp/other");
    assert_int_equal(kvd_config_finish(&c, &diag), 0);
    assert_string_equal(c.nvme_path, "/tmp/other");
}

static void test_caps_larger_than_the_file_system(void **state)
{
    (void)state;
    CONFIG c;
    make(&c);
    set(&c, "dir", "/tmp/none/such/folder");
    set(&c, "nvme.cap", "64PiB");
    expect_refusal(&c, "nvme.cap is 64PiB (72057594037927936 bytes), but the whole file system of "
                       "/tmp is ");
    set(&c, "nvme.enabled", "false"); /* then it doesn't matter */
    struct kvd_diag diag = {""};
    assert_int_equal(kvd_config_finish(&c, &diag), 0);
    set(&c, "dram.path", "/tmp/none/pool");
    set(&c, "dram.cap", "1PiB");
    expect_refusal(&c, "dram.cap is 1PiB (1125899906842624 bytes), but the whole file system of "
                       "/tmp is ");
}

static void test_paths_that_cannot_be(void **state)
{
    (void)state;
    CONFIG c;
    make(&c);
    set(&c, "nvme.path", "/dev/null/nvme");
    expect_refusal(&c, "nvme.path: cannot look at /dev/null/nvme: Not a directory");
}

static void test_segment_within_cap(void **state)
{
    (void)state;
    CONFIG c;
    struct kvd_diag diag = {""};
    make(&c);
    set(&c, "nvme.cap", "64MiB");
    set(&c, "nvme.segment", "4MiB");
    assert_int_equal(kvd_config_finish(&c, &diag), 0);
    set(&c, "nvme.segment", "8MiB");
    expect_refusal(&c, "nvme.segment is 8388608 bytes; 1MiB to a sixteenth of nvme.cap, 4MiB");
    set(&c, "nvme.segment", "512KiB");
    expect_refusal(&c, "nvme.segment is 524288 bytes");
}

static void test_scenarios_file(void **state)
{
    (void)state;
    CONFIG c;
    struct folder folder;
    struct kvd_diag diag = {""};
    char path[PATH_MAX];
    char say[PATH_MAX + 100];
    folder_make(&folder);
    make(&c);
    folder_write(&folder, "s.yaml",
                 "scenarios:\n- {id: 9, name: own, retention: 1d, from: put, nvme: false}\n"
                 "- {id: 10, name: chat, retention: 1d, from: put, nvme: false}\n",
                 path);
    set(&c, "scenarios", path);
    assert_int_equal(kvd_config_finish(&c, &diag), 0);
    assert_non_null(kvd_scenario_by_id(c.scenarios_table, 9));
    assert_null(kvd_scenario_by_id(c.scenarios_table, 1));
    folder_write(&folder, "bad.yaml", "scenarios:\n- {id: 0}\n", path);
    set(&c, "scenarios", path);
    (void)snprintf(say, sizeof(say), "%s:2:8: id is \"0\"", path);
    expect_refusal(&c, say);
    assert_non_null(kvd_scenario_by_id(c.scenarios_table, 9)); /* the old one stays */
    folder_write(&folder, "nochat.yaml",
                 "scenarios:\n- {id: 9, name: own, retention: 1d, from: put, nvme: false}\n", path);
    set(&c, "scenarios", path);
    (void)snprintf(say, sizeof(say), "%s: class chat is missing", path);
    expect_refusal(&c, say);
    set(&c, "scenarios", "/nonexistent.yaml");
    expect_refusal(&c, "scenarios: /nonexistent.yaml: cannot be read");
    folder_remove(&folder);
}

/* Values that were put into the struct by hand are checked too. */
static void test_checks_again(void **state)
{
    (void)state;
    CONFIG c;
    make(&c);
    free(c.log_level);
    c.log_level = strdup("loud");
    expect_refusal(&c, "log.level is \"loud\"");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_fills_what_is_empty),
    cmocka_unit_test(test_caps_larger_than_the_file_system),
    cmocka_unit_test(test_paths_that_cannot_be),
    cmocka_unit_test(test_segment_within_cap),
    cmocka_unit_test(test_scenarios_file),
    cmocka_unit_test(test_checks_again),
};
KVD_TEST_MAIN(tests)
