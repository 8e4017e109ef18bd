#include "server/observe/free_memory.h"

#include <malloc.h>

#include <cstddef>

namespace gdpcache::observe {
namespace {

constexpr std::size_t kMuch = std::size_t{32} << 20;

}  // namespace

void GiveBackFreeMemory() {
  if (mallinfo2().fordblks > kMuch) malloc_trim(0);
}

}  // namespace gdpcache::observe
