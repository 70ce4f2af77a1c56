// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "report/report.h"

namespace nibble {

/// The section of the page that lays both arms' tasks side by side; empty when there were none.
std::string task_section(const ReportData& d);

}  // namespace nibble
