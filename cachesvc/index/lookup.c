/*
 * Look-ups: the wanted blocks of a group and its entries are both in order, so one walk of an
 * iterator joins them. The walk must not be long where many conversations begin alike: they share
 * a group, and thousands of their blocks stand at one index. So after a few steps it seeks instead,
 * first to the index, then to the key: at most two seeks and 2 * STEPS_MAX steps a block.
 */
#include <string.h>

#include "cachesvc/index/entry.h"
#include "cachesvc/index/internal.h"
#include "proto/base/assert.h"

enum { STEPS_MAX = 8 };

/* Moves forward to the first entry that is not below the first n bytes of `to`. The iterator ends
 * with its group. */
static void forward(rocksdb_iterator_t *it, const uint8_t *to, size_t n)
{
    for (int steps = 0; rocksdb_iter_valid(it); steps++) {
        size_t bytes = 0;
        const char *at = rocksdb_iter_key(it, &bytes);
        if (bytes >= n && memcmp(at, to, n) >= 0) {
            return;
        }
        if (steps == STEPS_MAX) {
            rocksdb_iter_seek(it, (const char *)to, n);
            return;
        }
        rocksdb_iter_next(it);
    }
}

/* The entry that the iterator stands on, if it is of the given place (group and index). */
static const uint8_t *key_at_place(rocksdb_iterator_t *it, const uint8_t *place)
{
    size_t bytes = 0;
    const char *at = rocksdb_iter_valid(it) ? rocksdb_iter_key(it, &bytes) : NULL;
    bool here = at && bytes == KVD_ENTRY_KEY_BYTES && memcmp(at, place, KVD_ENTRY_PLACE_BYTES) == 0;
    return here ? (const uint8_t *)at : NULL;
}

/* Whether the iterator's entry is another block than the wanted one (not only another rank of it),
 * and readable. */
static bool is_sibling(struct kvd_index *index, rocksdb_iterator_t *it, const uint8_t *want)
{
    const uint8_t *at = key_at_place(it, want);
    struct kvd_index_entry entry;
    size_t bytes = 0;
    if (!at ||
        memcmp(at + KVD_ENTRY_PLACE_BYTES, want + KVD_ENTRY_PLACE_BYTES, KVD_KEY_BYTES) == 0) {
        return false;
    }
    const char *value = rocksdb_iter_value(it, &bytes);
    return index_entry_read(index, value, bytes, &entry);
}

/* Looks for one block; the iterator stands at or before its place in its group. */
static uint8_t find(struct kvd_index *index, rocksdb_iterator_t *it, const uint8_t *want,
                    struct kvd_index_entry *ret_entry)
{
    forward(it, want, KVD_ENTRY_PLACE_BYTES);
    bool sibling = is_sibling(index, it, want);
    forward(it, want, KVD_ENTRY_KEY_BYTES);
    const uint8_t *at = key_at_place(it, want);
    if (at && memcmp(at, want, KVD_ENTRY_KEY_BYTES) == 0) {
        size_t bytes = 0;
        const char *value = rocksdb_iter_value(it, &bytes);
        if (index_entry_read(index, value, bytes, ret_entry)) {
            return KVD_INDEX_FOUND;
        }
        rocksdb_iter_next(it);
    }
    return sibling || is_sibling(index, it, want) ? KVD_INDEX_SIBLING : KVD_INDEX_ABSENT;
}

/* NULL: the store is closed. Ends with end(). */
static rocksdb_iterator_t *begin(struct kvd_index *index)
{
    const struct index_store *s = &index->store;
    if (!index_store_get(index)) {
        return NULL;
    }
    return rocksdb_create_iterator_cf(s->db, s->read_group, s->families[FAMILY_BLOCKS]);
}

static int end(struct kvd_index *index, rocksdb_iterator_t *it)
{
    char *error = NULL;
    rocksdb_iter_get_error(it, &error);
    rocksdb_iter_destroy(it);
    index_store_put(index);
    return error ? index_read_failed(index, error) : 0;
}

int kvd_index_lookup(struct kvd_index *index, const struct kvd_key *keys, uint32_t first,
                     uint32_t n, uint16_t rank, struct kvd_index_entry *ret_entries,
                     uint8_t *ret_found)
{
    KVD_MAGIC_CHECK(index, INDEX_MAGIC);
    rocksdb_iterator_t *it = begin(index);
    if (!it) {
        return -KVD_E_IO;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct kvd_index_id id = {.index = first + i, .key = keys[first + i], .rank = rank};
        uint8_t want[KVD_ENTRY_KEY_BYTES];
        kvd_group_of(keys, id.index, &id.group);
        kvd_entry_key_encode(&id, want);
        if (i == 0 || id.index % KVD_GROUP_BLOCKS == 0) {
            rocksdb_iter_seek(it, (const char *)want, KVD_ENTRY_PLACE_BYTES);
        }
        memset(&ret_entries[i], 0, sizeof(ret_entries[i]));
        ret_found[i] = find(index, it, want, &ret_entries[i]);
    }
    return end(index, it);
}

int kvd_index_lookup_id(struct kvd_index *index, const struct kvd_index_id *id,
                        struct kvd_index_entry *ret_entry, uint8_t *ret_found)
{
    KVD_MAGIC_CHECK(index, INDEX_MAGIC);
    uint8_t want[KVD_ENTRY_KEY_BYTES];
    rocksdb_iterator_t *it = begin(index);
    if (!it) {
        return -KVD_E_IO;
    }
    kvd_entry_key_encode(id, want);
    rocksdb_iter_seek(it, (const char *)want, KVD_ENTRY_PLACE_BYTES);
    memset(ret_entry, 0, sizeof(*ret_entry));
    *ret_found = find(index, it, want, ret_entry);
    return end(index, it);
}
