#ifndef GDPCACHE_SERVER_OBSERVE_OUT_OF_MEMORY_H_
#define GDPCACHE_SERVER_OBSERVE_OUT_OF_MEMORY_H_

namespace gdpcache::observe {

/// From now on the process says so and ends at once when the heap has no memory left. What is large or of a size that
/// clients choose comes from elsewhere, where a refusal is an answer; without memory for its bookkeeping a server
/// cannot even give one. An exception would be worse than the end: gRPC drops those that leave a callback, and the call
/// would hold its slots for ever.
void EndWhenOutOfMemory();

}  // namespace gdpcache::observe

#endif  // GDPCACHE_SERVER_OBSERVE_OUT_OF_MEMORY_H_
