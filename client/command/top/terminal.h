#ifndef GDPCACHE_CLIENT_COMMAND_TOP_TERMINAL_H_
#define GDPCACHE_CLIENT_COMMAND_TOP_TERMINAL_H_

#include <termios.h>

#include <cstddef>

#include "absl/types/span.h"
#include "client/command/top/render.h"

namespace gdpcache::command::top {

/// The screen of an interactive terminal, and its keys: standard output and input, by the escape sequences that every
/// terminal of today understands. Not thread-safe.
class Terminal {
 public:
  struct Size {
    std::size_t columns = 80;
    std::size_t rows = 24;
  };

  /// Whether there is one.
  static bool IsPresent();

  /// Takes over the terminal: a screen of its own, keys that come one by one without being shown.
  Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  /// Leaves everything as it was.
  ~Terminal() { Leave(); }

  void Enter();
  void Leave();

  Size size() const;

  /// Replaces what is shown. False when nobody sees it any more.
  bool Draw(absl::Span<const Line> lines) const;

  /// After input: whether somebody wants to quit, by the key or because the terminal is gone.
  bool ReadQuit() const;

 private:
  const bool colour_;
  bool entered_ = false;
  termios before_ = {};
};

}  // namespace gdpcache::command::top

#endif  // GDPCACHE_CLIENT_COMMAND_TOP_TERMINAL_H_
