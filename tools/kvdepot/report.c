/* Reports of the daemon: see report.h. */
#include "tools/kvdepot/report.h"

#include <stdio.h>

int kvd_report_parse(const char *text, json_t **ret_report, struct kvd_diag *diag)
{
    json_error_t error;
    json_t *report = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!report) {
        return kvd_fail(diag, -KVD_E_FORMAT,
                        "the daemon's report is not JSON (line %d, column %d: %s)", error.line,
                        error.column, error.text);
    }
    int schema = 0;
    if (json_unpack_ex(report, &error, 0, "{s:i}", "schema", &schema) != 0) {
        json_decref(report);
        return kvd_report_misses(&error, "report", diag);
    }
    if (schema != 1) {
        json_decref(report);
        return kvd_fail(diag, -KVD_E_NEWER,
                        "the daemon's report has schema %d, this kvdepot reads schema 1: use the "
                        "kvdepot that came with the daemon",
                        schema);
    }
    *ret_report = report;
    return 0;
}

int kvd_report_misses(const json_error_t *error, const char *what, struct kvd_diag *diag)
{
    return kvd_fail(diag, -KVD_E_FORMAT,
                    "the daemon's %s is not what this kvdepot expects (%s): use the kvdepot that "
                    "came with the daemon",
                    what, error->text);
}

void kvd_report_print_json(const json_t *report, FILE *out)
{
    (void)json_dumpf(report, out, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    (void)fputc('\n', out);
}
