// SPDX-License-Identifier: Apache-2.0
#include "cli/watch/site.h"

#include <memory>

#include "cli/watch/watch_assets.h"

namespace nibble {

HttpServer::Site watch_site(const WatchedRuns& runs) {
  constexpr std::size_t kMostRows = 3000;  // a run, of what a page gets at once
  HttpServer::Site site;
  site.files = {{"/", {"text/html; charset=utf-8", assets::watch_html}},
                {"/watch.js", {"text/javascript; charset=utf-8", assets::watch_js}},
                {"/watch.css", {"text/css; charset=utf-8", assets::watch_css}},
                {"/uplot.js", {"text/javascript; charset=utf-8", assets::uplot_js}},
                {"/uplot.css", {"text/css; charset=utf-8", assets::uplot_css}},
                {"/uplot-license.txt", {"text/plain; charset=utf-8", assets::uplot_license}}};
  site.events_path = "/events";
  site.make_source = [&runs]() -> HttpServer::EventSource {
    const auto seen = std::make_shared<std::vector<WatchedRuns::Seen>>();
    return [&runs, seen] { return runs.news(*seen, kMostRows); };
  };
  return site;
}

}  // namespace nibble
