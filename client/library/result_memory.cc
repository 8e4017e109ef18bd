#include "client/library/result_memory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace gdpcache::client {

absl::Status PlaceResult(v1::TensorId id, const std::string& name, const std::optional<ResultLayout>& layout,
                         const std::optional<Tensor>& given, OwnedTensor* owned, IncomingTensors* incoming) {
  if (!layout) return absl::OkStatus();
  if (!given) {
    absl::StatusOr<OwnedTensor> memory = OwnedTensor::Allocate(layout->dtype, layout->shape);
    if (!memory.ok()) return memory.status();
    *owned = *std::move(memory);
    incoming->Expect(id, name, layout->dtype, layout->shape, owned->data(), layout->byte_size);
    return absl::OkStatus();
  }
  const absl::StatusOr<std::int64_t> size = ByteSize(given->dtype, given->shape);
  if (!size.ok()) return absl::InvalidArgumentError(absl::StrCat("outputs.", name, ": ", size.status().message()));
  if (given->dtype != layout->dtype || *size != layout->byte_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("outputs.", name, " is ", DataTypeName(given->dtype), " [", absl::StrJoin(given->shape, ", "),
                     "]; the result is ", DataTypeName(layout->dtype), " [", absl::StrJoin(layout->shape, ", "), "]"));
  }
  if (given->data == nullptr && *size > 0) {
    return absl::InvalidArgumentError(absl::StrCat("outputs.", name, " is a null pointer"));
  }
  incoming->Expect(id, name, layout->dtype, layout->shape, static_cast<std::byte*>(given->data), *size);
  return absl::OkStatus();
}

}  // namespace gdpcache::client
