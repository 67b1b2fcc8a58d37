/* JSON at the edge: text from outside is bounded before it is parsed, bytes of a model become valid
 * strings. */
#ifndef ENGINE_SERVER_JSON_TEXT_H
#define ENGINE_SERVER_JSON_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

/* Whether brackets nest at most max deep. Strings are skipped. Says nothing of validity otherwise.
 */
bool kvd_json_depth_ok(const char *text, size_t bytes, uint32_t max);

/* A JSON string of any bytes: what is not UTF-8 becomes U+FFFD. NULL: out of memory. */
json_t *kvd_json_text(const char *text, size_t bytes);

/* Compact text of a value with room in front and behind: prefix + JSON + suffix. The caller frees.
 * NULL: out of memory. Takes the value (also NULL, which gives NULL). */
char *kvd_json_render(json_t *value, const char *prefix, const char *suffix, size_t *ret_bytes);

#endif
