// SPDX-License-Identifier: Apache-2.0
#include "train/signals.h"

#include <csignal>

namespace nibble {
namespace {

volatile std::sig_atomic_t received_signal = 0;

void on_signal(int signal) {
  received_signal = signal;
  std::signal(signal, SIG_DFL);
}

}  // namespace

SignalGuard::SignalGuard() {
  received_signal = 0;
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
}

SignalGuard::~SignalGuard() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

int SignalGuard::received() const { return received_signal; }

}  // namespace nibble
