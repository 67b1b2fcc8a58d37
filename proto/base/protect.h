/*
 * Protections that tests can take out. KVD_PROTECT(NAME) is the constant true, so it costs nothing,
 * but in a tree that was configured with -Dtake_out=true: there the protection that KVD_TAKE_OUT
 * names in the environment is false. It stands in the condition of the code that protects:
 *
 *     if (KVD_PROTECT(RECORD_SUM) && sum differs) { … refuse … }
 *
 * so that a test can be seen to fail without it. proto/base/protections.def lists them all.
 */
#ifndef PROTO_BASE_PROTECT_H
#define PROTO_BASE_PROTECT_H

#include <stdbool.h>

enum kvd_protection {
#define KVD_PROTECTION(name, kind, test, function, text) KVD_PROTECTION_##name,
#include "proto/base/protections.def"
#undef KVD_PROTECTION
    KVD_PROTECTION_COUNT
};

#ifdef KVD_TAKE_OUT_BUILD
/* Whether a protection is in place. The environment is read once, before main. */
bool kvd_protected(enum kvd_protection protection);
#define KVD_PROTECT(name) kvd_protected(KVD_PROTECTION_##name)
#else
#define KVD_PROTECT(name) true
#endif

#endif
