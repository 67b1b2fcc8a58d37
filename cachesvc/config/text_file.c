/* See text_file.h. The limit keeps a wrong path (a segment, a device) from filling memory. */
#include "cachesvc/config/text_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/cleanup.h"

enum { TEXT_FILE_MAX = 1 << 20 };

static int fail_read(struct kvd_diag *diag, const char *path, int no)
{
    return kvd_fail(diag, -KVD_E_CONFIG, "%.300s: cannot be read: %s; a readable file is needed",
                    path, kvd_strerror(-no));
}

int kvd_text_file_read(const char *path, struct kvd_diag *diag, char **ret_text, size_t *ret_bytes)
{
    KVD_AUTOFREE char *text = malloc(TEXT_FILE_MAX + 1);
    /* a FIFO must not hold up the start */
    KVD_AUTOCLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    size_t n = 0;
    if (!text) {
        return kvd_fail(diag, -ENOMEM, "%.300s: out of memory", path);
    }
    if (fd < 0) {
        return fail_read(diag, path, errno);
    }
    for (;;) {
        ssize_t got = read(fd, text + n, TEXT_FILE_MAX + 1 - n);
        if (got < 0 && errno != EINTR) {
            return fail_read(diag, path, errno);
        }
        if (got == 0) {
            break;
        }
        n += got > 0 ? (size_t)got : 0;
        if (n > TEXT_FILE_MAX) {
            return kvd_fail(diag, -KVD_E_CONFIG,
                            "%.300s: larger than 1 MiB; that is no "
                            "configuration, give another file",
                            path);
        }
    }
    text[n] = 0;
    *ret_text = KVD_TAKE(text);
    *ret_bytes = n;
    return 0;
}
