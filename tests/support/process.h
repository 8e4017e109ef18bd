#ifndef GDPCACHE_TESTS_SUPPORT_PROCESS_H_
#define GDPCACHE_TESTS_SUPPORT_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::test {

/// A program that runs beside the test; killed with it. Its stderr goes to a file, its stdout to a pipe.
class Process {
 public:
  /// `arguments` without the program's name.
  Process(const std::string& program, const std::vector<std::string>& arguments);
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process();

  /// The next line of stdout without its end; nothing when the program has closed it or takes longer than `timeout`.
  std::optional<std::string> ReadLine(absl::Duration timeout = absl::Seconds(60));

  void Signal(int signal_number) const;

  pid_t pid() const { return pid_; }

  /// Its exit code, or minus the signal that ended it; nothing when it still runs after `timeout`.
  std::optional<int> Wait(absl::Duration timeout = absl::Seconds(60));

  /// All it has written to stderr.
  std::string Errors() const;

 private:
  TemporaryDirectory directory_;
  pid_t pid_ = -1;
  int stdout_ = -1;
  std::string unread_;
  std::optional<int> exit_;
};

struct ProgramResult {
  int exit_code = 0;
  std::string output;
  std::string errors;
};

/// Runs a program to its end.
ProgramResult RunProgram(const std::string& program, const std::vector<std::string>& arguments);

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_SUPPORT_PROCESS_H_
