/* See yaml_reader.h. Marks of libyaml count from 0; people count from 1. */
#include "policies/yaml_reader.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int fail_at(const struct kvd_yaml *y, const yaml_mark_t *mark, const char *text)
{
    return kvd_fail(y->diag, -KVD_E_CONFIG, "%s:%zu:%zu: %s", y->name, mark->line + 1,
                    mark->column + 1, text);
}

int kvd_yaml_fail(const struct kvd_yaml *y, const char *fmt, ...)
{
    char text[KVD_DIAG_BYTES];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return fail_at(y, &y->event.start_mark, text);
}

uint32_t kvd_yaml_line(const struct kvd_yaml *y)
{
    return (uint32_t)y->event.start_mark.line + 1;
}

uint32_t kvd_yaml_column(const struct kvd_yaml *y)
{
    return (uint32_t)y->event.start_mark.column + 1;
}

/* libyaml fills problem_mark for the scanner and the parser, problem_offset for bad encoding. */
static int fail_of_parser(const struct kvd_yaml *y)
{
    const yaml_parser_t *p = &y->parser;
    const char *problem = p->problem ? p->problem : "unreadable";
    char text[KVD_DIAG_BYTES];
    if (p->error == YAML_MEMORY_ERROR) {
        return kvd_fail(y->diag, -ENOMEM, "%s: out of memory", y->name);
    }
    if (p->error == YAML_READER_ERROR) {
        return kvd_fail(y->diag, -KVD_E_CONFIG, "%s: byte %zu: %s; UTF-8 text is allowed", y->name,
                        p->problem_offset, problem);
    }
    (void)snprintf(text, sizeof(text), "not YAML: %s%s%s", problem, p->context ? ", " : "",
                   p->context ? p->context : "");
    return fail_at(y, &p->problem_mark, text);
}

static int refuse_node_properties(const struct kvd_yaml *y, const yaml_char_t *anchor,
                                  const yaml_char_t *tag)
{
    if (anchor) {
        return kvd_yaml_fail(y, "anchor &%s; write the value out where it is needed", anchor);
    }
    if (tag) {
        return kvd_yaml_fail(y, "tag %s; values carry no tags here", tag);
    }
    return 0;
}

static int check_event(const struct kvd_yaml *y)
{
    const yaml_event_t *e = &y->event;
    switch (e->type) {
    case YAML_ALIAS_EVENT:
        return kvd_yaml_fail(y, "alias *%s; write the value out where it is needed",
                             e->data.alias.anchor);
    case YAML_SCALAR_EVENT:
        /* strings cross into C: a zero byte within would cut them short unseen */
        if (memchr(e->data.scalar.value, 0, e->data.scalar.length)) {
            return kvd_yaml_fail(y, "a zero byte in a value; text is allowed");
        }
        return refuse_node_properties(y, e->data.scalar.anchor, e->data.scalar.tag);
    case YAML_SEQUENCE_START_EVENT:
        return refuse_node_properties(y, e->data.sequence_start.anchor, e->data.sequence_start.tag);
    case YAML_MAPPING_START_EVENT:
        return refuse_node_properties(y, e->data.mapping_start.anchor, e->data.mapping_start.tag);
    default:
        return 0;
    }
}

int kvd_yaml_next(struct kvd_yaml *y)
{
    yaml_event_delete(&y->event);
    if (!yaml_parser_parse(&y->parser, &y->event)) {
        return fail_of_parser(y);
    }
    return check_event(y);
}

static int read_to_document(struct kvd_yaml *y)
{
    int err = kvd_yaml_next(y); /* the stream's start */
    err = err ? err : kvd_yaml_next(y);
    if (!err && y->event.type == YAML_STREAM_END_EVENT) {
        return kvd_yaml_fail(y, "nothing in it; a map is needed");
    }
    err = err ? err : kvd_yaml_next(y);
    if (!err && kvd_yaml_is_null(y)) {
        return kvd_yaml_fail(y, "nothing in it; a map is needed");
    }
    return err;
}

int kvd_yaml_open(struct kvd_yaml *y, const char *text, size_t bytes, const char *name,
                  struct kvd_diag *diag)
{
    memset(y, 0, sizeof(*y));
    y->name = name;
    y->diag = diag;
    if (!yaml_parser_initialize(&y->parser)) {
        return kvd_fail(diag, -ENOMEM, "%s: out of memory", name);
    }
    yaml_parser_set_encoding(&y->parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&y->parser, (const unsigned char *)text, bytes);
    int err = read_to_document(y);
    if (err) {
        kvd_yaml_close(y);
    }
    return err;
}

void kvd_yaml_close(struct kvd_yaml *y)
{
    yaml_event_delete(&y->event);
    yaml_parser_delete(&y->parser);
}

int kvd_yaml_end(struct kvd_yaml *y)
{
    int err = kvd_yaml_next(y); /* the document's end */
    err = err ? err : kvd_yaml_next(y);
    if (!err && y->event.type != YAML_STREAM_END_EVENT) {
        return kvd_yaml_fail(y, "a second document; one is allowed");
    }
    return err;
}

const char *kvd_yaml_scalar(const struct kvd_yaml *y)
{
    return y->event.type == YAML_SCALAR_EVENT ? (const char *)y->event.data.scalar.value : NULL;
}

bool kvd_yaml_is_null(const struct kvd_yaml *y)
{
    return y->event.type == YAML_SCALAR_EVENT && y->event.data.scalar.length == 0 &&
           y->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

bool kvd_number_read(const char *text, const char **ret_end, uint64_t *ret)
{
    const char *p = text;
    uint64_t v = 0;
    if (*p < '0' || *p > '9' || (p[0] == '0' && p[1] >= '0' && p[1] <= '9')) {
        return false;
    }
    for (; *p >= '0' && *p <= '9'; p++) {
        if (__builtin_mul_overflow(v, UINT64_C(10), &v) ||
            __builtin_add_overflow(v, (uint64_t)(*p - '0'), &v)) {
            return false;
        }
    }
    *ret_end = p;
    *ret = v;
    return true;
}
