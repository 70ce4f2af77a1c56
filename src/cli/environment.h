// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "backend/device.h"

namespace nibble {

/// What a reader of a report or a bug needs to know of the machine, as label and value.
std::vector<std::pair<std::string, std::string>> environment_of(BackendKind backend, int threads);

/// "AMD EPYC 9654", from /proc/cpuinfo.
std::string processor_name();

}  // namespace nibble
