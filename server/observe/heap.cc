#include "server/observe/heap.h"

#include <malloc.h>

namespace gdpcache::observe {
namespace {

constexpr std::int64_t kMuch = std::int64_t{32} << 20;

}  // namespace

HeapBytes CountHeapBytes() {
  const struct mallinfo2 heap = mallinfo2();
  return {.in_use = static_cast<std::int64_t>(heap.uordblks),
          .free = static_cast<std::int64_t>(heap.fordblks),
          .mapped = static_cast<std::int64_t>(heap.hblkhd)};
}

void GiveBackFreeMemory() {
  if (CountHeapBytes().free > kMuch) malloc_trim(0);
}

}  // namespace gdpcache::observe
