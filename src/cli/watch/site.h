// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/watch/http_server.h"
#include "cli/watch/run_tail.h"

namespace nibble {

/// The live page: /, its script and style, and /events with the runs as they grow. `runs` outlives it.
HttpServer::Site watch_site(const WatchedRuns& runs);

}  // namespace nibble
