// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "validate/branch.h"

namespace nibble {

/// A health check as one page that stands alone: the gap at every evaluation with its band, the losses, the
/// table and the cost. Pure: the same figures give the same bytes.
std::string branch_html(const Branch& b);

}  // namespace nibble
