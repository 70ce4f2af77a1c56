// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/watch/run_tail.h"

namespace nibble {

struct TerminalStyle {
  int columns = 100, rows = 24;  ///< of the terminal
  bool braille = true;           ///< two by four points a character; false: one of * + o x a run
  bool colour = true;            ///< a colour a run
};

/// Width and height of the terminal behind stdout, braille where the locale is UTF-8, colour where allowed
/// (https://no-color.org). Without a terminal 100 x 24, no colour.
TerminalStyle terminal_style();

/// The training losses of all runs as one curve each, with axes, and below it a row a run: step, loss,
/// validation loss, norm, speed, time left, alarms. Fits style.columns x style.rows where these are at least
/// 40 x 10.
std::string terminal_frame(const std::vector<WatchedRun>& runs, const TerminalStyle& style);

}  // namespace nibble
