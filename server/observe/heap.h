#ifndef GDPCACHE_SERVER_OBSERVE_HEAP_H_
#define GDPCACHE_SERVER_OBSERVE_HEAP_H_

#include <cstdint>

namespace gdpcache::observe {

/// What malloc has, of all its arenas. `in_use`: the program's blocks, and small ones that threads keep at hand for
/// themselves. `mapped`: the program's blocks with mappings of their own, as large ones have.
struct HeapBytes {
  std::int64_t in_use = 0;
  std::int64_t free = 0;
  std::int64_t mapped = 0;
};

/// As they are now. Threads that allocate may wait for microseconds.
HeapBytes CountHeapBytes();

/// Gives what the heap has free back to the system, if it is much: glibc keeps the pages of a burst for good, since
/// somewhere above them there is always something small in use. Takes milliseconds, in which threads that allocate
/// wait, and those that use the memory again get pages anew: for when there is nothing to do. What has gone back counts
/// as free for malloc: only when the process has much more again there is anything to look for. False when there was
/// not. Not to be called by several threads at once.
bool GiveBackFreeMemory();

}  // namespace gdpcache::observe

#endif  // GDPCACHE_SERVER_OBSERVE_HEAP_H_
