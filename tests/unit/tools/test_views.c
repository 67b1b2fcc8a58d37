/* The daemon's reports as text: right ones, and ones that lack something or do not add up. */
#include "kvd_test.h"

#include "tools/kvdepot/hitrate_view.h"
#include "tools/kvdepot/report.h"
#include "tools/kvdepot/status_view.h"
#include "tools/kvdepot/verify_view.h"

static const char status_report[] =
    "{\"schema\":1,\"health\":\"degraded\",\"problems\":[\"nvme: the device is full\"],"
    "\"version\":\"0.1.0\",\"store\":\"9f3a\",\"uptime_s\":3725,\"io\":\"io_uring\","
    "\"clients\":2,\"leases\":3,\"tiers\":["
    "{\"name\":\"dram\",\"cap_bytes\":268435456,\"used_bytes\":67108864,\"blocks\":45,"
    "\"pinned_bytes\":1474560,\"evicted_blocks\":0,\"state\":\"ok\"},"
    "{\"name\":\"nvme\",\"cap_bytes\":1073741824,\"used_bytes\":1073741824,\"blocks\":1234,"
    "\"segments\":16,\"quarantined\":3,\"newer_files\":1,\"queue_bytes\":0,\"written_bytes\":1,"
    "\"read_bytes\":0,\"dropped_blocks\":7,"
    "\"state\":\"full\"}],"
    "\"index\":{\"entries\":1234,\"queued\":0,\"disk_bytes\":2048},"
    "\"puts\":{\"committed_blocks\":1234,\"refused_blocks\":1,\"not_written_down_blocks\":2},"
    "\"corrupt\":1,\"scrub\":{\"running\":false,\"rate\":8388608,\"last\":{\"ago_s\":7200,"
    "\"tiers\":["
    "{\"name\":\"nvme\",\"records\":1200,\"expected\":1234,\"bytes\":2097152,\"bad\":3},"
    "{\"name\":\"dram\",\"records\":45,\"expected\":45,\"bytes\":1048576,\"bad\":0}]}},"
    "\"scenarios\":[{\"name\":\"chat\",\"retention_s\":604800,\"dram_bytes\":1024,"
    "\"nvme_bytes\":0}],\"rates\":{\"window\":\"10s\",\"lookups_per_s\":1.5,"
    "\"asked_tokens_per_s\":1000,\"hit_tokens_per_s\":900.4}}";

#define AMOUNT(tokens, blocks, bytes)                                                              \
    "{\"tokens\":" #tokens ",\"blocks\":" #blocks ",\"bytes\":" #bytes "}"
#define ZERO AMOUNT(0, 0, 0)
#define HITRATE(by, asked)                                                                         \
    "{\"schema\":1,\"window\":\"ever\",\"by\":\"" by "\",\"rows\":[{\"name\":\"" by                \
    "\",\"lookups\":12,\"asked\":" asked ",\"hit\":{\"hbm\":" ZERO                                 \
    ",\"dram\":" AMOUNT(1024, 16, 16384) ",\"nvme\":" AMOUNT(                                      \
        512, 8, 8192) ",\"remote\":" ZERO ",\"shared\":" ZERO                                      \
                      "},\"missed\":{\"never_seen\":" AMOUNT(450, 7, 7168) ",\"expired\":" ZERO    \
                                                                           ",\"short\":" AMOUNT(   \
                                                                               62, 1, 1024) "}}]}"
#define ASKED AMOUNT(2048, 32, 32768)

static json_t *parsed(const char *text)
{
    json_t *report = NULL;
    struct kvd_diag diag = {0};
    assert_int_equal(kvd_report_parse(text, &report, &diag), 0);
    return report;
}

struct output {
    char *text;
    size_t size;
    FILE *file;
};

static void output_open(struct output *out)
{
    out->file = open_memstream(&out->text, &out->size);
    assert_non_null(out->file);
}

static const char *output_text(struct output *out)
{
    (void)fflush(out->file);
    return out->text;
}

static void output_close(struct output *out)
{
    (void)fclose(out->file);
    free(out->text);
}

static void test_report_refused(void **state)
{
    json_t *report = NULL;
    struct kvd_diag diag = {0};
    assert_int_equal(kvd_report_parse("{\"schema\":1", &report, &diag), -KVD_E_FORMAT);
    assert_non_null(strstr(diag.text, "not JSON"));
    assert_int_equal(kvd_report_parse("{}", &report, &diag), -KVD_E_FORMAT);
    assert_int_equal(kvd_report_parse("[]", &report, &diag), -KVD_E_FORMAT);
    assert_int_equal(kvd_report_parse("{\"schema\":2}", &report, &diag), -KVD_E_NEWER);
    assert_non_null(strstr(diag.text, "schema 2"));
    assert_null(report);
}

static void test_status_shows_health_first(void **state)
{
    json_t *report = parsed(status_report);
    struct output out;
    struct kvd_diag diag = {0};
    bool healthy = true;
    output_open(&out);
    assert_int_equal(kvd_status_view(report, out.file, &healthy, &diag), 0);
    assert_false(healthy);
    assert_string_equal(
        output_text(&out),
        "health: degraded\n"
        "  problem: nvme: the device is full\n"
        "kvdepotd 0.1.0, up 1 h 2 min, store 9f3a, file I/O by io_uring\n"
        "\n"
        "tier  state      used        cap     full  blocks\n"
        "dram  ok     64.0 MiB  256.0 MiB   25.0 %      45  pinned 1.4 MiB\n"
        "nvme  full    1.0 GiB    1.0 GiB  100.0 %   1,234  16 segments, written 1 B, 7 blocks "
        "thrown away, 3 bad records, 1 file of a newer version\n"
        "\n"
        "scenario  kept     dram  nvme\n"
        "chat       7 d  1.0 KiB   0 B\n"
        "\n"
        "clients  2, leases 3\n"
        "index    1,234 entries, 0 queued, 2.0 KiB on disk\n"
        "puts     1,234 blocks stored, 1 refused, 2 not written down\n"
        "corrupt  1 records found\n"
        "scrub    1,245 records (3.0 MiB) read over again, 3 bad; 2 h ago\n"
        "rates    1.5 look-ups/s, 1000 tokens/s asked, 900 tokens/s hit (10s)\n");
    output_close(&out);
    json_decref(report);
}

/* Every field of the report that is shown is needed: without it there is an error, no crash. */
static void test_status_lacking_a_field(void **state)
{
    static const char *const needed[] = {"health", "problems", "version", "store",   "io",
                                         "index",  "puts",     "corrupt", "clients", "rates"};
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
        json_t *report = parsed(status_report);
        struct output out;
        struct kvd_diag diag = {0};
        bool healthy = false;
        assert_int_equal(json_object_del(report, needed[i]), 0);
        output_open(&out);
        assert_int_equal(kvd_status_view(report, out.file, &healthy, &diag), -KVD_E_FORMAT);
        assert_non_null(strstr(diag.text, needed[i]));
        output_close(&out);
        json_decref(report);
    }
}

static void test_hitrate_tiers(void **state)
{
    json_t *report = parsed(HITRATE("all", ASKED));
    struct output out;
    struct kvd_diag diag = {0};
    assert_int_equal(kvd_hitrate_check(report, &diag), 0);
    output_open(&out);
    assert_int_equal(kvd_hitrate_view_tiers(report, out.file), 0);
    assert_string_equal(output_text(&out),
                        "look-ups: 12 (window: ever)\n"
                        "\n"
                        "                    tokens    share  blocks     bytes\n"
                        "asked                2,048  100.0 %      32  32.0 KiB\n"
                        "hit     hbm              0    0.0 %       0       0 B\n"
                        "hit     dram         1,024   50.0 %      16  16.0 KiB\n"
                        "hit     nvme           512   25.0 %       8   8.0 KiB\n"
                        "hit     remote           0    0.0 %       0       0 B\n"
                        "hit     shared           0    0.0 %       0       0 B\n"
                        "missed  never_seen     450   22.0 %       7   7.0 KiB  never stored\n"
                        "missed  expired          0    0.0 %       0       0 B  its retention had "
                        "ended\n"
                        "missed  short           62    3.0 %       1   1.0 KiB  shorter than a "
                        "block, or the last token\n"
                        "\n"
                        "hit 1,536 + missed 512 = asked 2,048 tokens\n");
    output_close(&out);
    json_decref(report);
}

/* A window that a restart cut short, and since when "ever" is. */
static void test_hitrate_since(void **state)
{
    static const struct {
        const char *fields;
        const char *says;
    } cases[] = {
        {"{\"window\":\"1h\",\"since_s\":1767225600,\"counted_s\":200,\"restarted\":true}",
         "(window: 1h)\nthe daemon was started 3 min 20 s ago and has counted since then only\n\n"},
        {"{\"window\":\"1h\",\"since_s\":1767225600,\"counted_s\":3600,\"restarted\":false}",
         "(window: 1h)\n\n"},
        {"{\"window\":\"ever\",\"since_s\":1767225600,\"counted_s\":9,\"restarted\":false}",
         "(window: ever)\ncounted since 2026-01-01 00:00:00 UTC\n\n"},
        {"{\"window\":\"ever\",\"since_s\":null,\"counted_s\":null,\"restarted\":false}",
         "(window: ever)\n\n"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *report = parsed(HITRATE("all", ASKED));
        json_t *fields = json_loads(cases[i].fields, 0, NULL);
        struct output out;
        assert_int_equal(json_object_update(report, fields), 0);
        output_open(&out);
        assert_int_equal(kvd_hitrate_view_tiers(report, out.file), 0);
        assert_int_equal(kvd_hitrate_view_rows(report, out.file), 0);
        const char *first = strstr(output_text(&out), cases[i].says);
        assert_non_null(first);
        assert_non_null(strstr(first + 1, cases[i].says)); /* in both views */
        output_close(&out);
        json_decref(fields);
        json_decref(report);
    }
}

static void test_hitrate_rows(void **state)
{
    json_t *report = parsed(HITRATE("scenario", ASKED));
    struct output out;
    output_open(&out);
    assert_int_equal(kvd_hitrate_view_rows(report, out.file), 0);
    assert_string_equal(
        output_text(&out),
        "shares of the tokens asked (window: ever)\n"
        "\n"
        "scenario  look-ups  asked tokens     hit  hit dram  hit nvme  missed never_seen  missed "
        "short\n"
        "scenario        12         2,048  75.0 %    50.0 %    25.0 %             22.0 %         "
        "3.0 "
        "%\n");
    output_close(&out);
    json_decref(report);
}

static void test_hitrate_no_rows_yet(void **state)
{
    json_t *report = parsed("{\"schema\":1,\"window\":\"10s\",\"by\":\"tenant\",\"rows\":[]}");
    struct output out;
    struct kvd_diag diag = {0};
    assert_int_equal(kvd_hitrate_check(report, &diag), 0);
    output_open(&out);
    assert_int_equal(kvd_hitrate_view_rows(report, out.file), 0);
    assert_non_null(strstr(output_text(&out), "tenant  look-ups  asked tokens  hit\n"));
    output_close(&out);
    json_decref(report);
}

static void test_hitrate_must_add_up(void **state)
{
    static const char *const wrong[] = {
        HITRATE("all", AMOUNT(2049, 32, 32768)),
        HITRATE("all", AMOUNT(2048, 31, 32768)),
        HITRATE("all", AMOUNT(2048, 32, 0)),
    };
    for (size_t i = 0; i < 3; i++) {
        json_t *report = parsed(wrong[i]);
        struct kvd_diag diag = {0};
        assert_int_equal(kvd_hitrate_check(report, &diag), -KVD_E_CORRUPT);
        assert_non_null(strstr(diag.text, "do not add up"));
        json_decref(report);
    }
}

static void test_hitrate_bad_shape(void **state)
{
    static const char *const wrong[] = {
        "{\"schema\":1}",
        "{\"schema\":1,\"window\":\"ever\",\"by\":\"all\",\"rows\":[]}",
        "{\"schema\":1,\"window\":\"ever\",\"by\":\"tenant\",\"rows\":{}}",
        "{\"schema\":1,\"window\":\"ever\",\"by\":\"tenant\",\"rows\":[7]}",
        HITRATE("all", "{\"tokens\":2048,\"blocks\":32}"),
        HITRATE("all", "{\"tokens\":-1,\"blocks\":32,\"bytes\":32768}"),
        HITRATE("all", "2048"),
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        json_t *report = parsed(wrong[i]);
        struct kvd_diag diag = {0};
        assert_int_equal(kvd_hitrate_check(report, &diag), -KVD_E_FORMAT);
        assert_true(strlen(diag.text) > 0);
        json_decref(report);
    }
}

static void test_hitrate_json_by_tier(void **state)
{
    json_t *report = parsed(HITRATE("all", ASKED));
    json_t *tiers = kvd_hitrate_by_tier(report);
    assert_non_null(tiers);
    json_t *rows = json_object_get(tiers, "rows");
    assert_int_equal(json_array_size(rows), 6);
    json_int_t tokens = 0;
    size_t index = 0;
    json_t *row = NULL;
    json_array_foreach(rows, index, row)
    {
        tokens += json_integer_value(json_object_get(row, "tokens"));
    }
    assert_int_equal(tokens, 2048);
    assert_string_equal(json_string_value(json_object_get(json_array_get(rows, 5), "name")),
                        "missed");
    json_decref(tiers);
    json_decref(report);
}

#define VERIFY(bad_dram, quarantined, rows)                                                        \
    "{\"schema\":1,\"running\":false,\"now\":{\"round\":7,\"ended_s\":5,\"seconds\":1,\"tiers\":[" \
    "{\"name\":\"nvme\",\"records\":1234,\"expected\":1300,\"bytes\":2097152,\"bad\":0,\"newer\":" \
    "2,"                                                                                           \
    "\"skipped\":0},{\"name\":\"dram\",\"records\":45,\"expected\":45,\"bytes\":1048576,"          \
    "\"bad\":" #bad_dram ",\"newer\":0,\"skipped\":0}]},\"quarantined\":" #quarantined             \
    ",\"bad\":[" rows "]}"
#define BAD_ROW                                                                                    \
    "{\"tier\":\"nvme\",\"segment\":3,\"offset\":4096,\"key\":\"0badf00d\",\"rank\":0,\"put_id\":" \
    "9,"                                                                                           \
    "\"when_s\":1,\"reason\":\"the payload\\u001b doesn't match its sum\"}"

static void test_verify(void **state)
{
    struct output out;
    struct kvd_diag diag = {0};
    bool good = false;
    uint64_t round = 0;
    bool ended = false;
    char progress[256];
    json_t *report = parsed(VERIFY(0, 0, ""));
    assert_int_equal(kvd_verify_course(report, &round, &ended, &diag), 0);
    assert_int_equal(round, 7);
    assert_true(ended);
    kvd_verify_progress(report, progress, sizeof(progress));
    assert_string_equal(progress, "nvme 1,234 of 1,300 records, 2.0 MiB; dram 45 of 45 records, "
                                  "1.0 MiB");
    output_open(&out);
    assert_int_equal(kvd_verify_view(report, out.file, &good, &diag), 0);
    assert_true(good);
    assert_string_equal(output_text(&out), "tier  records    bytes  bad  newer  skipped\n"
                                           "nvme    1,234  2.0 MiB    0      2        0\n"
                                           "dram       45  1.0 MiB    0      0        0\n");
    output_close(&out);
    json_decref(report);

    report = parsed(VERIFY(0, 3, BAD_ROW));
    output_open(&out);
    assert_int_equal(kvd_verify_view(report, out.file, &good, &diag), 0);
    assert_false(good);
    assert_non_null(strstr(output_text(&out), "0badf00d"));
    assert_non_null(strstr(output_text(&out), "payload? doesn't")); /* no terminal is steered */
    assert_non_null(strstr(output_text(&out), "and 2 more"));
    output_close(&out);
    json_decref(report);

    report = parsed(VERIFY(1, 0, "")); /* a bad slot of dram is not listed, but it was bad */
    assert_int_equal(kvd_verify_judge(report, &good, &diag), 0);
    assert_false(good);
    json_decref(report);
    report = parsed("{\"schema\":1,\"now\":{\"tiers\":[]}}");
    assert_int_equal(kvd_verify_judge(report, &good, &diag), -KVD_E_FORMAT);
    assert_int_equal(kvd_verify_course(report, &round, &ended, &diag), -KVD_E_FORMAT);
    json_decref(report);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_report_refused),         cmocka_unit_test(test_status_shows_health_first),
    cmocka_unit_test(test_status_lacking_a_field), cmocka_unit_test(test_hitrate_tiers),
    cmocka_unit_test(test_hitrate_rows),           cmocka_unit_test(test_hitrate_no_rows_yet),
    cmocka_unit_test(test_hitrate_must_add_up),    cmocka_unit_test(test_hitrate_bad_shape),
    cmocka_unit_test(test_hitrate_json_by_tier),   cmocka_unit_test(test_verify),
    cmocka_unit_test(test_hitrate_since),
};

KVD_TEST_MAIN(tests)
