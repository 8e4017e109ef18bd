#ifndef GDPCACHE_TESTS_MODEL_OPERATION_H_
#define GDPCACHE_TESTS_MODEL_OPERATION_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace gdpcache::test {

/// What a client, an operator or fate may do to a server.
enum class OperationKind : std::uint8_t {
  kServer,  // how the server is set up; only as the first operation
  kCreateCache,
  kDeleteCache,
  kOpenSession,
  kCloseSession,
  kExpireSession,
  kAcquire,
  kRelease,
  kReset,
  kCopy,
  kRead,
  kWrite,
  kPrefill,
  kStorm,  // prefills of several slots at the same time
  kHasty,  // a prefill with next to no time
  kSave,
  kLookup,
  kRestore,
  kPin,
  kUnpin,
  kDelete,
  kExport,
  kImport,
  kWatch,
  kRestart,
  kKill,
};

/// An operation and its choices. What a choice stands for depends on what there is when the operation is played, so any
/// list of operations makes sense, also one that has lost some; 0 is the plainest choice.
struct Operation {
  OperationKind kind = OperationKind::kServer;
  std::vector<std::uint32_t> choices;  // those left out are 0
};

/// "open 0 1; acquire 0 2; ...", and back.
std::string ToText(absl::Span<const Operation> operations);
absl::StatusOr<std::vector<Operation>> ParseOperations(absl::string_view text);

/// The same for the same seed everywhere. Begins with kServer.
std::vector<Operation> RandomOperations(std::uint64_t seed, std::size_t count);

/// Takes an operation's choices one by one.
class Choices {
 public:
  explicit Choices(const Operation& operation) : choices_(operation.choices) {}

  std::int64_t Next() { return next_ < choices_.size() ? choices_[next_++] : 0; }
  /// 0 .. count - 1.
  std::int64_t Below(std::int64_t count) { return Next() % count; }
  bool Flag() { return Below(2) == 1; }
  template <typename T>
  T Of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(Below(static_cast<std::int64_t>(values.size())))];
  }

 private:
  absl::Span<const std::uint32_t> choices_;
  std::size_t next_ = 0;
};

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_MODEL_OPERATION_H_
