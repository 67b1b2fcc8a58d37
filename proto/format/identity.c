#include "proto/format/identity.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "proto/format/record.h"

enum { IDENTITY_FORMAT = 1 };

int kvd_identity_parse(const char *text, size_t n, const char *folder, struct kvd_diag *diag,
                       struct kvd_identity *ret)
{
    char store[2 * KVD_STORE_ID_BYTES + 1];
    unsigned format = 0;
    struct kvd_identity id = {0};
    uint64_t sum = 0;
    int sum_at = 0;
    int got = sscanf(text,
                     "kvdepot-identity %u\nstore %32[0-9a-f]\nseed %16" SCNx64 "\nboot %20" SCNu64
                     "\n%nsum %16" SCNx64,
                     &format, store, &id.seed, &id.boot, &sum_at, &sum);
    if (got >= 1 && format > IDENTITY_FORMAT) {
        return kvd_fail(diag, -KVD_E_NEWER,
                        "%s/IDENTITY has format %u, this version reads %d; use a newer kvdepotd",
                        folder, format, IDENTITY_FORMAT);
    }
    size_t hex = 0;
    if (got != 5 || (size_t)sum_at > n || kvd_sum(text, (uint64_t)sum_at) != sum ||
        sodium_hex2bin(id.store.b, sizeof(id.store.b), store, strlen(store), NULL, &hex, NULL) ||
        hex != sizeof(id.store.b)) {
        return kvd_fail(
            diag, -KVD_E_CORRUPT,
            "%s/IDENTITY is damaged; restore it from another folder of the same store, or "
            "move the folder away to start an empty store",
            folder);
    }
    *ret = id;
    return 0;
}

size_t kvd_identity_print(const struct kvd_identity *id, char ret_text[KVD_IDENTITY_TEXT_MAX])
{
    char store[2 * KVD_STORE_ID_BYTES + 1];
    kvd_hex(id->store.b, KVD_STORE_ID_BYTES, store);
    int n = snprintf(ret_text, KVD_IDENTITY_TEXT_MAX,
                     "kvdepot-identity %d\nstore %s\nseed %016" PRIx64 "\nboot %" PRIu64 "\n",
                     IDENTITY_FORMAT, store, id->seed, id->boot);
    n += snprintf(ret_text + n, KVD_IDENTITY_TEXT_MAX - (size_t)n, "sum %016" PRIx64 "\n",
                  kvd_sum(ret_text, (uint64_t)n));
    return (size_t)n;
}
