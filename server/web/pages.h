// The dashboard: a page, its style and its script, held in the program. They may be read by anybody
// who reaches the server; what they show asks for a key, where there is one.
#pragma once

#include "server/http/router.h"

namespace spillway {

// GET /, /dashboard.css and /dashboard.js.
void add_page_routes(Router& router);

}  // namespace spillway
