#ifndef GDPCACHE_KERNELS_COPY_AND_WAIT_H_
#define GDPCACHE_KERNELS_COPY_AND_WAIT_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/backend.h"

namespace gdpcache::kernels {

/// Returns when nothing of the copies is under way any more, also after an error: what they read and write may be given
/// back then.
inline absl::Status CopyAndWait(Backend& backend, absl::Span<const ByteCopy> copies, Stream& stream) {
  const absl::Status copied = backend.CopyBytes(copies, stream);
  const absl::Status synchronized = backend.Synchronize(stream);
  return copied.ok() ? synchronized : copied;
}

}  // namespace gdpcache::kernels

#endif  // GDPCACHE_KERNELS_COPY_AND_WAIT_H_
