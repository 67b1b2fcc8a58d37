/*
 * Fuzz entry of the engine's HTTP contract: the body and the headers of a chat completion, and the
 * matching of its stop strings. (Request lines and headers themselves are libmicrohttpd's.)
 *
 * Input: the value of X-Cache-Scenario up to a zero byte (empty: there is none), then the body.
 */
#include "engine/server/api_request.h"
#include "engine/server/stop.h"
#include "fuzz.h"

static void check(const struct kvd_api_request *r)
{
    size_t bytes = 0;
    FUZZ_CHECK(r->n_messages > 0 && r->n_stops <= KVD_API_STOPS_MAX);
    FUZZ_CHECK(r->temperature >= 0 && r->top_p > 0 && r->top_p <= 1);
    for (uint32_t i = 0; i < r->n_messages; i++) {
        FUZZ_CHECK(r->messages[i].role != NULL && r->messages[i].content != NULL);
        bytes += strlen(r->messages[i].content);
    }
    for (uint32_t i = 0; i < r->n_stops; i++) {
        const size_t n = strlen(r->stops[i]);
        FUZZ_CHECK(n > 0 && n <= KVD_API_STOP_BYTES_MAX);
    }
    FUZZ_CHECK(!r->user_id || strlen(r->user_id) <= KVD_API_USER_ID_MAX);
    FUZZ_CHECK(!r->scenario || strlen(r->scenario) <= KVD_API_SCENARIO_MAX);
    FUZZ_CHECK(bytes < SIZE_MAX / 2);
}

/* The text that comes out does not depend on how it was cut. Returns its length. */
static size_t stop_run(const struct kvd_api_request *r, const char *text, size_t n, size_t step,
                       char *ret_out)
{
    struct kvd_stop stop = {.stops = r->stops, .n = r->n_stops};
    const char *out = NULL;
    size_t bytes = 0;
    size_t total = 0;
    for (size_t at = 0; at < n && !stop.found; at += step) {
        FUZZ_CHECK(kvd_stop_feed(&stop, text + at, n - at < step ? n - at : step, &out, &bytes) ==
                   0);
        FUZZ_CHECK(total + bytes <= n);
        memcpy(ret_out + total, out, bytes);
        total += bytes;
    }
    if (!stop.found) {
        kvd_stop_end(&stop, &out, &bytes);
        FUZZ_CHECK(total + bytes == n);
        memcpy(ret_out + total, out, bytes);
        total += bytes;
    }
    kvd_stop_fini(&stop);
    return total;
}

static void stops(const struct kvd_api_request *r, const char *text, size_t n)
{
    char *whole = malloc(n + 1);
    char *cut = malloc(n + 1);
    FUZZ_CHECK(whole && cut);
    const size_t a = stop_run(r, text, n, n ? n : 1, whole);
    for (size_t step = 1; step <= 3; step += 2) {
        const size_t b = stop_run(r, text, n, step, cut);
        FUZZ_CHECK(a == b && memcmp(whole, cut, a) == 0 && memcmp(whole, text, a) == 0);
    }
    free(whole);
    free(cut);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvd_api_request *r = NULL;
    struct kvd_api_error error = {0};
    const size_t name = strnlen((const char *)data, size);
    char *scenario = malloc(name + 1);
    FUZZ_CHECK(scenario != NULL);
    memcpy(scenario, data, name);
    scenario[name] = 0;
    const size_t skip = name < size ? name + 1 : size;
    const size_t n = size - skip;
    char *body = (char *)fuzz_exact(data + skip, n);
    const int err = kvd_api_request_parse(body, n, name ? scenario : NULL, &error, &r);
    if (err == 0) {
        check(r);
        (void)kvd_api_request_check_model(r, "m", &error);
        stops(r, body, n);
        kvd_api_request_destroy(&r);
    } else {
        FUZZ_CHECK(err == -KVD_E_BAD_REQUEST && error.status == 400 && error.message[0]);
        FUZZ_CHECK(strlen(error.message) < sizeof(error.message));
    }
    free(body);
    free(scenario);
    return 0;
}
