#include "client/library/shared_places.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/library/status_conversion.h"

namespace gdpcache::client {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 62;

class Search {
 public:
  Search(const SharedRegions& regions, bool look, SharedPlaces& places)
      : regions_(regions), look_(look), places_(places) {}

  SharedPlaces::Place Find(const char* name, DataType dtype, const void* data, std::int64_t size,
                           std::int64_t& other_bytes) {
    SharedPlaces::Place place;
    if (look_ && data != nullptr) place = regions_.Find(data, size, ElementSize(dtype));
    if (place) {
      places_.any = true;
    } else {
      if (places_.first_other.empty()) places_.first_other = name;
      other_bytes = std::min(kMost, other_bytes + size);  // each is at most 2^62: no overflow
    }
    return place;
  }

  SharedPlaces::Place Input(const char* name, const ConstTensor& tensor) {
    // One without a size is for the server, or the schedule of pieces, to refuse.
    const std::int64_t size = ByteSize(tensor.dtype, tensor.shape).value_or(0);
    return Find(name, tensor.dtype, tensor.data, size, places_.other_input_bytes);
  }

  SharedPlaces::Place Result(const char* name, const std::optional<ResultLayout>& layout,
                             const std::optional<Tensor>& given) {
    if (!layout) return std::nullopt;
    return Find(name, layout->dtype, given ? given->data : nullptr, layout->byte_size, places_.other_result_bytes);
  }

 private:
  const SharedRegions& regions_;
  const bool look_;
  SharedPlaces& places_;
};

}  // namespace

SharedPlaces FindPlaces(const PrefillCall& call, const PrefillLayout& layout, const SharedRegions& regions, bool look) {
  SharedPlaces places;
  Search search(regions, look, places);
  places.k = search.Input("k", call.k);
  places.w = search.Input("w", call.w);
  places.u = search.Input("u", call.u);
  if (call.g) places.g = search.Input("g", *call.g);
  if (call.initial_state) places.initial_state = search.Input("initial_state", *call.initial_state);
  if (call.auxiliary_state) places.auxiliary_state = search.Input("auxiliary_state", *call.auxiliary_state);
  places.h = search.Result("outputs.h", layout.h, call.outputs.h);
  places.v_new = search.Result("outputs.v_new", layout.v_new, call.outputs.v_new);
  places.final_state = search.Result("outputs.final_state", layout.final_state, call.outputs.final_state);
  return places;
}

void Describe(const SharedPlaces& places, v1::PrefillRequest* request) {
  if (places.k) *request->mutable_k()->mutable_shared_memory() = *places.k;
  if (places.w) *request->mutable_w()->mutable_shared_memory() = *places.w;
  if (places.u) *request->mutable_u()->mutable_shared_memory() = *places.u;
  if (places.g) *request->mutable_g()->mutable_shared_memory() = *places.g;
  if (places.initial_state) *request->mutable_initial_state()->mutable_shared_memory() = *places.initial_state;
  if (places.auxiliary_state) *request->mutable_auxiliary_state()->mutable_shared_memory() = *places.auxiliary_state;
  if (places.h) *request->mutable_outputs()->mutable_h() = *places.h;
  if (places.v_new) *request->mutable_outputs()->mutable_v_new() = *places.v_new;
  if (places.final_state) *request->mutable_outputs()->mutable_final_state() = *places.final_state;
}

absl::Status CheckPlaces(const SharedPlaces& places, const v1::PrefillResponse& response) {
  const auto check = [](const char* name, const SharedPlaces::Place& place, const v1::Tensor& tensor) -> absl::Status {
    if (place.has_value() != tensor.has_shared_memory()) {
      return ProtocolError(absl::StrCat(name, " is not where it was to be"));
    }
    if (place &&
        (place->region() != tensor.shared_memory().region() || place->offset() != tensor.shared_memory().offset())) {
      return ProtocolError(absl::StrCat(name, " is at another place of shared memory than it was to be"));
    }
    return absl::OkStatus();
  };
  absl::Status status = check("h", places.h, response.h());
  status.Update(check("v_new", places.v_new, response.v_new()));
  status.Update(check("final_state", places.final_state, response.final_state()));
  return status;
}

}  // namespace gdpcache::client
