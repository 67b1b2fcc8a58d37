/* The index at work: look-ups, changes seen through the writer, rows, walks, the queue's bound,
 * forgetting, values that can't be read. */
#include <semaphore.h>

#include "index_test.h"

enum { CHAIN = 100 };

static void test_finds_a_chain(void **state)
{
    struct bench *b = *state;
    struct kvd_key keys[CHAIN];
    struct kvd_index_entry got[CHAIN];
    uint8_t found[CHAIN];
    chain_make(CHAIN, 0, CHAIN, keys);
    put_chain(b, keys, 0, 70, 0);
    assert_int_equal(kvd_index_lookup(b->index, keys, 0, CHAIN, 0, got, found), 0);
    for (uint32_t i = 0; i < CHAIN; i++) {
        assert_int_equal(found[i], i < 70 ? KVD_INDEX_FOUND : KVD_INDEX_ABSENT);
        if (i < 70) {
            struct kvd_index_entry want = entry_at(7, (uint64_t)i * 4096);
            assert_entry_equal(&got[i], &want);
        }
    }
    /* beginning in the middle of a group */
    assert_int_equal(kvd_index_lookup(b->index, keys, 45, 40, 0, got, found), 0);
    for (uint32_t i = 0; i < 40; i++) {
        assert_int_equal(found[i], 45 + i < 70 ? KVD_INDEX_FOUND : KVD_INDEX_ABSENT);
        assert_true(found[i] != KVD_INDEX_FOUND || got[i].offset == (45 + i) * 4096);
    }
    /* a hole: what is behind it is still found */
    struct kvd_key other[CHAIN];
    chain_make(0, 9, CHAIN, other);
    put_chain(b, other, 0, 3, 0);
    put_chain(b, other, 5, 2, 0);
    assert_int_equal(kvd_index_lookup(b->index, other, 0, 8, 0, got, found), 0);
    static const uint8_t want[] = {1, 1, 1, 0, 0, 1, 1, 0};
    assert_memory_equal(found, want, sizeof(want));
    assert_int_equal(kvd_index_lookup(b->index, other, 0, 0, 0, got, found), 0);
}

static void test_siblings(void **state)
{
    struct bench *b = *state;
    struct kvd_key one[64];
    struct kvd_key two[64];
    struct kvd_index_entry got[64];
    uint8_t found[64];
    chain_make(10, 1, 64, one);
    chain_make(10, 2, 64, two);
    put_chain(b, one, 0, 40, 0);
    assert_int_equal(kvd_index_lookup(b->index, two, 0, 64, 0, got, found), 0);
    for (uint32_t i = 0; i < 64; i++) {
        /* from block 32 on the chains are of different groups */
        assert_int_equal(found[i], i < 10   ? KVD_INDEX_FOUND
                                   : i < 32 ? KVD_INDEX_SIBLING
                                            : KVD_INDEX_ABSENT);
    }
    /* both stand at the same places: both are found */
    put_chain(b, two, 0, 40, 0);
    for (uint32_t i = 0; i < 40; i++) {
        assert_int_equal(find(b, one, i, 0, got), KVD_INDEX_FOUND);
        assert_int_equal(find(b, two, i, 0, got), KVD_INDEX_FOUND);
    }
}

static void test_ranks(void **state)
{
    struct bench *b = *state;
    struct kvd_key keys[8];
    struct kvd_index_entry got;
    chain_make(8, 0, 8, keys);
    put_chain(b, keys, 0, 8, 1);
    assert_int_equal(find(b, keys, 2, 1, &got), KVD_INDEX_FOUND);
    /* another rank of the same block is no other block */
    assert_int_equal(find(b, keys, 2, 0, &got), KVD_INDEX_ABSENT);
    assert_int_equal(find(b, keys, 2, 2, &got), KVD_INDEX_ABSENT);
}

/* Two hundred conversations with one beginning: each is found, and absent ones are seen as
 * siblings, whichever side of the others their keys fall on. */
static void test_crowded_group(void **state)
{
    struct bench *b = *state;
    enum { FORKS = 200, LONG = 32 };
    struct kvd_key keys[LONG];
    struct kvd_index_entry got[LONG];
    uint8_t found[LONG];
    for (uint32_t f = 0; f < FORKS; f++) {
        chain_make(1, f, LONG, keys);
        put_chain(b, keys, 0, f % 2 ? LONG : 20, 0);
    }
    for (uint32_t f = 0; f < 2 * FORKS; f++) {
        chain_make(1, f, LONG, keys);
        assert_int_equal(kvd_index_lookup(b->index, keys, 0, LONG, 0, got, found), 0);
        for (uint32_t i = 0; i < LONG; i++) {
            bool there = i == 0 || (f < FORKS && (f % 2 || i < 20));
            assert_int_equal(found[i], there ? KVD_INDEX_FOUND : KVD_INDEX_SIBLING);
        }
    }
}

/* Several changes of one entry in one batch see one another. */
static void test_changes_of_one_batch(void **state)
{
    struct bench *b = *state;
    struct kvd_key keys[1];
    struct kvd_index_entry got;
    chain_make(1, 0, 1, keys);
    struct kvd_index_id id = id_of(keys, 0, 0);
    struct kvd_index_entry touched = entry_at(0, 0);
    touched.last_use_day += 5;
    touched.scenario = 2;
    struct kvd_index_change changes[] = {
        {.kind = KVD_INDEX_PUT, .id = id, .entry = entry_at(1, 0)},
        {.kind = KVD_INDEX_TOUCH, .id = id, .entry = touched},
        {.kind = KVD_INDEX_MOVE, .id = id, .entry = entry_at(2, 4096), .expect_segment = 1},
        /* too late: the entry is elsewhere by now */
        {.kind = KVD_INDEX_MOVE, .id = id, .entry = entry_at(3, 0), .expect_segment = 1},
        {.kind = KVD_INDEX_GONE, .id = id, .entry = {.gone = 2}, .expect_segment = 1},
    };
    submit(b, changes, 5);
    assert_int_equal(kvd_index_sync(b->index, false), 0);
    assert_int_equal(find(b, keys, 0, 0, &got), KVD_INDEX_FOUND);
    assert_true(got.segment == 2 && got.offset == 4096 && got.gone == 0);
    assert_true(got.scenario == 2 && got.last_use_day == touched.last_use_day);
    changes[4].expect_segment = 2;
    changes[4].expect_offset = 4096;
    submit(b, &changes[4], 1);
    assert_int_equal(kvd_index_sync(b->index, true), 0);
    assert_int_equal(find(b, keys, 0, 0, &got), KVD_INDEX_FOUND);
    assert_true(got.segment == 0 && got.gone == 2); /* the ghost explains the miss */
}

static void test_ghost_without_an_entry(void **state)
{
    struct bench *b = *state;
    struct kvd_key keys[2];
    struct kvd_index_entry got;
    chain_make(2, 0, 2, keys);
    struct kvd_index_change c = {.kind = KVD_INDEX_GONE,
                                 .id = id_of(keys, 1, 0),
                                 .entry = {.gone = 1, .gone_s = 1234, .created_day = 9}};
    submit(b, &c, 1);
    assert_int_equal(kvd_index_sync(b->index, false), 0);
    assert_int_equal(find(b, keys, 1, 0, &got), KVD_INDEX_FOUND);
    assert_true(got.segment == 0 && got.gone == 1 && got.gone_s == 1234 && got.created_day == 9);
}

struct told {
    int result;
    uint32_t order;
    uint32_t *next;
};

static void tell(int result, void *user)
{
    struct told *t = user;
    t->result = result;
    t->order = (*t->next)++;
}

/* Callbacks come once, in order, and before a sync that was asked for later returns. */
static void test_callbacks(void **state)
{
    struct bench *b = *state;
    enum { CALLS = 50 };
    struct kvd_key keys[CALLS];
    struct told told[CALLS];
    uint32_t next = 0;
    chain_make(CALLS, 0, CALLS, keys);
    for (uint32_t i = 0; i < CALLS; i++) {
        struct kvd_index_change c = {
            .kind = KVD_INDEX_PUT, .id = id_of(keys, i, 0), .entry = entry_at(1, i)};
        told[i] = (struct told){.result = 99, .order = 99, .next = &next};
        assert_int_equal(kvd_index_submit(b->index, &c, 1, tell, &told[i]), 0);
    }
    assert_int_equal(kvd_index_sync(b->index, false), 0);
    assert_int_equal(next, CALLS);
    for (uint32_t i = 0; i < CALLS; i++) {
        assert_true(told[i].result == 0 && told[i].order == i);
    }
}

struct gate {
    sem_t entered;
    sem_t go;
};

static void hold(int result, void *user)
{
    struct gate *g = user;
    (void)result;
    (void)sem_post(&g->entered);
    (void)sem_wait(&g->go);
}

static void test_queue_is_bounded(void **state)
{
    struct bench *b = *state;
    enum { LOT = 8192, LIMIT = 65536 };
    struct gate gate;
    struct kvd_key keys[1];
    struct kvd_index_entry got;
    struct kvd_index_stat stat;
    struct kvd_index_change *lot = calloc(LIMIT + 1, sizeof(*lot));
    chain_make(1, 0, 1, keys);
    for (uint32_t i = 0; i <= LIMIT; i++) {
        lot[i] = (struct kvd_index_change){
            .kind = KVD_INDEX_TOUCH, .id = id_of(keys, 0, 0), .entry = entry_at(0, 0)};
    }
    assert_int_equal(sem_init(&gate.entered, 0, 0), 0);
    assert_int_equal(sem_init(&gate.go, 0, 0), 0);
    assert_int_equal(kvd_index_submit(b->index, lot, LIMIT + 1, NULL, NULL), -KVD_E_TOO_LONG);
    lot[0].kind = KVD_INDEX_PUT;
    assert_int_equal(kvd_index_submit(b->index, lot, 1, hold, &gate), 0);
    assert_int_equal(sem_wait(&gate.entered), 0); /* the writer stands still from here */
    for (uint32_t i = 0; i < LIMIT / LOT; i++) {
        assert_int_equal(kvd_index_submit(b->index, lot + 1, LOT, NULL, NULL), 0);
    }
    kvd_index_stat(b->index, &stat);
    assert_int_equal(stat.queued, LIMIT);
    assert_int_equal(kvd_index_submit(b->index, lot + 1, 1, NULL, NULL), -KVD_E_BUSY);
    assert_int_equal(find(b, keys, 0, 0, &got), KVD_INDEX_FOUND); /* reading goes on */
    assert_int_equal(sem_post(&gate.go), 0);
    assert_int_equal(kvd_index_sync(b->index, false), 0);
    kvd_index_stat(b->index, &stat);
    assert_int_equal(stat.queued, 0);
    assert_int_equal(kvd_index_submit(b->index, lot + 1, 1, NULL, NULL), 0);
    assert_int_equal(kvd_index_sync(b->index, false), 0);
    (void)sem_destroy(&gate.entered);
    (void)sem_destroy(&gate.go);
    free(lot);
}

struct rows_seen {
    char text[256];
    int stop_after;
};

static int see_row(const void *key, uint32_t key_bytes, const void *value, uint32_t value_bytes,
                   void *user)
{
    struct rows_seen *s = user;
    size_t n = strlen(s->text);
    (void)snprintf(s->text + n, sizeof(s->text) - n, "%.*s=%.*s;", (int)key_bytes,
                   (const char *)key, (int)value_bytes, (const char *)value);
    return --s->stop_after == 0 ? 5 : 0;
}

static void test_rows(void **state)
{
    struct bench *b = *state;
    struct rows_seen seen = {.text = ""};
    void *value = NULL;
    uint32_t bytes = 0;
    for (int t = KVD_INDEX_SPACES; t <= KVD_INDEX_META; t++) {
        enum kvd_index_table table = (enum kvd_index_table)t;
        char text[2] = {(char)('0' + t), 0};
        assert_int_equal(kvd_index_row_put(b->index, table, "k2", 2, text, 1, false), 0);
        assert_int_equal(kvd_index_row_put(b->index, table, "k10", 3, "", 0, true), 0);
        assert_int_equal(kvd_index_row_put(b->index, table, "k1", 2, "old", 3, false), 0);
        assert_int_equal(kvd_index_row_put(b->index, table, "k1", 2, "new", 3, false), 0);
        assert_int_equal(kvd_index_row_get(b->index, table, "k2", 2, &value, &bytes), 0);
        assert_true(bytes == 1 && memcmp(value, text, 1) == 0); /* tables are apart */
        free(value);
    }
    assert_int_equal(kvd_index_row_walk(b->index, KVD_INDEX_SEGMENTS, see_row, &seen), 0);
    assert_string_equal(seen.text, "k1=new;k10=;k2=1;");
    seen = (struct rows_seen){.text = "", .stop_after = 2};
    assert_int_equal(kvd_index_row_walk(b->index, KVD_INDEX_SPACES, see_row, &seen), 5);
    assert_string_equal(seen.text, "k1=new;k10=;");
    assert_int_equal(kvd_index_row_put(b->index, KVD_INDEX_META, "k1", 2, NULL, 0, true), 0);
    assert_int_equal(kvd_index_row_get(b->index, KVD_INDEX_META, "k1", 2, &value, &bytes),
                     -KVD_E_NOT_FOUND);
    assert_int_equal(kvd_index_row_get(b->index, KVD_INDEX_META, "k", 1, &value, &bytes),
                     -KVD_E_NOT_FOUND);
}

struct walk_seen {
    uint32_t n;
    uint32_t stop_after;
    struct kvd_index_id last;
};

static int see_entry(const struct kvd_index_id *id, const struct kvd_index_entry *entry, void *user)
{
    struct walk_seen *s = user;
    uint8_t before[KVD_ENTRY_KEY_BYTES];
    uint8_t now[KVD_ENTRY_KEY_BYTES];
    kvd_entry_key_encode(&s->last, before);
    kvd_entry_key_encode(id, now);
    assert_true(s->n == 0 || memcmp(before, now, sizeof(now)) < 0);
    assert_true(entry->segment == 7 && entry->offset == (uint64_t)id->index * 4096);
    s->last = *id;
    s->n++;
    return s->n == s->stop_after ? -7 : 0;
}

static void test_walk(void **state)
{
    struct bench *b = *state;
    struct kvd_key keys[CHAIN];
    for (uint32_t f = 0; f < 5; f++) {
        chain_make(0, f, CHAIN, keys);
        put_chain(b, keys, 0, CHAIN, 0);
    }
    struct walk_seen seen = {.n = 0};
    assert_int_equal(kvd_index_walk(b->index, see_entry, &seen), 0);
    assert_int_equal(seen.n, 5 * CHAIN);
    seen = (struct walk_seen){.stop_after = 3};
    assert_int_equal(kvd_index_walk(b->index, see_entry, &seen), -7);
    assert_int_equal(seen.n, 3);
}

static void put_raw(struct bench *b, const struct kvd_index_id *id, const void *value, size_t bytes)
{
    const struct index_store *s = &b->index->store;
    uint8_t key[KVD_ENTRY_KEY_BYTES];
    char *error = NULL;
    kvd_entry_key_encode(id, key);
    rocksdb_put_cf(s->db, s->write, s->families[FAMILY_BLOCKS], (const char *)key, sizeof(key),
                   value, bytes, &error);
    assert_null(error);
}

static void compact(struct bench *b)
{
    const struct index_store *s = &b->index->store;
    rocksdb_compact_range_cf(s->db, s->families[FAMILY_BLOCKS], NULL, 0, NULL, 0);
}

/* Values of a newer version or none at all are absent, are counted, and can be written over. */
static void test_unreadable_values(void **state)
{
    struct bench *b = *state;
    struct kvd_key keys[4];
    struct kvd_index_entry got[4];
    struct kvd_index_stat stat;
    uint8_t found[4];
    uint8_t value[KVD_ENTRY_VALUE_BYTES];
    struct kvd_index_entry entry = entry_at(1, 0);
    chain_make(4, 0, 4, keys);
    put_chain(b, keys, 0, 4, 0);
    kvd_entry_encode(&entry, value);
    value[0] = 2;
    struct kvd_index_id id1 = id_of(keys, 1, 0);
    struct kvd_index_id id2 = id_of(keys, 2, 0);
    put_raw(b, &id1, value, sizeof(value));
    put_raw(b, &id2, "rubbish", 7);
    assert_int_equal(kvd_index_lookup(b->index, keys, 0, 4, 0, got, found), 0);
    static const uint8_t want[] = {1, 0, 0, 1};
    assert_memory_equal(found, want, sizeof(want));
    kvd_index_stat(b->index, &stat);
    assert_int_equal(stat.undecodable, 2);
    struct walk_seen seen = {.n = 0};
    assert_int_equal(kvd_index_walk(b->index, see_entry, &seen), 0);
    assert_int_equal(seen.n, 2);
    compact(b); /* kept: a newer version may read them */
    struct kvd_index_change touch = {.kind = KVD_INDEX_TOUCH, .id = id1, .entry = entry_at(0, 0)};
    submit(b, &touch, 1);
    put_chain(b, keys, 2, 1, 0);
    assert_int_equal(find(b, keys, 1, 0, got), KVD_INDEX_ABSENT);
    assert_int_equal(find(b, keys, 2, 0, got), KVD_INDEX_FOUND);
    kvd_index_stat(b->index, &stat);
    assert_true(stat.undecodable >= 5);
}

static bool forget_ghosts(const struct kvd_index_entry *entry, void *user)
{
    return entry->segment == 0 && entry->gone_s < *(const uint64_t *)user;
}

static void test_compaction_forgets(void **state)
{
    struct bench *b = *state;
    struct kvd_key keys[30];
    struct kvd_index_entry got[30];
    uint8_t found[30];
    uint64_t before_s = 1000;
    chain_make(30, 0, 30, keys);
    put_chain(b, keys, 0, 30, 0);
    for (uint32_t i = 0; i < 20; i++) {
        struct kvd_index_change c = {.kind = KVD_INDEX_GONE,
                                     .id = id_of(keys, i, 0),
                                     .entry = {.gone = 1, .gone_s = i < 10 ? 999 : 1000},
                                     .expect_segment = 7,
                                     .expect_offset = (uint64_t)i * 4096};
        submit(b, &c, 1);
    }
    assert_int_equal(kvd_index_sync(b->index, false), 0);
    compact(b); /* nobody was asked to forget */
    assert_int_equal(kvd_index_lookup(b->index, keys, 0, 30, 0, got, found), 0);
    for (uint32_t i = 0; i < 30; i++) {
        assert_int_equal(found[i], KVD_INDEX_FOUND);
    }
    kvd_index_on_compaction(b->index, forget_ghosts, &before_s);
    compact(b);
    assert_int_equal(kvd_index_lookup(b->index, keys, 0, 30, 0, got, found), 0);
    for (uint32_t i = 0; i < 30; i++) {
        assert_int_equal(found[i], i < 10 ? KVD_INDEX_ABSENT : KVD_INDEX_FOUND);
    }
    kvd_index_on_compaction(b->index, NULL, NULL);
    before_s = 2000;
    compact(b);
    assert_int_equal(find(b, keys, 15, 0, got), KVD_INDEX_FOUND);
}

static void test_figures(void **state)
{
    struct bench *b = *state;
    struct kvd_key keys[CHAIN];
    struct kvd_index_stat stat;
    chain_make(CHAIN, 0, CHAIN, keys);
    put_chain(b, keys, 0, CHAIN, 0);
    kvd_index_stat(b->index, &stat);
    assert_int_equal(stat.entries_estimate, CHAIN);
    assert_true(stat.disk_bytes > 0 && stat.failed_writes == 0 && stat.read_errors == 0);
}

#define WITH_INDEX(fn) cmocka_unit_test_setup_teardown(fn, bench_setup, bench_teardown)

static const struct CMUnitTest tests[] = {
    WITH_INDEX(test_finds_a_chain),
    WITH_INDEX(test_siblings),
    WITH_INDEX(test_ranks),
    WITH_INDEX(test_crowded_group),
    WITH_INDEX(test_changes_of_one_batch),
    WITH_INDEX(test_ghost_without_an_entry),
    WITH_INDEX(test_callbacks),
    WITH_INDEX(test_queue_is_bounded),
    WITH_INDEX(test_rows),
    WITH_INDEX(test_walk),
    WITH_INDEX(test_unreadable_values),
    WITH_INDEX(test_compaction_forgets),
    WITH_INDEX(test_figures),
};
KVD_TEST_MAIN(tests)
