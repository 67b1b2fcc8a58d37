/* One prompt: read, answered, reported. Also what all ways share: printing, the request. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cli.h"
#include "engine/model/template.h"
#include "proto/base/cleanup.h"

enum { FILE_BYTES_MAX = 64 << 20 };

int kvd_app_failed(const struct kvd_diag *diag, int rc)
{
    (void)fprintf(stderr, "kvdepot-engine: %s\n", diag->text[0] ? diag->text : kvd_strerror(rc));
    return KVD_EXIT_FAILED;
}

struct kvd_request kvd_app_request(const struct kvd_engine_app *app)
{
    const struct kvd_engine_cli *cli = &app->cli;
    return (struct kvd_request){.max_tokens = cli->max_tokens,
                                .sampling = {.temperature = (float)cli->temperature,
                                             .top_p = (float)cli->top_p,
                                             .seed = cli->seed},
                                .tenant = cli->user_id,
                                .scenario = cli->scenario,
                                .ignore_end = cli->ignore_end,
                                .digests = cli->report != NULL};
}

int kvd_printer_token(uint32_t id, void *printer)
{
    struct kvd_printer *p = printer;
    const struct kvd_tokenizer *tok = kvd_engine_model(p->engine)->tokenizer;
    uint32_t n = 0;
    const char *piece = kvd_tokenizer_piece(tok, id, &n);
    if (!piece || kvd_tokenizer_is_special(tok, id)) {
        return 0;
    }
    const size_t need = p->bytes + n + sizeof(p->gate.held) + 1;
    if (need > p->cap) {
        char *grown = realloc(p->text, need * 2);
        if (!grown) {
            p->no_memory = true;
            return 1;
        }
        p->text = grown;
        p->cap = need * 2;
    }
    const uint32_t whole = kvd_utf8_gate_feed(&p->gate, piece, n, p->text + p->bytes);
    (void)fwrite(p->text + p->bytes, 1, whole, stdout);
    (void)fflush(stdout);
    p->bytes += whole;
    p->text[p->bytes] = '\0';
    return 0;
}

void kvd_printer_fini(struct kvd_printer *printer)
{
    free(printer->text);
    *printer = (struct kvd_printer){0};
}

/* Whole text of a file; the caller frees. */
static int read_file(const char *path, char **ret, size_t *ret_bytes, struct kvd_diag *diag)
{
    KVD_AUTOFCLOSE FILE *f = fopen(path, "rbe");
    if (!f) {
        return kvd_fail(diag, -EIO, "%s: %s", path, kvd_strerror(-errno));
    }
    char *text = NULL;
    size_t n = 0;
    size_t cap = 0;
    do {
        cap = cap ? cap * 2 : 65536;
        char *grown = cap <= FILE_BYTES_MAX ? realloc(text, cap + 1) : NULL;
        if (!grown) {
            free(text);
            return kvd_fail(diag, -KVD_E_TOO_LONG, "%s: more than %d bytes", path, FILE_BYTES_MAX);
        }
        text = grown;
        n += fread(text + n, 1, cap - n, f);
    } while (n == cap);
    if (ferror(f)) {
        free(text);
        return kvd_fail(diag, -EIO, "%s: reading failed", path);
    }
    text[n] = '\0';
    *ret_bytes = n;
    *ret = text;
    return 0;
}

/* Ids in decimal, apart by blanks or commas. */
static int parse_ids(const char *path, const char *text, size_t bytes, struct kvd_tokens *tokens,
                     struct kvd_diag *diag)
{
    const char *at = text;
    for (;;) {
        while (isspace((unsigned char)*at) || *at == ',') {
            at++;
        }
        if (at == text + bytes) {
            return 0;
        }
        char *end = NULL;
        errno = 0;
        const unsigned long v = strtoul(at, &end, 10);
        if (!isdigit((unsigned char)*at) || errno || v > UINT32_MAX) {
            return kvd_fail(diag, -KVD_E_BAD_REQUEST, "%s: byte %zu is no token id", path,
                            (size_t)(at - text));
        }
        const int rc = kvd_tokens_push(tokens, (uint32_t)v);
        if (rc) {
            return kvd_fail(diag, rc, "%s: out of memory", path);
        }
        at = end;
    }
}

static int encode(const struct kvd_engine_app *app, const char *text, size_t bytes,
                  struct kvd_tokens *tokens, struct kvd_diag *diag)
{
    const struct kvd_tokenizer *tok = kvd_engine_model(app->engine)->tokenizer;
    if (app->cli.raw) {
        return kvd_tokenizer_encode(tok, text, bytes, true, tokens);
    }
    const struct kvd_chat_message messages[] = {{.role = "system", .content = app->cli.system},
                                                {.role = "user", .content = text}};
    const uint32_t skip = app->cli.system ? 0 : 1;
    return kvd_template_chat(tok, messages + skip, 2 - skip, tokens, diag);
}

static int read_prompt_file(const struct kvd_engine_app *app, const char *path, bool ids,
                            struct kvd_tokens *tokens, struct kvd_diag *diag)
{
    KVD_AUTOFREE char *text = NULL;
    size_t bytes = 0;
    const int rc = read_file(path, &text, &bytes, diag);
    if (rc) {
        return rc;
    }
    if (ids) {
        return parse_ids(path, text, bytes, tokens, diag);
    }
    if (!app->cli.raw && strlen(text) != bytes) {
        return kvd_fail(diag, -KVD_E_BAD_REQUEST,
                        "%s: has a zero byte at %zu; take it out or use --raw", path, strlen(text));
    }
    return encode(app, text, bytes, tokens, diag);
}

static int read_prompt(const struct kvd_engine_app *app, struct kvd_tokens *tokens,
                       struct kvd_diag *diag)
{
    const struct kvd_engine_cli *cli = &app->cli;
    if (cli->prompt) {
        return encode(app, cli->prompt, strlen(cli->prompt), tokens, diag);
    }
    return cli->tokens_file ? read_prompt_file(app, cli->tokens_file, true, tokens, diag)
                            : read_prompt_file(app, cli->prompt_file, false, tokens, diag);
}

static int answer(struct kvd_engine_app *app, const struct kvd_tokens *prompt,
                  struct kvd_diag *diag)
{
    KVD_CLEANUP(kvd_printer_fini) struct kvd_printer printer = {.engine = app->engine};
    struct kvd_request request = kvd_app_request(app);
    request.prompt = prompt->ids;
    request.n_prompt = prompt->n;
    struct kvd_request_report report;
    int rc =
        kvd_engine_run(app->engine, &request, kvd_printer_token, &printer, NULL, diag, &report);
    rc = rc == 0 && printer.no_memory ? -ENOMEM : rc;
    if (rc) {
        return rc;
    }
    (void)putchar('\n');
    if (fflush(stdout) || ferror(stdout)) {
        return kvd_fail(diag, -EIO, "writing the answer to stdout failed");
    }
    kvd_log_info(&app->log,
                 "prompt %u tokens: %u from the cache, %u computed; first token after %.1f ms",
                 report.prompt_tokens, report.hit_tokens, report.computed_tokens,
                 (double)report.ttft_ns / 1e6);
    return app->cli.report ? kvd_report_write(app, &report, printer.text ? printer.text : "",
                                              printer.bytes, diag)
                           : 0;
}

static int answer_list(struct kvd_engine_app *app, struct kvd_diag *diag)
{
    KVD_AUTOFREE char *text = NULL;
    size_t bytes = 0;
    char *rest = NULL;
    int rc = read_file(app->cli.prompt_list, &text, &bytes, diag);
    if (rc) {
        return rc;
    }
    for (char *path = strtok_r(text, "\n", &rest); path && rc == 0;
         path = strtok_r(NULL, "\n", &rest)) {
        KVD_CLEANUP(kvd_tokens_fini) struct kvd_tokens prompt = {0};
        rc = read_prompt_file(app, path, false, &prompt, diag);
        rc = rc ? rc : answer(app, &prompt, diag);
    }
    return rc;
}

int kvd_app_prompt(struct kvd_engine_app *app)
{
    struct kvd_diag diag = {0};
    KVD_CLEANUP(kvd_tokens_fini) struct kvd_tokens prompt = {0};
    int rc = 0;
    if (app->cli.prompt_list) {
        rc = answer_list(app, &diag);
    } else {
        rc = read_prompt(app, &prompt, &diag);
        rc = rc ? rc : answer(app, &prompt, &diag);
    }
    return rc ? kvd_app_failed(&diag, rc) : KVD_EXIT_OK;
}
