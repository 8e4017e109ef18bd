#ifndef GDPCACHE_KERNELS_CPU_SYSTEM_LIMITS_H_
#define GDPCACHE_KERNELS_CPU_SYSTEM_LIMITS_H_

#include <cstdint>

namespace gdpcache::kernels::cpu {

/// Memory of the machine, or of the control group of this process whose limit is lowest where that is lower.
struct HostMemory {
  std::int64_t used_bytes = 0;  // by all processes; without what would be given back on demand, such as files read
  std::int64_t total_bytes = 0;
};
HostMemory ReadHostMemory();

/// Bytes of memory this process may use, at most.
inline std::int64_t AvailableMemoryBytes() { return ReadHostMemory().total_bytes; }

/// Processors this process may keep busy: those it is allowed to run on, or its control group's quota, rounded up,
/// where that is lower. At least 1.
int AvailableProcessors();

}  // namespace gdpcache::kernels::cpu

#endif  // GDPCACHE_KERNELS_CPU_SYSTEM_LIMITS_H_
