/* In the place of serve.c where libmicrohttpd was missing when this was built. */
#include "engine/cli.h"

int kvd_app_serve(struct kvd_engine_app *app)
{
    (void)fprintf(stderr,
                  "kvdepot-engine: --http %s: this program was built without the HTTP server; "
                  "install libmicrohttpd-dev and build again\n",
                  app->cli.http);
    return KVD_EXIT_USAGE;
}
