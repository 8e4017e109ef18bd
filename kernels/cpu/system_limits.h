#ifndef GDPCACHE_KERNELS_CPU_SYSTEM_LIMITS_H_
#define GDPCACHE_KERNELS_CPU_SYSTEM_LIMITS_H_

#include <cstdint>

namespace gdpcache::kernels::cpu {

/// Bytes of memory this process may use: the machine's, or its control group's limit where that is lower.
std::int64_t AvailableMemoryBytes();

/// Processors this process may keep busy: those it is allowed to run on, or its control group's quota, rounded up,
/// where that is lower. At least 1.
int AvailableProcessors();

}  // namespace gdpcache::kernels::cpu

#endif  // GDPCACHE_KERNELS_CPU_SYSTEM_LIMITS_H_
