// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace nibble {

/// Turns SIGINT and SIGTERM into a flag that the training loop reads between steps, so that a run ends by
/// saving its state. A second signal kills as usual. One guard at a time: signals belong to the process.
class SignalGuard {
 public:
  SignalGuard();
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

  /// The signal that arrived since, or 0.
  int received() const;
};

}  // namespace nibble
