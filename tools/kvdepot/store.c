/* A store's folder: see store.h. */
#include "tools/kvdepot/store.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "proto/base/cleanup.h"

int kvd_store_identity(const char *folder, struct kvd_diag *diag, struct kvd_identity *ret)
{
    char text[KVD_IDENTITY_TEXT_MAX + 1];
    KVD_AUTOCLOSE int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    KVD_AUTOCLOSE int fd = dir < 0 ? -1 : openat(dir, "IDENTITY", O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : read(fd, text, KVD_IDENTITY_TEXT_MAX);
    if (n < 0) {
        const int err = -errno;
        return kvd_fail(diag, err,
                        "%s/IDENTITY can't be read: %s; name a store's folder, kvdepotd's --dir",
                        folder, kvd_strerror(err));
    }
    text[n] = 0;
    return kvd_identity_parse(text, (size_t)n, folder, diag, ret);
}
