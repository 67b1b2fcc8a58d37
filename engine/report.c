/* The report of one answer: figures, and digests by which two runs are compared. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>
#include <sodium.h>

#include "engine/cli.h"
#include "proto/base/cleanup.h"

static json_t *hex_json(const uint8_t digest[32])
{
    char text[KVD_DIGEST_HEX];
    kvd_hex(digest, KVD_DIGEST_BYTES, text);
    return json_string(text);
}

static json_t *tiers_json(const struct kvd_request_report *report)
{
    static const char *const names[KVD_REPORT_TIERS] = {[KVD_IN_HBM] = "hbm",
                                                        [KVD_IN_DRAM] = "dram",
                                                        [KVD_IN_NVME] = "nvme",
                                                        [KVD_IN_REMOTE] = "remote",
                                                        [KVD_IN_SHARED] = "shared"};
    json_t *tiers = json_object();
    for (int i = KVD_IN_HBM; i < KVD_REPORT_TIERS; i++) {
        (void)json_object_set_new(tiers, names[i], json_integer(report->hit_by_tier[i]));
    }
    return tiers;
}

static const char *finish_name(enum kvd_finish finish)
{
    return finish == KVD_FINISH_STOP ? "stop" : finish == KVD_FINISH_LENGTH ? "length" : "aborted";
}

/* Invalid UTF-8 in an answer can't be a JSON string; the digest covers its bytes. */
static json_t *report_json(const struct kvd_engine_app *app, const struct kvd_request_report *r,
                           const char *text, size_t text_bytes)
{
    uint8_t text_digest[crypto_hash_sha256_BYTES];
    (void)crypto_hash_sha256(text_digest, (const uint8_t *)text, text_bytes);
    json_t *text_json = json_stringn(text, text_bytes);
    const bool connected = app->client && kvd_client_connected(app->client);
    return json_pack(
        "{s:I, s:I, s:I, s:o, s:f, s:f, s:I, s:I, s:I, s:s, s:o, s:o, s:o, s:o, s:s, s:s, s:s}",
        "prompt_tokens", (json_int_t)r->prompt_tokens, "hit_tokens", (json_int_t)r->hit_tokens,
        "computed_tokens", (json_int_t)r->computed_tokens, "hit_by_tier", tiers_json(r), "ttft_ms",
        (double)r->ttft_ns / 1e6, "total_ms", (double)r->total_ns / 1e6, "answer_tokens",
        (json_int_t)r->answer_tokens, "put_blocks", (json_int_t)r->put_blocks, "cache_failures",
        (json_int_t)r->cache_failures, "finish", finish_name(r->finish), "text",
        text_json ? text_json : json_null(), "text_sha256", hex_json(text_digest), "logits_sha256",
        hex_json(r->logits_sha256), "kv_sha256", hex_json(r->kv_sha256), "kernels",
        kvd_engine_kernels(app->engine), "model", kvd_engine_model_name(app->engine), "cache",
        connected ? "connected" : "none");
}

int kvd_report_write(struct kvd_engine_app *app, const struct kvd_request_report *report,
                     const char *text, size_t text_bytes, struct kvd_diag *diag)
{
    const char *path = app->cli.report;
    json_t *root = report_json(app, report, text, text_bytes);
    KVD_AUTOFCLOSE FILE *f = fopen(path, app->reports++ ? "ae" : "we");
    int rc = f ? 0 : -errno;
    if (f && root && json_dumpf(root, f, JSON_INDENT(2))) {
        rc = -EIO;
    }
    if (rc == 0 && (!root || fputc('\n', f) == EOF || fflush(f))) {
        rc = root ? -EIO : -ENOMEM;
    }
    json_decref(root);
    return rc ? kvd_fail(diag, rc, "writing the report %s: %s", path, kvd_strerror(rc)) : 0;
}
