/* Only in a tree configured with -Dtake_out=true, which nobody installs: see protect.h. The
 * choice lies in a variable that is set once, before main, so that every program of the tree obeys
 * without an option of its own. */
#include "proto/base/protect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
#define KVD_PROTECTION(name, kind, test, function, text) #name,
#include "proto/base/protections.def"
#undef KVD_PROTECTION
};

static int taken_out = -1;

__attribute__((constructor)) static void choose(void)
{
    const char *name = getenv("KVD_TAKE_OUT");
    if (!name || !name[0]) {
        return;
    }
    for (int i = 0; i < KVD_PROTECTION_COUNT; i++) {
        if (strcmp(names[i], name) == 0) {
            taken_out = i;
            return;
        }
    }
    (void)fprintf(stderr, "KVD_TAKE_OUT=%s: there is no such protection\n", name);
    abort();
}

bool kvd_protected(enum kvd_protection protection)
{
    return taken_out != (int)protection;
}
