/*
 * kvdepot key: what a prompt is called in the cache, and why. The space comes from a model file or
 * from its fields, the seed from whom the store belongs to; nothing is stored, counted or touched.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/input.h"
#include "engine/model/space.h"
#include "kvdepot/kvdepot.h"
#include "proto/base/cleanup.h"
#include "tools/kvdepot/args.h"
#include "tools/kvdepot/ask.h"
#include "tools/kvdepot/command.h"
#include "tools/kvdepot/key_view.h"
#include "tools/kvdepot/store.h"

static const char help[] =
    "usage: kvdepot key (--model FILE | --space FILE) [--prompt TEXT | --prompt-file FILE |\n"
    "                   --tokens-file FILE] [options]\n\n"
    "What a prompt is called in the cache: every field that makes the space, as it is hashed; the\n"
    "tenant; the root of the chain; and each block's key, group and place. Two prompts share what\n"
    "has the same keys. The retention class (scenario) is no part of a key.\n\n"
    "  --model FILE        a GGUF file: its space as kvdepot-engine registers it, and its "
    "tokenizer\n"
    "  --model-name NAME   as the engine's option\n"
    "  --space FILE        the fields of a space as JSON: what --json prints under \"space\"\n"
    "  --prompt TEXT, --prompt-file FILE, --raw, --system TEXT, --tokens-file FILE\n"
    "                      as the engine's options; a space without a model takes ids only\n"
    "  --tenant NAME       whose blocks (the engine's user_id); default: the default tenant\n"
    "  --extra HEX         digest of images and the like, 32 bytes\n"
    "  --rank N            of the parallel ranks, from 0\n\n"
    "Keys depend on the store's seed:\n\n"
    "  --socket PATH       asks this daemon for it, and what it has of each block, which is not\n"
    "                      counted as a look-up (default " KVD_DEFAULT_SOCKET ")\n"
    "  --store DIR         reads it from a store's folder; the daemon need not run\n"
    "  --seed HEX          this one\n\n"
    "  --json              everything, as JSON\n"
    "  --vectors           as lines of proto/keys/golden_vectors.txt, for other implementations\n\n"
    "Exit status: 0 fine, 1 failed, 2 no daemon answers, 3 wrong usage.\n\n"
    "  kvdepot key --model m.gguf --prompt 'Hello' --socket /var/tmp/kv.sock\n"
    "  kvdepot key --model m.gguf --tokens-file ids --store /var/tmp/kv --json | jq '.blocks[0]'\n"
    "  kvdepot key --space space.json --tokens-file ids --seed 0 --vectors\n";

struct key_options {
    const char *model;
    const char *model_name;
    const char *space;
    struct kvd_input input;
    const char *tenant;
    const char *extra;
    const char *rank;
    const char *socket_path;
    const char *store;
    const char *seed;
    bool json;
    bool vectors;
};

static int options_parse(int argc, char **argv, struct key_options *o, struct kvd_diag *diag)
{
    const struct kvd_arg args[] = {
        {"model", KVD_ARG_STRING, &o->model},
        {"model-name", KVD_ARG_STRING, &o->model_name},
        {"space", KVD_ARG_STRING, &o->space},
        {"prompt", KVD_ARG_STRING, &o->input.text},
        {"prompt-file", KVD_ARG_STRING, &o->input.file},
        {"tokens-file", KVD_ARG_STRING, &o->input.tokens_file},
        {"raw", KVD_ARG_FLAG, &o->input.raw},
        {"system", KVD_ARG_STRING, &o->input.system},
        {"tenant", KVD_ARG_STRING, &o->tenant},
        {"extra", KVD_ARG_STRING, &o->extra},
        {"rank", KVD_ARG_STRING, &o->rank},
        {"socket", KVD_ARG_STRING, &o->socket_path},
        {"store", KVD_ARG_STRING, &o->store},
        {"seed", KVD_ARG_STRING, &o->seed},
        {"json", KVD_ARG_FLAG, &o->json},
        {"vectors", KVD_ARG_FLAG, &o->vectors},
    };
    return kvd_args_parse(argc, argv, args, sizeof(args) / sizeof(args[0]), diag);
}

static int options_check(const struct key_options *o, struct kvd_diag *diag)
{
    const struct kvd_input *in = &o->input;
    const int prompts = !!in->text + !!in->file + !!in->tokens_file;
    if (!o->model == !o->space) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST,
                        "name one of --model FILE and --space FILE; see kvdepot key --help");
    }
    if (prompts > 1) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST,
                        "name one of --prompt, --prompt-file and --tokens-file");
    }
    if (o->space && (in->text || in->file)) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST,
                        "a space has no tokenizer: give --tokens-file, or a --model");
    }
    if (o->space && o->model_name) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "--model-name goes with --model");
    }
    if ((in->raw || in->system) && !in->text && !in->file) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST,
                        "--raw and --system go with --prompt or --prompt-file");
    }
    if (in->raw && in->system) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST,
                        "--system goes with the template, not with --raw");
    }
    if (o->store && o->seed) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "name one of --store and --seed");
    }
    if (o->tenant && strlen(o->tenant) > KVD_TENANT_NAME_MAX) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "--tenant has %zu bytes; at most %d are allowed",
                        strlen(o->tenant), KVD_TENANT_NAME_MAX);
    }
    if (o->json && o->vectors) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "name one of --json and --vectors");
    }
    return 0;
}

/* ---- the space, and the tokens ---- */

static int take_model(const struct key_options *o, struct kvd_key_answer *a, struct kvd_diag *diag)
{
    KVD_CLEANUP(kvd_model_close) struct kvd_model *model = NULL;
    KVD_CLEANUP(kvd_tokens_fini) struct kvd_tokens tokens = {0};
    struct kvd_model_space space;
    const bool prompt = o->input.text || o->input.file || o->input.tokens_file;
    int rc = kvd_model_open(o->model, NULL, diag, &model);
    rc = rc ? rc : kvd_model_space(model, o->model_name, diag, &space);
    rc = rc || !prompt ? rc : kvd_input_tokens(&o->input, model->tokenizer, &tokens, diag);
    if (rc) {
        return rc;
    }
    kvd_key_space_set(&a->space, &space.desc);
    a->n_tokens = tokens.n;
    a->tokens = KVD_TAKE(tokens.ids);
    return 0;
}

static int take_space(const struct key_options *o, struct kvd_key_answer *a, struct kvd_diag *diag)
{
    KVD_CLEANUP(kvd_tokens_fini) struct kvd_tokens tokens = {0};
    json_error_t error;
    json_t *json = json_load_file(o->space, JSON_REJECT_DUPLICATES, &error);
    if (!json) {
        return kvd_fail(diag, -KVD_E_FORMAT, "%s: line %d: %s", o->space, error.line, error.text);
    }
    int rc = kvd_key_space_parse(json, o->space, diag, &a->space);
    json_decref(json);
    rc = rc || !o->input.tokens_file ? rc : kvd_input_tokens(&o->input, NULL, &tokens, diag);
    if (!rc) {
        a->n_tokens = tokens.n;
        a->tokens = KVD_TAKE(tokens.ids);
    }
    return rc;
}

static int take_rank(const struct key_options *o, struct kvd_key_answer *a, struct kvd_diag *diag)
{
    char *end = NULL;
    const uint32_t ranks = a->space.desc.ranks;
    const unsigned long rank = o->rank ? strtoul(o->rank, &end, 10) : 0;
    if (o->rank &&
        (end == o->rank || *end || o->rank[0] < '0' || o->rank[0] > '9' || rank >= ranks)) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "--rank takes 0 to %u, not '%s'", ranks - 1,
                        o->rank);
    }
    a->rank = (uint32_t)rank;
    return 0;
}

/* Everything but the seed. */
static int take_prompt(const struct key_options *o, struct kvd_key_answer *a, struct kvd_diag *diag)
{
    int rc = o->model ? take_model(o, a, diag) : take_space(o, a, diag);
    rc = rc ? rc : take_rank(o, a, diag);
    a->tenant_name = o->tenant ? o->tenant : "";
    a->has_extra = o->extra != NULL;
    if (!rc && o->extra && !kvd_key_unhex(o->extra, a->extra.b, KVD_DIGEST_BYTES)) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "--extra takes 32 bytes in hex, 64 digits");
    }
    return rc;
}

/* ---- the seed ---- */

static int seed_parse(const char *text, const char *what, struct kvd_diag *diag, uint64_t *ret)
{
    char *end = NULL;
    const size_t n = strlen(text);
    const uint64_t seed = strtoull(text, &end, 16);
    if (n < 1 || n > 16 || strspn(text, "0123456789abcdefABCDEF") != n) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST, "%s takes 1 to 16 digits in hex, not '%.40s'",
                        what, text);
    }
    *ret = seed;
    return 0;
}

static int seed_of_store(const char *folder, struct kvd_diag *diag, uint64_t *ret)
{
    struct kvd_identity id;
    const int rc = kvd_store_identity(folder, diag, &id);
    if (!rc) {
        *ret = id.seed;
    }
    return rc;
}

static int seed_of_daemon(struct kvd_client *client, uint64_t *ret)
{
    json_t *report = NULL;
    struct kvd_diag diag = {0};
    int status = kvd_ask_report(client, "key", "identity", "", "", &report);
    if (status != KVD_EXIT_OK) {
        return status;
    }
    const char *text = json_string_value(json_object_get(report, "seed"));
    if (seed_parse(text ? text : "", "the daemon's seed", &diag, ret)) {
        status = kvd_complain(KVD_EXIT_FAILED, "key", diag.text);
    }
    json_decref(report);
    return status;
}

/* ---- what is stored ---- */

static int ask_blocks(struct kvd_client *client, struct kvd_key_answer *a)
{
    a->stored = calloc(a->n_blocks + 1, sizeof(json_t *));
    if (!a->stored) {
        return kvd_complain(KVD_EXIT_FAILED, "key", "out of memory");
    }
    int status = KVD_EXIT_OK;
    for (uint32_t i = 0; i < a->n_blocks && status == KVD_EXIT_OK; i++) {
        char name[KVD_KEY_NAME_MAX];
        status =
            kvd_ask_report(client, "key", "block", kvd_key_name(a, i, name), "", &a->stored[i]);
    }
    return status;
}

static int derive(struct kvd_key_answer *a)
{
    return kvd_key_derive(a) ? kvd_complain(KVD_EXIT_FAILED, "key", "out of memory") : KVD_EXIT_OK;
}

static int with_daemon(const struct key_options *o, const char *socket_path,
                       struct kvd_key_answer *a)
{
    struct kvd_client *client = NULL;
    int status = kvd_ask_open(socket_path, "key", &client);
    if (status == KVD_EXIT_OK && !o->store && !o->seed) {
        a->seed_from = "of the daemon's store";
        status = seed_of_daemon(client, &a->seed);
    }
    status = status == KVD_EXIT_OK ? derive(a) : status;
    if (status == KVD_EXIT_OK && !o->vectors) {
        status = ask_blocks(client, a);
    }
    kvd_client_close(&client);
    return status;
}

/* Fills in the seed and what follows from it. */
static int complete(const struct key_options *o, struct kvd_key_answer *a)
{
    struct kvd_diag diag = {0};
    int rc = 0;
    if (o->store) {
        a->seed_from = "of the store's folder";
        rc = seed_of_store(o->store, &diag, &a->seed);
    } else if (o->seed) {
        a->seed_from = "as given";
        rc = seed_parse(o->seed, "--seed", &diag, &a->seed);
    }
    if (rc) {
        return kvd_complain(o->seed ? KVD_EXIT_USAGE : KVD_EXIT_FAILED, "key", diag.text);
    }
    if (o->socket_path || (!o->store && !o->seed)) {
        return with_daemon(o, o->socket_path ? o->socket_path : KVD_DEFAULT_SOCKET, a);
    }
    return derive(a);
}

static int show(const struct key_options *o, const struct kvd_key_answer *a)
{
    const int err = o->json      ? kvd_key_view_json(a, stdout)
                    : o->vectors ? kvd_key_view_vectors(a, stdout)
                                 : kvd_key_view_text(a, stdout);
    return err ? kvd_complain(KVD_EXIT_FAILED, "key", kvd_strerror(err)) : KVD_EXIT_OK;
}

static int key_run(int argc, char **argv)
{
    KVD_CLEANUP(kvd_key_answer_fini) struct kvd_key_answer answer = {0};
    struct key_options o = {0};
    struct kvd_diag diag = {0};
    if (options_parse(argc, argv, &o, &diag) || options_check(&o, &diag)) {
        return kvd_complain(KVD_EXIT_USAGE, "key", diag.text);
    }
    const int rc = take_prompt(&o, &answer, &diag);
    if (rc) {
        return kvd_complain(rc == -KVD_E_BAD_REQUEST ? KVD_EXIT_USAGE : KVD_EXIT_FAILED, "key",
                            diag.text);
    }
    const int status = complete(&o, &answer);
    return status == KVD_EXIT_OK ? show(&o, &answer) : status;
}

const struct kvd_command kvd_command_key = {
    .name = "key",
    .summary = "what a prompt is called in the cache: fields, chain, places",
    .help = help,
    .run = key_run,
};
