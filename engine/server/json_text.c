/* JSON at the edge. See json_text.h. */
#include "engine/server/json_text.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/cleanup.h"

bool kvd_json_depth_ok(const char *text, size_t bytes, uint32_t max)
{
    uint32_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < bytes; i++) {
        const char c = text[i];
        if (in_string) {
            if (c == '\\') {
                i++;
            } else if (c == '"') {
                in_string = false;
            }
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > max) {
                return false;
            }
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        }
    }
    return true;
}

/* Bytes of the UTF-8 sequence at s, or 0 where there is none: cut short, overlong, a surrogate,
 * above U+10FFFF. */
static size_t utf8_len(const unsigned char *s, size_t left)
{
    if (s[0] < 0x80) {
        return 1;
    }
    const size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || left < n) {
        return 0;
    }
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    const bool bad = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
                     (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f);
    return bad ? 0 : n;
}

json_t *kvd_json_text(const char *text, size_t bytes)
{
    json_t *plain = json_stringn(text, bytes);
    if (plain) {
        return plain;
    }
    /* refused: not UTF-8 somewhere (or no memory, which the next allocation meets too) */
    KVD_AUTOFREE char *fixed = malloc(bytes * 3 + 1);
    if (!fixed) {
        return NULL;
    }
    size_t n = 0;
    for (size_t i = 0; i < bytes;) {
        const size_t len = utf8_len((const unsigned char *)text + i, bytes - i);
        memcpy(fixed + n, len ? text + i : "\xef\xbf\xbd", len ? len : 3);
        n += len ? len : 3;
        i += len ? len : 1;
    }
    return json_stringn(fixed, n);
}

char *kvd_json_render(json_t *value, const char *prefix, const char *suffix, size_t *ret_bytes)
{
    if (!value) {
        return NULL;
    }
    const size_t before = strlen(prefix);
    const size_t after = strlen(suffix);
    char *text = NULL;
    const size_t body = json_dumpb(value, NULL, 0, JSON_COMPACT);
    if (body > 0) {
        text = malloc(before + body + after + 1);
    }
    if (text) {
        memcpy(text, prefix, before);
        (void)json_dumpb(value, text + before, body, JSON_COMPACT);
        memcpy(text + before + body, suffix, after + 1);
        *ret_bytes = before + body + after;
    }
    json_decref(value);
    return text;
}
