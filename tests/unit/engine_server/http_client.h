/* A client of a few lines for tests: raw bytes out, a parsed answer in. Every wait has a deadline.
 */
#ifndef TESTS_UNIT_ENGINE_SERVER_HTTP_CLIENT_H
#define TESTS_UNIT_ENGINE_SERVER_HTTP_CLIENT_H

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "kvd_test.h"

struct answer {
    int status;
    char head[4096];
    char *body; /* chunks put together; terminated */
    size_t n;
};

static inline int http_connect(uint16_t port)
{
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    const struct timeval limit = {.tv_sec = 20};
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

static inline void http_send(int fd, const char *bytes, size_t n)
{
    while (n > 0) {
        const ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
        assert_true(sent > 0);
        bytes += sent;
        n -= (size_t)sent;
    }
}

/* A whole request; the connection is closed after the answer. */
static inline void http_ask(int fd, const char *method, const char *path, const char *headers,
                            const char *body)
{
    char head[1024];
    const int n = snprintf(head, sizeof(head),
                           "%s %s HTTP/1.1\r\nHost: test\r\nConnection: close\r\n%s"
                           "Content-Length: %zu\r\n\r\n",
                           method, path, headers, strlen(body));
    assert_true(n > 0 && (size_t)n < sizeof(head));
    http_send(fd, head, (size_t)n);
    http_send(fd, body, strlen(body));
}

/* Reads until the peer closes or `until` has been seen (NULL: only until it closes). The caller
 * frees. */
static inline char *http_read(int fd, const char *until, size_t *ret_n)
{
    size_t cap = 65536;
    size_t n = 0;
    char *all = malloc(cap);
    assert_non_null(all);
    for (;;) {
        if (n + 4097 > cap) {
            cap *= 2;
            all = realloc(all, cap);
            assert_non_null(all);
        }
        const ssize_t got = recv(fd, all + n, 4096, 0);
        if (got < 0) {
            all[n] = '\0';
            fail_msg("nothing came for 20 s after: %s", all);
        }
        n += (size_t)got;
        all[n] = '\0';
        if (got == 0 || (until && strstr(all, until))) {
            *ret_n = n;
            return all;
        }
    }
}

static inline void put_chunks_together(struct answer *a)
{
    size_t out = 0;
    for (size_t at = 0; at < a->n;) {
        char *end = NULL;
        const size_t len = strtoul(a->body + at, &end, 16);
        at = (size_t)(end - a->body) + 2;
        if (len == 0) {
            break;
        }
        assert_true(at + len <= a->n);
        memmove(a->body + out, a->body + at, len);
        out += len;
        at += len + 2;
    }
    a->n = out;
    a->body[out] = '\0';
}

static inline struct answer http_answer(int fd)
{
    struct answer a = {0};
    size_t n = 0;
    char *all = http_read(fd, NULL, &n);
    char *end = strstr(all, "\r\n\r\n");
    if (!end) {
        fail_msg("no answer: '%s'", all);
    }
    const size_t head = (size_t)(end - all) + 4;
    assert_true(head < sizeof(a.head));
    memcpy(a.head, all, head);
    assert_int_equal(sscanf(a.head, "HTTP/1.1 %d", &a.status), 1);
    memmove(all, all + head, n - head + 1);
    a.body = all;
    a.n = n - head;
    if (strstr(a.head, "chunked")) {
        put_chunks_together(&a);
    }
    return a;
}

/* Asks and reads the answer. The caller frees body. */
static inline struct answer http_call(uint16_t port, const char *method, const char *path,
                                      const char *headers, const char *body)
{
    const int fd = http_connect(port);
    http_ask(fd, method, path, headers, body);
    struct answer a = http_answer(fd);
    (void)close(fd);
    return a;
}

static inline struct answer http_post(uint16_t port, const char *body)
{
    return http_call(port, "POST", "/v1/chat/completions", "", body);
}

#endif
