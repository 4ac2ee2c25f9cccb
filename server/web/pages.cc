#include "server/web/pages.h"

#include <string_view>

#include "server/web/embedded.h"

namespace spillway {
namespace {

struct Page {
  const char* path;
  const char* type;
  std::string_view text;
};

const Page kPages[] = {
    {"/", "text/html; charset=utf-8", kIndexHtml},
    {"/dashboard.css", "text/css; charset=utf-8", kDashboardCss},
    {"/dashboard.js", "text/javascript; charset=utf-8", kDashboardJs},
};

// Nothing but this server's own files and API; no frame of another page around it.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

}  // namespace

void add_page_routes(Router& router) {
  for (const Page& page : kPages) {
    router.add({"GET", page.path,
                [&page](const HttpRequest&, const ExchangePtr& exchange) {
                  HttpResponse response;
                  response.body = page.text;
                  response.content_type = page.type;
                  response.fields = {{"Content-Security-Policy", kPolicy},
                                     {"X-Content-Type-Options", "nosniff"},
                                     {"Referrer-Policy", "no-referrer"},
                                     {"Cache-Control", "no-cache"}};
                  exchange->respond(std::move(response));
                },
                /*json_body=*/false, /*open=*/true});
  }
}

}  // namespace spillway
