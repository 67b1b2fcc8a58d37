/*
 * A conversation on the terminal. Every turn sends the whole conversation again, so the cache
 * serves what was said before. Ends with the input (Ctrl-D).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/cli.h"
#include "engine/model/template.h"
#include "proto/base/cleanup.h"

struct conversation {
    struct kvd_chat_message *messages; /* contents are owned */
    uint32_t n;
    uint32_t cap;
};

static void conversation_fini(struct conversation *c)
{
    for (uint32_t i = 0; i < c->n; i++) {
        free((void *)(uintptr_t)c->messages[i].content);
    }
    free(c->messages);
}

static int add(struct conversation *c, const char *role, const char *content)
{
    if (c->n == c->cap) {
        const uint32_t cap = c->cap * 2 + 8;
        struct kvd_chat_message *grown = realloc(c->messages, cap * sizeof(*grown));
        if (!grown) {
            return -ENOMEM;
        }
        c->messages = grown;
        c->cap = cap;
    }
    char *copy = strdup(content);
    if (!copy) {
        return -ENOMEM;
    }
    c->messages[c->n++] = (struct kvd_chat_message){.role = role, .content = copy};
    return 0;
}

/* Answers the conversation so far and adds the answer to it. */
static int answer(struct kvd_engine_app *app, struct conversation *c, struct kvd_diag *diag)
{
    KVD_CLEANUP(kvd_tokens_fini) struct kvd_tokens prompt = {0};
    KVD_CLEANUP(kvd_printer_fini) struct kvd_printer printer = {.engine = app->engine};
    int rc = kvd_template_chat(kvd_engine_model(app->engine)->tokenizer, c->messages, c->n, &prompt,
                               diag);
    if (rc) {
        return rc;
    }
    struct kvd_request request = kvd_app_request(app);
    request.prompt = prompt.ids;
    request.n_prompt = prompt.n;
    struct kvd_request_report report;
    rc = kvd_engine_run(app->engine, &request, kvd_printer_token, &printer, NULL, diag, &report);
    if (rc || printer.no_memory) {
        return rc ? rc : -ENOMEM;
    }
    (void)printf("\n");
    if (isatty(STDOUT_FILENO)) {
        (void)printf("(%u tokens: %u from the cache, %u computed; first after %.0f ms)\n",
                     report.prompt_tokens, report.hit_tokens, report.computed_tokens,
                     (double)report.ttft_ns / 1e6);
    }
    return add(c, "assistant", printer.text ? printer.text : "");
}

int kvd_app_chat(struct kvd_engine_app *app)
{
    struct kvd_diag diag = {0};
    KVD_CLEANUP(conversation_fini) struct conversation c = {0};
    KVD_AUTOFREE char *line = NULL;
    size_t cap = 0;
    int rc = app->cli.system ? add(&c, "system", app->cli.system) : 0;
    while (rc == 0) {
        if (isatty(STDIN_FILENO)) {
            (void)printf("> ");
            (void)fflush(stdout);
        }
        const ssize_t n = getline(&line, &cap, stdin);
        if (n < 0) {
            break;
        }
        line[strcspn(line, "\r\n")] = '\0';
        if (!*line) {
            continue;
        }
        rc = add(&c, "user", line);
        rc = rc ? rc : answer(app, &c, &diag);
    }
    return rc ? kvd_app_failed(&diag, rc) : KVD_EXIT_OK;
}
