/* One prompt: read, answered, reported. Also what all ways share: printing, the request. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cli.h"
#include "engine/model/input.h"
#include "proto/base/cleanup.h"

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

static const struct kvd_tokenizer *tokenizer_of(const struct kvd_engine_app *app)
{
    return kvd_engine_model(app->engine)->tokenizer;
}

static struct kvd_input input_of(const struct kvd_engine_app *app)
{
    const struct kvd_engine_cli *cli = &app->cli;
    return (struct kvd_input){.text = cli->prompt,
                              .file = cli->prompt_file,
                              .tokens_file = cli->tokens_file,
                              .system = cli->system,
                              .raw = cli->raw};
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
    struct kvd_input input = input_of(app);
    int rc = kvd_input_file(app->cli.prompt_list, &text, &bytes, diag);
    if (rc) {
        return rc;
    }
    for (char *path = strtok_r(text, "\n", &rest); path && rc == 0;
         path = strtok_r(NULL, "\n", &rest)) {
        KVD_CLEANUP(kvd_tokens_fini) struct kvd_tokens prompt = {0};
        input.file = path;
        rc = kvd_input_tokens(&input, tokenizer_of(app), &prompt, diag);
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
        const struct kvd_input input = input_of(app);
        rc = kvd_input_tokens(&input, tokenizer_of(app), &prompt, &diag);
        rc = rc ? rc : answer(app, &prompt, &diag);
    }
    return rc ? kvd_app_failed(&diag, rc) : KVD_EXIT_OK;
}
