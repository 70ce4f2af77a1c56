// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "quant/format.h"

/// Words for what a QuantSpec says. Apart from format.h, which kernels of several instruction sets include.
namespace nibble {

/// "nvfp4.te", "mxfp4.floor", "nvfp4.te 4over6-mse/256", "nvfp4.te row-scaled": the format with whatever of
/// its arithmetic is not the default. Tile, rotation and rounding are said elsewhere.
std::string arithmetic_name(const QuantSpec& spec);

/// "nvfp4.te" and the like, in the order of Profile.
std::vector<std::string> profile_names();

/// "nvfp4.te", and back; an unknown name throws Error{Usage} that lists the names.
std::string_view profile_name(Profile profile);
Profile profile_from_name(std::string_view name);

}  // namespace nibble
