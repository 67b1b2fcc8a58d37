#include "proto/base/error.h"

#include <stdio.h>
#include <string.h>

struct error_row {
    int number;
    uint32_t wire;
    const char *name;
    const char *text;
};

static const struct error_row error_rows[] = {
#define KVD_ERROR(number, name, wire, text) {(number), (wire), #name, (text)},
#include "proto/base/error.def"
#undef KVD_ERROR
};

enum { ERROR_ROWS = sizeof(error_rows) / sizeof(error_rows[0]) };

static const struct error_row *row_of_number(int number)
{
    for (unsigned i = 0; i < ERROR_ROWS; i++) {
        if (error_rows[i].number == number) {
            return &error_rows[i];
        }
    }
    return NULL;
}

const char *kvd_strerror(int err)
{
    static _Thread_local char buf[128];
    if (err == 0) {
        return "success";
    }
    const struct error_row *row = row_of_number(-err);
    if (row) {
        return row->text;
    }
    return strerror_r(err < 0 ? -err : err, buf, sizeof(buf));
}

const char *kvd_error_name(int err)
{
    const struct error_row *row = row_of_number(-err);
    return err == 0 ? "OK" : row ? row->name : "ERRNO";
}

uint32_t kvd_error_to_wire(int err)
{
    if (err == 0) {
        return 0;
    }
    const struct error_row *row = row_of_number(-err);
    return row ? row->wire : row_of_number(KVD_E_INTERNAL)->wire;
}

int kvd_error_from_wire(uint32_t wire)
{
    if (wire == 0) {
        return 0;
    }
    for (unsigned i = 0; i < ERROR_ROWS; i++) {
        if (error_rows[i].wire == wire) {
            return -error_rows[i].number;
        }
    }
    return -KVD_E_INTERNAL;
}

void kvd_diag_set(struct kvd_diag *diag, const char *fmt, ...)
{
    if (diag) {
        va_list ap;
        va_start(ap, fmt);
        (void)vsnprintf(diag->text, sizeof(diag->text), fmt, ap);
        va_end(ap);
    }
}

int kvd_fail_prefix(struct kvd_diag *diag, int err, const char *fmt, ...)
{
    if (diag) {
        struct kvd_diag was = *diag;
        va_list ap;
        va_start(ap, fmt);
        int n = vsnprintf(diag->text, sizeof(diag->text), fmt, ap);
        va_end(ap);
        if (n >= 0 && (size_t)n < sizeof(diag->text)) {
            (void)snprintf(diag->text + n, sizeof(diag->text) - (size_t)n, ": %s", was.text);
        }
    }
    return err;
}
