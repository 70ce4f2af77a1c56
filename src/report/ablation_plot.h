// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "validate/ablation.h"

namespace nibble {

/// An SVG file that stands alone: an arm a row in the order of the table, its gap to the baseline and to the
/// full recipe as dots with 95 % intervals, the noise of one seed as a band around zero. It loads nothing and
/// follows the viewer's light or dark setting.
std::string ablation_svg(const Ablation& a);

}  // namespace nibble
