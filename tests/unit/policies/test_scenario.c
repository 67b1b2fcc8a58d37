/* scenarios.yaml: what is built in, what is read, and every kind of bad input with the place and
 * the words of its refusal. */
#include "policies/scenario.h"

#include "kvd_test.h"
#include "policies/yaml_reader.h"
#include "proto/base/cleanup.h"

#define SCENARIOS KVD_CLEANUP(kvd_scenarios_destroy) struct kvd_scenarios

static int parse(const char *text, struct kvd_diag *diag, struct kvd_scenarios **ret)
{
    diag->text[0] = 0;
    return kvd_scenarios_parse(text, strlen(text), "t.yaml", diag, ret);
}

static void test_builtin(void **state)
{
    (void)state;
    static const struct kvd_scenario want[] = {
        {1, "chat", true, true, 7 * 86400, 12 * 3600},
        {2, "agent", true, true, 3 * 86400, 6 * 3600},
        {3, "handoff", false, false, 120, 120},
        {4, "batch", true, false, 3600, 3600},
    };
    SCENARIOS *s = NULL;
    struct kvd_diag diag = {""};
    size_t bytes = 0;
    const char *text = kvd_scenarios_builtin(&bytes);
    assert_int_equal(kvd_scenarios_parse(text, bytes, "built-in", &diag, &s), 0);
    assert_int_equal(kvd_scenarios_count(s), 4);
    for (uint32_t i = 0; i < 4; i++) {
        const struct kvd_scenario *row = kvd_scenario_at(s, i);
        assert_ptr_equal(row, kvd_scenario_by_id(s, want[i].id));
        assert_ptr_equal(row, kvd_scenario_by_name(s, want[i].name, strlen(want[i].name)));
        assert_string_equal(row->name, want[i].name);
        assert_int_equal(row->retention_s, want[i].retention_s);
        assert_int_equal(row->sliding, want[i].sliding);
        assert_int_equal(row->slice_s, want[i].slice_s);
        assert_int_equal(row->nvme, want[i].nvme);
    }
}

static void test_absent(void **state)
{
    (void)state;
    SCENARIOS *s = NULL;
    struct kvd_diag diag;
    assert_int_equal(parse("scenarios:\n- {id: 7, name: a-1_b, retention: 10m, from: put, "
                           "nvme: true, slice: 60s}\n",
                           &diag, &s),
                     0);
    assert_non_null(kvd_scenario_by_name(s, "a-1_bxx", 5));
    assert_null(kvd_scenario_by_name(s, "a-1_bxx", 6));
    assert_null(kvd_scenario_by_name(s, "a-1", 3));
    assert_null(kvd_scenario_by_name(s, "", 0));
    assert_null(kvd_scenario_by_id(s, 0));
    assert_null(kvd_scenario_at(s, 1));
    assert_int_equal(kvd_scenario_at(s, 0)->retention_s, 600);
}

#define HEAD "scenarios:\n- "
#define ROW "{id: 1, name: a, retention: 1d, from: put, nvme: false}"

struct bad {
    const char *text;
    const char *say; /* how the message begins */
};

static const struct bad bad_rows[] = {
    {"", "t.yaml:1:1: nothing in it"},
    {"# only a comment\n", "t.yaml:2:1: nothing in it"},
    {"---\n...\n", "t.yaml:2:1: nothing in it"},
    {"- a\n", "t.yaml:1:1: not a map"},
    {"text\n", "t.yaml:1:1: not a map"},
    {"{}\n", "t.yaml:1:2: unknown key"},
    {"scenario:\n- " ROW, "t.yaml:1:1: unknown key \"scenario\"; scenarios is allowed"},
    {"scenarios: 3\n", "t.yaml:1:12: scenarios is not a list"},
    {"scenarios:\n", "t.yaml:1:11: scenarios is not a list"},
    {"scenarios: []\n", "t.yaml:1:13: no class"},
    {"scenarios: [1]\n", "t.yaml:1:13: not a map; each class is a map of id, name"},
    {HEAD ROW "\nmore: 1\n", "t.yaml:3:1: a second key"},
    {HEAD ROW "\n---\na: b\n", "t.yaml:3:1: a second document"},
    {HEAD ROW "\n- " ROW, "t.yaml:3:3: its id is another class's"},
    {HEAD ROW "\n- {id: 2, name: a, retention: 1d, from: put, nvme: false}",
     "t.yaml:3:3: its name is another class's"},
    {HEAD "{id: 1, id: 2, name: a, retention: 1d, from: put, nvme: false}",
     "t.yaml:2:11: id a second time"},
    {HEAD "{id: 1, name: a, retention: 1d, from: put}", "t.yaml:2:3: a class needs"},
    {HEAD "{name: a, retention: 1d, from: put, nvme: false}", "t.yaml:2:3: a class needs"},
    {HEAD "{}", "t.yaml:2:3: a class needs"},
    {HEAD "{id: 1, colour: red}", "t.yaml:2:11: unknown key \"colour\"; id, name, retention, from"},
    {HEAD "{id: 1, ? [x] : red}", "t.yaml:2:13: unknown key"},
    {HEAD "{id: [1]}", "t.yaml:2:8: id has no single value"},
    {HEAD "{id: }", "t.yaml:2:8: id has no single value"},
    {HEAD "{id: 0}", "t.yaml:2:8: id is \"0\"; a whole number from 1 to 65535 is allowed"},
    {HEAD "{id: 010}", "t.yaml:2:8: id is \"010\""},
    {HEAD "{id: 12k}", "t.yaml:2:8: id is \"12k\""},
    {HEAD "{id: 0x10}", "t.yaml:2:8: id is \"0x10\""},
    {HEAD "{id: -1}", "t.yaml:2:8: id is \"-1\""},
    {HEAD "{id: +1}", "t.yaml:2:8: id is \"+1\""},
    {HEAD "{id: 1.0}", "t.yaml:2:8: id is \"1.0\""},
    {HEAD "{id: ' 1'}", "t.yaml:2:8: id is \" 1\""},
    {HEAD "{id: 65536}", "t.yaml:2:8: id is"},
    {HEAD "{id: 99999999999999999999999}", "t.yaml:2:8: id is"},
    {HEAD "{name: ''}", "t.yaml:2:10: name is \"\""},
    {HEAD "{name: Chat}", "t.yaml:2:10: name is \"Chat\"; a small letter"},
    {HEAD "{name: 1a}", "t.yaml:2:10: name is"},
    {HEAD "{name: a b}", "t.yaml:2:10: name is"},
    {HEAD "{name: abcdefghijklmnopqrstuvwxyzabcdef}", "t.yaml:2:10: name is"},
    {HEAD "{retention: 7}", "t.yaml:2:15: retention is \"7\"; a whole number with a unit"},
    {HEAD "{retention: 7w}", "t.yaml:2:15: retention is"},
    {HEAD "{retention: 7 d}", "t.yaml:2:15: retention is"},
    {HEAD "{retention: 07d}", "t.yaml:2:15: retention is"},
    {HEAD "{retention: 1.5d}", "t.yaml:2:15: retention is"},
    {HEAD "{retention: d}", "t.yaml:2:15: retention is"},
    {HEAD "{retention: 0s}", "t.yaml:2:15: retention is"},
    {HEAD "{retention: 3651d}", "t.yaml:2:15: retention is \"3651d\""},
    {HEAD "{retention: 18446744073709551615d}", "t.yaml:2:15: retention is"},
    {HEAD "{slice: 59s}", "t.yaml:2:11: slice is \"59s\""},
    {HEAD "{slice: 31d}", "t.yaml:2:11: slice is"},
    {HEAD "{from: use}", "t.yaml:2:10: from is \"use\"; last-use or put is allowed"},
    {HEAD "{nvme: yes}", "t.yaml:2:10: nvme is \"yes\"; true or false is allowed"},
    {HEAD "{id: 1, name: a, retention: 1d, from: put, nvme: false, slice: 1h}",
     "t.yaml:2:3: slice without nvme: true"},
    {HEAD "{id: 1, name: a, retention: 1d, from: put, nvme: true}",
     "t.yaml:2:3: nvme: true without slice"},
    {HEAD "&x {id: 1}", "t.yaml:2:3: anchor &x"},
    {HEAD "{id: *x}", "t.yaml:2:8: alias *x"},
    {HEAD "{id: !!int 1}", "t.yaml:2:8: tag tag:yaml.org,2002:int"},
    {HEAD "{id: \"1\\0 2\"}", "t.yaml:2:8: a zero byte"},
    {HEAD "{id: 1\n", "t.yaml:3:1: not YAML"},
    {"scenarios:\n\t- x\n", "t.yaml:2:1: not YAML"},
    {"scenarios: \"\xff\"\n", "t.yaml: byte 12: "},
};

static void test_bad_input(void **state)
{
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof(bad_rows) / sizeof(bad_rows[0]); i++) {
        const struct bad *b = &bad_rows[i];
        SCENARIOS *s = NULL;
        struct kvd_diag diag;
        int err = parse(b->text, &diag, &s);
        if (err != -KVD_E_CONFIG || s || strncmp(diag.text, b->say, strlen(b->say)) != 0) {
            print_error("for  %s\nwant %s\ngot  %d %s\n", b->text, b->say, err, diag.text);
            wrong++;
        }
    }
    assert_int_equal(wrong, 0);
}

/* Every text that is cut short anywhere is refused or is whole: never a crash, never half a table
 * without a word. */
static void test_cut_short(void **state)
{
    (void)state;
    size_t bytes = 0;
    const char *text = kvd_scenarios_builtin(&bytes);
    for (size_t n = 0; n < bytes; n++) {
        SCENARIOS *s = NULL;
        struct kvd_diag diag = {""};
        int err = kvd_scenarios_parse(text, n, "cut", &diag, &s);
        assert_true(err == 0 ? kvd_scenarios_count(s) >= 1 && !diag.text[0]
                             : err == -KVD_E_CONFIG && strncmp(diag.text, "cut:", 4) == 0);
    }
}

static void test_one_too_many(void **state)
{
    (void)state;
    char text[8192] = "scenarios:\n";
    size_t n = strlen(text);
    for (int i = 1; i <= KVD_SCENARIOS_MAX + 1; i++) {
        struct kvd_diag diag;
        SCENARIOS *s = NULL;
        n += (size_t)snprintf(text + n, sizeof(text) - n,
                              "- {id: %d, name: c%d, retention: 1d, from: put, nvme: false}\n", i,
                              i);
        int err = parse(text, &diag, &s);
        assert_int_equal(err, i <= KVD_SCENARIOS_MAX ? 0 : -KVD_E_CONFIG);
        if (err) {
            assert_string_equal(diag.text, "t.yaml:34:3: one class too many; 32 are allowed");
        }
    }
}

static void test_number(void **state)
{
    (void)state;
    const char *end = NULL;
    uint64_t v = 0;
    assert_true(kvd_number_read("18446744073709551615", &end, &v));
    assert_true(v == UINT64_MAX && !*end);
    assert_false(kvd_number_read("18446744073709551616", &end, &v));
    assert_true(kvd_number_read("0x", &end, &v));
    assert_string_equal(end, "x");
    assert_false(kvd_number_read("", &end, &v));
    assert_false(kvd_number_read("00", &end, &v));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_builtin),      cmocka_unit_test(test_absent),
    cmocka_unit_test(test_bad_input),    cmocka_unit_test(test_cut_short),
    cmocka_unit_test(test_one_too_many), cmocka_unit_test(test_number),
};
KVD_TEST_MAIN(tests)
