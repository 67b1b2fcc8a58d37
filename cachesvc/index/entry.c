/* See entry.h. */
#include "cachesvc/index/entry.h"

#include <endian.h>
#include <string.h>

#include "proto/base/assert.h"
#include "proto/base/bytes.h"
#include "proto/base/protect.h"

void kvd_entry_key_encode(const struct kvd_index_id *id, uint8_t ret_key[KVD_ENTRY_KEY_BYTES])
{
    uint16_t rank = htobe16(id->rank);
    memcpy(ret_key, id->group.b, KVD_GROUP_ID_BYTES);
    kvd_put_be32(ret_key + KVD_GROUP_ID_BYTES, id->index);
    memcpy(ret_key + KVD_ENTRY_PLACE_BYTES, id->key.b, KVD_KEY_BYTES);
    memcpy(ret_key + KVD_ENTRY_PLACE_BYTES + KVD_KEY_BYTES, &rank, sizeof(rank));
}

int kvd_entry_key_decode(const void *key, size_t bytes, struct kvd_index_id *ret)
{
    const uint8_t *p = key;
    uint16_t rank = 0;
    if (bytes != KVD_ENTRY_KEY_BYTES) {
        return -KVD_E_CORRUPT;
    }
    memcpy(ret->group.b, p, KVD_GROUP_ID_BYTES);
    ret->index = kvd_get_be32(p + KVD_GROUP_ID_BYTES);
    memcpy(ret->key.b, p + KVD_ENTRY_PLACE_BYTES, KVD_KEY_BYTES);
    memcpy(&rank, p + KVD_ENTRY_PLACE_BYTES + KVD_KEY_BYTES, sizeof(rank));
    ret->rank = be16toh(rank);
    return 0;
}

void kvd_entry_encode(const struct kvd_index_entry *entry, uint8_t ret_value[KVD_ENTRY_VALUE_BYTES])
{
    ret_value[0] = KVD_ENTRY_VERSION;
    ret_value[1] = entry->gone;
    kvd_put_le16(ret_value + 2, entry->block_in_record);
    kvd_put_le16(ret_value + 4, entry->scenario);
    kvd_put_le32(ret_value + 6, entry->extent_bytes);
    kvd_put_le32(ret_value + 10, entry->last_use_day);
    kvd_put_le32(ret_value + 14, entry->created_day);
    kvd_put_le64(ret_value + 18, entry->segment);
    kvd_put_le64(ret_value + 26, entry->offset);
    kvd_put_le64(ret_value + 34, entry->put_id);
    kvd_put_le64(ret_value + 42, entry->gone_s);
}

int kvd_entry_decode(const void *value, size_t bytes, struct kvd_index_entry *ret)
{
    const uint8_t *p = value;
    if (bytes != KVD_ENTRY_VALUE_BYTES || p[0] != KVD_ENTRY_VERSION) {
        return -KVD_E_CORRUPT;
    }
    ret->gone = p[1];
    ret->block_in_record = kvd_get_le16(p + 2);
    ret->scenario = kvd_get_le16(p + 4);
    ret->extent_bytes = kvd_get_le32(p + 6);
    ret->last_use_day = kvd_get_le32(p + 10);
    ret->created_day = kvd_get_le32(p + 14);
    ret->segment = kvd_get_le64(p + 18);
    ret->offset = kvd_get_le64(p + 26);
    ret->put_id = kvd_get_le64(p + 34);
    ret->gone_s = kvd_get_le64(p + 42);
    return 0;
}

static void set_place(struct kvd_index_entry *to, const struct kvd_index_entry *from)
{
    to->segment = from->segment;
    to->offset = from->offset;
    to->extent_bytes = from->extent_bytes;
    to->block_in_record = from->block_in_record;
}

static void set_gone(struct kvd_index_entry *to, const struct kvd_index_entry *from)
{
    static const struct kvd_index_entry nowhere;
    set_place(to, &nowhere);
    to->gone = from->gone;
    to->gone_s = from->gone_s;
}

static bool change_touch(const struct kvd_index_entry *want, const struct kvd_index_entry *old,
                         struct kvd_index_entry *ret_new)
{
    bool later = want->last_use_day > old->last_use_day;
    if (!later && want->scenario == old->scenario) {
        return false;
    }
    *ret_new = *old;
    ret_new->scenario = want->scenario;
    ret_new->last_use_day = later ? want->last_use_day : old->last_use_day;
    return true;
}

bool kvd_entry_change(const struct kvd_index_change *change, const struct kvd_index_entry *old,
                      struct kvd_index_entry *ret_new)
{
    const struct kvd_index_entry *want = &change->entry;
    bool as_expected =
        old && old->segment == change->expect_segment && old->offset == change->expect_offset;
    switch (change->kind) {
    case KVD_INDEX_PUT:
        *ret_new = *want;
        if (KVD_PROTECT(FOUND_AGAIN_KEEPS_USE) && old && old->segment == want->segment &&
            old->offset == want->offset) {
            ret_new->scenario =
                old->scenario; /* found again after a crash: what used it since is kept */
            ret_new->created_day = old->created_day;
        }
        if (old && old->last_use_day > want->last_use_day) {
            ret_new->last_use_day = old->last_use_day;
        }
        return true;
    case KVD_INDEX_MOVE:
        if (as_expected) {
            *ret_new = *old;
            set_place(ret_new, want);
            ret_new->gone = 0; /* it is somewhere again, if it was a ghost */
            ret_new->gone_s = 0;
        }
        return as_expected;
    case KVD_INDEX_TOUCH:
        return old && change_touch(want, old, ret_new);
    case KVD_INDEX_GONE:
        if (!as_expected && (old || change->expect_segment != 0)) {
            return false;
        }
        *ret_new = old ? *old : *want;
        set_gone(ret_new, want);
        return true;
    }
    KVD_ASSERT(!"no such kind of change");
}
