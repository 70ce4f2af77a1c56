// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace nibble {

/// What went wrong, as the process exit code says it.
enum class ErrorKind {
  Runtime = 1,    ///< a file, the machine, an invariant of the data
  Usage = 2,      ///< bad command line or configuration: the user can mend it
  NonFinite = 5,  ///< a NaN or an infinity in a loss, gradient or operand
};

/// Thrown at the edges. The text says what was wrong, where, and the remedy.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& what) : std::runtime_error(what), kind_(kind) {}
  ErrorKind kind() const { return kind_; }
  int exit_code() const { return static_cast<int>(kind_); }

 private:
  ErrorKind kind_;
};

template <class... A>
[[noreturn]] void fail(fmt::format_string<A...> format, A&&... args) {
  throw Error(ErrorKind::Runtime, fmt::format(format, std::forward<A>(args)...));
}

template <class... A>
[[noreturn]] void fail_usage(fmt::format_string<A...> format, A&&... args) {
  throw Error(ErrorKind::Usage, fmt::format(format, std::forward<A>(args)...));
}

/// Throws Error{Runtime} unless `ok`. For what a caller or a file can get wrong; what only our own
/// mistake can break is an assert.
template <class... A>
void check(bool ok, fmt::format_string<A...> format, A&&... args) {
  if (!ok) fail(format, std::forward<A>(args)...);
}

template <class... A>
void check_usage(bool ok, fmt::format_string<A...> format, A&&... args) {
  if (!ok) fail_usage(format, std::forward<A>(args)...);
}

}  // namespace nibble
