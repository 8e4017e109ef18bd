#ifndef GDPCACHE_SERVER_OBSERVE_FREE_MEMORY_H_
#define GDPCACHE_SERVER_OBSERVE_FREE_MEMORY_H_

namespace gdpcache::observe {

/// Gives what the heap has free back to the system, if it is much: glibc keeps the pages of a burst for good, since
/// somewhere above them there is always something small in use. Takes milliseconds, in which threads that allocate
/// wait, and those that use the memory again get pages anew: for when there is nothing to do.
void GiveBackFreeMemory();

}  // namespace gdpcache::observe

#endif  // GDPCACHE_SERVER_OBSERVE_FREE_MEMORY_H_
