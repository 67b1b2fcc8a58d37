/* The ways to use kvdepot-engine from a shell. Each returns an exit code. */
#ifndef ENGINE_CLI_H
#define ENGINE_CLI_H

#include "engine/options.h"
#include "engine/session/session.h"
#include "kvdepot/kvdepot.h"

enum { KVD_EXIT_OK = 0, KVD_EXIT_FAILED = 1, KVD_EXIT_USAGE = 2 };

/* What main has set up. */
struct kvd_engine_app {
    struct kvd_engine_cli cli;
    char *http_host; /* of --http */
    uint16_t http_port;
    struct kvd_log log;
    struct kvd_client *client; /* NULL: no cache */
    struct kvd_engine *engine;
    uint32_t reports; /* written to cli.report so far: the first one begins the file anew */
};

/* One prompt, or each of a list: the answer on stdout, the report where asked. */
int kvd_app_prompt(struct kvd_engine_app *app);
/* A conversation on the terminal, until its input ends. */
int kvd_app_chat(struct kvd_engine_app *app);
/* HTTP until SIGINT or SIGTERM, which are blocked in all threads. Without libmicrohttpd it says so.
 */
int kvd_app_serve(struct kvd_engine_app *app);

/* Prints an answer's tokens as they come. Zero-initialise but for engine; kvd_printer_fini frees.
 */
struct kvd_printer {
    const struct kvd_engine *engine;
    struct kvd_utf8_gate gate;
    char *text; /* all of it; terminated */
    size_t bytes;
    size_t cap;
    bool no_memory;
};
int kvd_printer_token(uint32_t id, void *printer); /* kvd_token_fn */
void kvd_printer_fini(struct kvd_printer *printer);

/* The request that the options describe, without its prompt. */
struct kvd_request kvd_app_request(const struct kvd_engine_app *app);

/* Writes a report behind those that this process wrote before. Negative with diag. */
int kvd_report_write(struct kvd_engine_app *app, const struct kvd_request_report *report,
                     const char *text, size_t text_bytes, struct kvd_diag *diag);

/* Says a failed call once on stderr. Returns KVD_EXIT_FAILED. */
int kvd_app_failed(const struct kvd_diag *diag, int rc);

#endif
