#ifndef GDPCACHE_CLIENT_COMMAND_TOP_SIGNALS_H_
#define GDPCACHE_CLIENT_COMMAND_TOP_SIGNALS_H_

#include <vector>

namespace gdpcache::command::top {

/// Turns the signals that end, suspend or resize a program into bytes of a pipe, which a loop can wait for; and any
/// other thread's wake-up, too. At most one at a time.
class Signals {
 public:
  Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  ~Signals();

  /// To be polled for input.
  int descriptor() const;

  /// Makes descriptor() readable. Thread-safe.
  void Wake() const;

  /// The numbers of the signals since it was last asked; 0 for Wake. Does not wait.
  std::vector<int> Take() const;

  /// Stops the process as the terminal wants it, and returns when it goes on.
  static void Suspend();
};

}  // namespace gdpcache::command::top

#endif  // GDPCACHE_CLIENT_COMMAND_TOP_SIGNALS_H_
