#ifndef GDPCACHE_CLIENT_COMMAND_BENCH_MEMORY_COPY_H_
#define GDPCACHE_CLIENT_COMMAND_BENCH_MEMORY_COPY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace gdpcache::bench {

/// The yardstick of what copies states: one thread of this process copies as many bytes of plain memory.
class MemoryCopy {
 public:
  explicit MemoryCopy(std::int64_t bytes);

  std::int64_t bytes() const { return static_cast<std::int64_t>(source_.size()); }

  absl::Duration Run();

 private:
  std::vector<std::byte> source_;
  std::vector<std::byte> destination_;
};

}  // namespace gdpcache::bench

#endif  // GDPCACHE_CLIENT_COMMAND_BENCH_MEMORY_COPY_H_
