/* Checking a record before anybody uses it: its header, whose it is, and its payload's sum. */
#include "cachesvc/core/service_private.h"
#include "proto/base/protect.h"

int record_verify(const uint8_t *base, uint64_t extent_bytes,
                  const struct kvd_record_expect *expect, bool sums, uint32_t *token_buf,
                  struct kvd_record *ret_rec, uint32_t *ret_header_bytes, struct kvd_diag *diag)
{
    uint32_t header_bytes = 0;
    int err =
        kvd_record_decode(base, extent_bytes, token_buf,
                          KVD_RECORD_BLOCKS_MAX * KVD_BLOCK_TOKENS_MAX, ret_rec, &header_bytes);
    if (err) {
        return kvd_fail(diag, -KVD_E_CORRUPT, "header: %s", kvd_strerror(err));
    }
    if (kvd_record_extent_bytes(ret_rec) > extent_bytes) {
        return kvd_fail(diag, -KVD_E_CORRUPT, "the record is longer than its place");
    }
    err = kvd_record_check_identity(ret_rec, 0, expect, diag);
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

void record_bad(struct kvd_service *service, const char *where, const struct kvd_key *key,
                const struct kvd_diag *diag)
{
    char hex[KVD_KEY_HEX];
    kvd_hex(key->b, KVD_KEY_BYTES, hex);
    atomic_fetch_add(&service->counts.corrupt, 1);
    kvd_log_error(service->log, "bad record of block %s in %s: %s; served as a miss", hex, where,
                  diag->text);
}
