/*
 * UTF-8: finding sequences, and the gate for streams. A model's tokens may end inside a character;
 * a stream may not. The gate holds back up to three bytes until the character is whole. Bytes that
 * can't become UTF-8 come out as one '?' for each broken sequence: a client would refuse the raw
 * bytes, and leaving them out would hide that something was there.
 */
#include "engine/model/utf8.h"

#include <string.h>

#include "engine/model/tokenizer.h"

/* Length a first byte asks for, and the range of the second byte, which is where the forbidden
 * forms differ. */
static int lead_byte(uint8_t lead, uint8_t *ret_min, uint8_t *ret_max)
{
    *ret_min = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    *ret_max = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (lead < 0x80) {
        return 1;
    }
    if (lead >= 0xc2 && lead <= 0xdf) {
        return 2;
    }
    if (lead >= 0xe0 && lead <= 0xef) {
        return 3;
    }
    return lead >= 0xf0 && lead <= 0xf4 ? 4 : 0;
}

int kvd_utf8_next(const char *bytes, uint64_t n)
{
    uint8_t min;
    uint8_t max;
    int length = lead_byte((uint8_t)bytes[0], &min, &max);
    if (length == 0) {
        return -1;
    }
    for (int i = 1; i < length; i++) {
        if ((uint64_t)i >= n) {
            return 0;
        }
        uint8_t c = (uint8_t)bytes[i];
        if (c < min || c > max) {
            return -i;
        }
        min = 0x80;
        max = 0xbf;
    }
    return length;
}

uint32_t kvd_utf8_decode(const char *bytes, int length)
{
    static const uint8_t lead_mask[5] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t c = (uint8_t)bytes[0] & lead_mask[length];
    for (int i = 1; i < length; i++) {
        c = c << 6 | ((uint8_t)bytes[i] & 0x3f);
    }
    return c;
}

/* One byte into the gate, whose held bytes are the beginning of a sequence. Returns bytes written
 * to out. */
static uint32_t gate_push(struct kvd_utf8_gate *gate, char c, char *out)
{
    uint32_t written = 0;
    gate->held[gate->n++] = c;
    while (gate->n > 0) {
        int length = kvd_utf8_next(gate->held, gate->n);
        if (length == 0) {
            break;
        }
        uint32_t used = (uint32_t)(length > 0 ? length : -length);
        if (length > 0) {
            memcpy(out + written, gate->held, used);
            written += used;
        } else {
            out[written++] = '?';
        }
        gate->n -= used;
        memmove(gate->held, gate->held + used, gate->n);
    }
    return written;
}

uint32_t kvd_utf8_gate_feed(struct kvd_utf8_gate *gate, const char *piece, uint32_t bytes,
                            char *out)
{
    uint32_t written = 0;
    for (uint32_t i = 0; i < bytes; i++) {
        written += gate_push(gate, piece[i], out + written);
    }
    return written;
}
