/* Numbers as people read them: see units.h. */
#include "tools/kvdepot/units.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/error.h"

const char *kvd_units_count(char *text, uint64_t n)
{
    char digits[24];
    int length = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)n);
    int at = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) {
            text[at++] = ',';
        }
        text[at++] = digits[i];
    }
    text[at] = '\0';
    return text;
}

const char *kvd_units_bytes(char *text, uint64_t n)
{
    static const char *const names[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (n < 1024) {
        (void)snprintf(text, KVD_TEXT_BYTES, "%llu B", (unsigned long long)n);
        return text;
    }
    double value = (double)n / 1024;
    int unit = 0;
    /* 1023.95 would print as 1024.0 of the smaller unit. */
    while (value >= 1023.95 && unit < 5) {
        value /= 1024;
        unit++;
    }
    (void)snprintf(text, KVD_TEXT_BYTES, "%.1f %s", value, names[unit]);
    return text;
}

const char *kvd_units_share(char *text, uint64_t part, uint64_t whole)
{
    if (whole == 0) {
        (void)snprintf(text, KVD_TEXT_BYTES, "-");
        return text;
    }
    double percent = 100.0 * (double)part / (double)whole;
    if (part > 0 && percent < 0.1) {
        percent = 0.1;
    }
    if (part < whole && percent > 99.9) {
        percent = 99.9;
    }
    (void)snprintf(text, KVD_TEXT_BYTES, "%.1f %%", percent);
    return text;
}

const char *kvd_units_duration(char *text, uint64_t seconds)
{
    static const struct {
        uint64_t seconds;
        const char *name;
    } units[] = {{86400, "d"}, {3600, "h"}, {60, "min"}, {1, "s"}};
    int unit = 0;
    while (unit < 3 && seconds < units[unit].seconds) {
        unit++;
    }
    uint64_t big = seconds / units[unit].seconds;
    uint64_t small = unit < 3 ? seconds % units[unit].seconds / units[unit + 1].seconds : 0;
    if (small == 0) {
        (void)snprintf(text, KVD_TEXT_BYTES, "%llu %s", (unsigned long long)big, units[unit].name);
    } else {
        (void)snprintf(text, KVD_TEXT_BYTES, "%llu %s %llu %s", (unsigned long long)big,
                       units[unit].name, (unsigned long long)small, units[unit + 1].name);
    }
    return text;
}

int kvd_units_parse_bytes(const char *text, uint64_t *ret)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"", 1},         {"B", 1},    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
                 {"TiB", 0x1p40}, {"kB", 1e3}, {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12}};
    char *end = NULL;
    double value = strtod(text, &end);
    bool plain = text[0] >= '0' && text[0] <= '9'; /* no sign, blank, "inf" or "nan" */
    for (size_t i = 0; plain && i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcmp(end, units[i].name) == 0 && value * units[i].bytes < 0x1p63) {
            *ret = (uint64_t)(value * units[i].bytes);
            return 0;
        }
    }
    return -KVD_E_BAD_REQUEST;
}
