// SPDX-License-Identifier: Apache-2.0
#include "telemetry/events.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace nibble {

int scale_bin(double scale) {
  if (!(scale > 0)) return 0;
  return std::clamp(static_cast<int>(std::floor(std::log2(scale))) + 7, 0, 15);
}

const char* name(Severity s) {
  switch (s) {
    case Severity::Info:
      return "info";
    case Severity::Warning:
      return "warning";
    case Severity::Fault:
      return "fault";
  }
  fail("an alarm has an unknown severity {}", static_cast<int>(s));
}

Severity severity_from(const std::string& text) {
  for (const Severity s : {Severity::Info, Severity::Warning, Severity::Fault}) {
    if (text == name(s)) return s;
  }
  fail("'{}' is not a severity; a log says info, warning or fault", text);
}

}  // namespace nibble
