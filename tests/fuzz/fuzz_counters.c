/*
 * Fuzz entry of what the index's rows hold: the counters' totals, entries and their keys. Any bytes
 * are refused, or give what encodes to the same again. Totals that are taken add up, in every way
 * they are divided, and go on adding up.
 *
 * Input: a byte that says which, then the bytes.
 */
#include "cachesvc/core/counting.h"
#include "cachesvc/index/entry.h"
#include "fuzz.h"

enum { COUNTERS, ENTRY, ENTRY_KEY, KINDS };

static void sum_row(const char *name, const struct kvd_tally *t, void *user)
{
    struct kvd_tally *sum = user;
    FUZZ_CHECK(name[0] != 0);
    sum->lookups += t->lookups;
    sum->asked.tokens += t->asked.tokens;
    for (int i = 0; i < KVD_TIER_COUNT; i++) {
        FUZZ_CHECK(t->hit[i].tokens <= t->asked.tokens);
        sum->hit[i].tokens += t->hit[i].tokens;
    }
    for (int i = 0; i < KVD_MISS_COUNT; i++) {
        FUZZ_CHECK(t->missed[i].blocks <= t->asked.blocks);
        sum->missed[i].blocks += t->missed[i].blocks;
    }
}

static void check_sums(struct kvd_counting *c, uint64_t now_s)
{
    struct kvd_tally all = {0};
    FUZZ_CHECK(kvd_counting_report(c, now_s, KVD_BY_ALL, KVD_WINDOW_EVER, sum_row, &all) == 0);
    for (int by = KVD_BY_SCENARIO; by <= KVD_BY_TENANT; by++) {
        struct kvd_tally sum = {0};
        FUZZ_CHECK(kvd_counting_report(c, now_s, (enum kvd_count_by)by, KVD_WINDOW_EVER, sum_row,
                                       &sum) == 0);
        FUZZ_CHECK(memcmp(&sum, &all, sizeof(sum)) == 0);
    }
}

static void count_one(struct kvd_counting *c, uint64_t now_s)
{
    const struct kvd_count_who who = {.scenario = "chat", .space_name = "m", .tenant_name = ""};
    struct kvd_tally t = {.lookups = 1, .asked = {64, 1, 4096}};
    struct kvd_count_slot slot;
    t.hit[KVD_TIER_DRAM] = t.asked;
    kvd_counting_lookup(c, now_s, &who, &t, &slot);
    kvd_counting_failed(c, &slot, &who, KVD_TIER_DRAM, &t.asked);
}

static void counters(const uint8_t *bytes, size_t n)
{
    struct kvd_counting *c = NULL;
    struct kvd_counting *again = NULL;
    struct kvd_diag diag = {""};
    void *out = NULL;
    void *out_again = NULL;
    uint32_t out_n = 0;
    uint32_t out_again_n = 0;
    FUZZ_CHECK(kvd_counting_create(1000, &c) == 0 && kvd_counting_create(1000, &again) == 0);
    const int err = kvd_counting_decode(c, bytes, (uint32_t)n, &diag);
    FUZZ_CHECK(err == 0 || diag.text[0] != 0);
    check_sums(c, 1000);
    FUZZ_CHECK(kvd_counting_encode(c, &out, &out_n) == 0);
    FUZZ_CHECK(kvd_counting_decode(again, out, out_n, &diag) == 0);
    FUZZ_CHECK(kvd_counting_encode(again, &out_again, &out_again_n) == 0);
    FUZZ_CHECK(out_n == out_again_n && memcmp(out, out_again, out_n) == 0);
    count_one(c, 1001);
    check_sums(c, 1001);
    free(out);
    free(out_again);
    kvd_counting_destroy(&c);
    kvd_counting_destroy(&again);
}

static void entry(const uint8_t *bytes, size_t n)
{
    struct kvd_index_entry e;
    uint8_t again[KVD_ENTRY_VALUE_BYTES];
    if (kvd_entry_decode(bytes, n, &e) == 0) {
        kvd_entry_encode(&e, again);
        FUZZ_CHECK(memcmp(again, bytes, n) == 0);
    }
}

static void entry_key(const uint8_t *bytes, size_t n)
{
    struct kvd_index_id id;
    uint8_t again[KVD_ENTRY_KEY_BYTES];
    if (kvd_entry_key_decode(bytes, n, &id) == 0) {
        kvd_entry_key_encode(&id, again);
        FUZZ_CHECK(memcmp(again, bytes, n) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t kind = size > 0 ? data[0] : 0;
    const size_t n = size - (size > 0);
    uint8_t *bytes = fuzz_exact(data + (size > 0), n);
    switch (kind % KINDS) {
    case COUNTERS:
        counters(bytes, n);
        break;
    case ENTRY:
        entry(bytes, n);
        break;
    default:
        entry_key(bytes, n);
        break;
    }
    free(bytes);
    return 0;
}
