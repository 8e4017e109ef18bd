#ifndef GDPCACHE_CLIENT_LIBRARY_RESULT_MEMORY_H_
#define GDPCACHE_CLIENT_LIBRARY_RESULT_MEMORY_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "client/library/incoming_tensors.h"
#include "client/library/prefill_layout.h"
#include "gdpcache/tensor.h"

namespace gdpcache::client {

/// Finds memory for a result and expects it in `incoming`: the caller's where given, else newly allocated into
/// `*owned`. INVALID_ARGUMENT when the caller's is of another dtype or size than the result. Without a layout
/// there is no result, and nothing is done.
absl::Status PlaceResult(v1::TensorId id, const std::string& name, const std::optional<ResultLayout>& layout,
                         const std::optional<Tensor>& given, OwnedTensor* owned, IncomingTensors* incoming);

}  // namespace gdpcache::client

#endif  // GDPCACHE_CLIENT_LIBRARY_RESULT_MEMORY_H_
