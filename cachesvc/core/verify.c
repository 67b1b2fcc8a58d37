/*
 * Checking a record before anybody uses it: its header, whose it is, and its payload's sum. And
 * what becomes of a bad one, whoever found it: it is counted and said in the log, nobody is led
 * there again, and where a good copy of the block lies in dram, that one is written down anew.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "cachesvc/core/service_private.h"
#include "proto/base/cleanup.h"
#include "proto/base/protect.h"

int record_verify(const uint8_t *base, uint64_t extent_bytes,
                  const struct kvd_record_expect *expect, bool sums, uint32_t *token_buf,
                  struct kvd_record *ret_rec, uint32_t *ret_header_bytes, struct kvd_diag *diag)
{
    uint32_t header_bytes = 0;
    int err =
        kvd_record_decode(base, extent_bytes, token_buf, RECORD_TOKENS_MAX, ret_rec, &header_bytes);
    if (err) {
        return kvd_fail(diag, err == -KVD_E_NEWER ? err : -KVD_E_CORRUPT, "header: %s",
                        kvd_strerror(err));
    }
    if (kvd_record_extent_bytes(ret_rec) > extent_bytes) {
        return kvd_fail(diag, -KVD_E_CORRUPT, "the record is longer than its place");
    }
    err = expect ? kvd_record_check_identity(ret_rec, 0, expect, diag) : 0;
    if (err) {
        return err;
    }
    if (ret_rec->codec != KVD_CODEC_NONE) {
        return kvd_fail(diag, -KVD_E_NEWER, "codec %u isn't known to this version", ret_rec->codec);
    }
    if (sums && KVD_PROTECT(RECORD_SUM) && kvd_record_check_stored(ret_rec, base + header_bytes)) {
        return kvd_fail(diag, -KVD_E_CORRUPT, "the payload doesn't match its sum");
    }
    *ret_header_bytes = header_bytes;
    return 0;
}

int slot_verify(const struct kvd_slot *slot, uint32_t *token_buf, struct kvd_diag *diag)
{
    const struct kvd_slot_meta *m = &slot->meta; /* its constant fields */
    struct kvd_record rec;
    uint32_t header_bytes = 0;
    int err = record_verify(slot->base, slot->slot_bytes, NULL, true, token_buf, &rec,
                            &header_bytes, diag);
    if (err) {
        return err == -KVD_E_NEWER ? -KVD_E_CORRUPT : err;
    }
    bool same = kvd_key_equal(&rec.blocks[0].key, &m->addr.key) && rec.rank == m->addr.rank &&
                rec.index == m->index && rec.put_id == m->put_id &&
                memcmp(&rec.group, &m->group, sizeof(rec.group)) == 0 &&
                header_bytes == m->header_bytes && rec.raw_bytes == m->payload_bytes;
    return same ? 0 : kvd_fail(diag, -KVD_E_CORRUPT, "the slot names another block");
}

/* A block whose copy below is bad and that is in dram, and good there, is written down anew; unless
 * it was purged, or has another copy by now. */
static void write_anew(struct kvd_service *service, const struct bad_record *bad)
{
    const struct kvd_addr addr = {.key = bad->id.key, .rank = bad->id.rank};
    KVD_AUTOFREE uint32_t *token_buf = malloc(RECORD_TOKENS_MAX * sizeof(*token_buf));
    struct kvd_slot *slot = token_buf ? kvd_pool_pin(service->pool, &addr) : NULL;
    if (!slot) {
        return;
    }
    bool purged = KVD_PROTECT(PURGED_STAYS_UNWRITTEN) && purge_hides_slot(service, slot);
    if (!purged &&
        slot_verify(slot, token_buf, NULL) == 0) { /* a bad one is met by its own check */
        struct kvd_slot_meta meta;
        kvd_pool_meta(service->pool, slot, &meta);
        if (meta.nvme_segment == kvd_slot_segment(bad->place.segment)) {
            kvd_pool_set_nvme_segment(service->pool, slot, 0);
        }
        writedown_if_missing(service, slot);
    }
    kvd_pool_unpin(service->pool, slot);
}

/* From here on nobody is led to the place. The index's writer keeps the order: what is written anew
 * comes after this. */
static void ghost_place(struct kvd_service *service, const struct bad_record *bad)
{
    const struct kvd_index_change change = {
        .kind = KVD_INDEX_GONE,
        .id = bad->id,
        .entry = {.gone = bad->gone, .gone_s = kvd_wall_now_s(&service->wall)},
        .expect_segment = bad->place.segment,
        .expect_offset = bad->place.offset};
    if (KVD_PROTECT(BAD_RECORD_GHOST)) {
        (void)kvd_index_submit(service->index, &change, 1, NULL, NULL);
    }
}

/* Whether it is news. */
static bool bad_below(struct kvd_service *service, const struct bad_record *bad, const char *text)
{
    struct quarantined row = {.segment = bad->place.segment,
                              .offset = bad->place.offset,
                              .put_id = bad->put_id,
                              .when_s = kvd_wall_now_s(&service->wall),
                              .key = bad->id.key,
                              .rank = bad->id.rank,
                              .gone = bad->gone};
    (void)snprintf(row.text, sizeof(row.text), "%s", text);
    ghost_place(service, bad);
    bool news = quarantine_add(service->quarantine, &row);
    if (!service->nvme->ops->live(service->nvme, bad->place.segment, NULL)) {
        quarantine_forget(service->quarantine, bad->place.segment); /* it died before its row */
    }
    write_anew(service, bad);
    return news;
}

static bool bad_slot(struct kvd_service *service, const struct bad_record *bad)
{
    struct kvd_slot_meta meta;
    kvd_pool_meta(service->pool, bad->slot, &meta);
    bool news = kvd_pool_remove(service->pool, bad->slot);
    if (news && !meta.nvme_segment) { /* else the copy below serves */
        ghost_submit(service, &meta, bad->gone);
    }
    return news;
}

void record_bad(struct kvd_service *service, const struct bad_record *bad, const char *text)
{
    char hex[KVD_KEY_HEX];
    kvd_hex(bad->id.key.b, KVD_KEY_BYTES, hex);
    if (bad->slot) {
        if (bad_slot(service, bad)) {
            atomic_fetch_add(&service->counts.corrupt, 1);
            kvd_log_error(service->log, "bad record of block %s in dram: %s; served as a miss", hex,
                          text);
        }
        return;
    }
    if (bad_below(service, bad, text)) {
        bool lost = bad->gone == KVD_GONE_LOST;
        atomic_fetch_add(lost ? &service->counts.unreadable : &service->counts.corrupt, 1);
        kvd_log_error(service->log,
                      "%s record of block %s in %s, segment %" PRIu64 " at %" PRIu64
                      ": %s; served as a miss",
                      lost ? "unreadable" : "bad", hex, service->nvme->ops->name,
                      bad->place.segment, bad->place.offset, text);
    }
}

void record_newer(struct kvd_service *service, const struct bad_record *newer)
{
    uint64_t nth = atomic_fetch_add(&service->counts.newer_records, 1) + 1;
    ghost_place(service, newer);
    if ((nth & (nth - 1)) == 0) {
        kvd_log_warn(service->log,
                     "a record of a newer version was asked for (%" PRIu64
                     " times so far); it is left alone, and served as a miss",
                     nth);
    }
}
