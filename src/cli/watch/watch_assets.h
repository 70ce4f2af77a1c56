// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

/// Files that the binary carries, by cmake/EmbedFiles.cmake.
namespace nibble::assets {

extern const std::string_view watch_html, watch_js, watch_css;     ///< src/cli/watch
extern const std::string_view uplot_js, uplot_css, uplot_license;  ///< third_party/uplot, MIT licence

}  // namespace nibble::assets
