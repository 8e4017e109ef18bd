#include "server/observe/heap.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace gdpcache::observe {
namespace {

constexpr std::int64_t kMuch = std::int64_t{32} << 20;

/// The least that the process has had of its own since free memory went back.
std::int64_t g_least = 0;

/// Memory that the process has and shares with nobody.
std::int64_t OwnBytes() {
  std::int64_t total = 0;
  std::int64_t resident = 0;
  std::int64_t shared = 0;
  std::ifstream("/proc/self/statm") >> total >> resident >> shared;
  return (resident - shared) * getpagesize();
}

}  // namespace

HeapBytes CountHeapBytes() {
  const struct mallinfo2 heap = mallinfo2();
  return {.in_use = static_cast<std::int64_t>(heap.uordblks),
          .free = static_cast<std::int64_t>(heap.fordblks),
          .mapped = static_cast<std::int64_t>(heap.hblkhd)};
}

bool GiveBackFreeMemory() {
  const std::int64_t own = OwnBytes();
  g_least = std::min(g_least, own);
  if (own - g_least < kMuch || CountHeapBytes().free <= kMuch) return false;
  malloc_trim(0);
  g_least = OwnBytes();
  return true;
}

}  // namespace gdpcache::observe
