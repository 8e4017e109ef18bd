#ifndef GDPCACHE_SHARED_MEMORY_H_
#define GDPCACHE_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "gdpcache/options.h"

namespace gdpcache {

/// Memory that this process and a server on the same host both have mapped, made by Session::ShareMemory. Tensors of a
/// Prefill that lie in it do not travel: the server reads inputs and writes results right there.
///
/// Movable. Ends with the object; no call may be using it then. May outlive its session, as ordinary memory.
class SharedMemory {
 public:
  SharedMemory(SharedMemory&&) noexcept;
  SharedMemory& operator=(SharedMemory&&) noexcept;
  ~SharedMemory();

  /// Zeros at first; aligned to a page.
  std::byte* data() const;
  std::int64_t size() const;

  /// What the server knows it by: unique in the session.
  const std::string& name() const;

  /// Unregisters, which the end of the session has done already, and unmaps; afterwards the object is as if moved from.
  /// The destructor does the same and drops the error.
  absl::Status Release(const CallOptions& options = {});

 private:
  friend class Session;
  class Impl;
  explicit SharedMemory(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace gdpcache

#endif  // GDPCACHE_SHARED_MEMORY_H_
