#include "client/command/bench/memory_copy.h"

#include <cstring>

#include "absl/time/clock.h"

namespace gdpcache::bench {

MemoryCopy::MemoryCopy(std::int64_t bytes)
    : source_(static_cast<std::size_t>(bytes), std::byte{1}),
      destination_(static_cast<std::size_t>(bytes), std::byte{2}) {}

absl::Duration MemoryCopy::Run() {
  const absl::Time start = absl::Now();
  std::memcpy(destination_.data(), source_.data(), source_.size());
  return absl::Now() - start;
}

}  // namespace gdpcache::bench
