#include "server/engine/shared_places.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/cache/errors.h"

namespace gdpcache::engine {
namespace {

using cache::InvalidField;

/// A tensor of the call, wherever it is.
struct Item {
  absl::string_view field;
  const RegionPlace* place;
  const void* data;  // in the message
  std::int64_t bytes;
};

std::vector<Item> Inputs(const PrefillRequest& request, const PrefillPlan& plan) {
  std::vector<Item> items;
  const auto add = [&items](absl::string_view field, const TensorArgument& tensor, std::int64_t bytes) {
    if (tensor.present) items.push_back({field, &tensor.place, tensor.data, bytes});
  };
  add("k", request.k, plan.k_bytes);
  add("w", request.w, plan.k_bytes);
  add("u", request.u, plan.u_bytes);
  add("g", request.g, plan.g_bytes);
  add("initial_state", request.initial_state, plan.initial_state_bytes);
  add("auxiliary_state", request.auxiliary_state, plan.auxiliary_bytes);
  return items;
}

std::vector<Item> Results(const PrefillRequest& request, const PrefillPlan& plan) {
  return {{"outputs.h", &request.outputs.h, nullptr, plan.h_bytes},
          {"outputs.v_new", &request.outputs.v_new, nullptr, plan.v_new_bytes},
          {"outputs.final_state", &request.outputs.final_state, nullptr, plan.final_state_bytes}};
}

void* DataOf(const RegionPlace& place) { return place.region != nullptr ? place.data() : nullptr; }

bool Overlap(const Item& a, const Item& b) {
  if (a.place->region != b.place->region || a.bytes == 0 || b.bytes == 0) return false;
  // Both lie inside the region, so no sum overflows.
  return a.place->offset < b.place->offset + static_cast<std::uint64_t>(b.bytes) &&
         b.place->offset < a.place->offset + static_cast<std::uint64_t>(a.bytes);
}

absl::Status CheckEvent(absl::string_view field, const cache::Region* event) {
  if (event == nullptr || event->kind() == cache::RegionKind::kCudaEvent) return absl::OkStatus();
  return InvalidField(field, "is memory; it must be an event");
}

absl::Status CheckFlag(const RegionPlace& place) {
  if (place.region == nullptr) return absl::OkStatus();
  if (absl::Status status = CheckPlace("done_flag.place", place, sizeof(DoneFlag::value), alignof(std::uint32_t));
      !status.ok()) {
    return status;
  }
  // The client has to be able to set it, too.
  if (place.region->kind() == cache::RegionKind::kSystem) return absl::OkStatus();
  return InvalidField("done_flag.place.region", "is memory of the GPU; it must be system memory");
}

template <typename Wanted>
std::int64_t Sum(const std::vector<Item>& items, Wanted wanted) {
  std::int64_t sum = 0;
  for (const Item& item : items) {
    if (wanted(item)) sum += item.bytes;
  }
  return sum;
}

bool IsInline(const Item& item) { return item.place->region == nullptr; }

}  // namespace

absl::Status CheckDestinations(const PrefillRequest& request, const PrefillPlan& plan) {
  const auto check = [](absl::string_view field, const RegionPlace& place, bool wanted, absl::string_view unset,
                        std::int64_t bytes, kernels::DataType dtype) -> absl::Status {
    if (place.region == nullptr) return absl::OkStatus();
    if (!wanted) return InvalidField(field, absl::StrCat("is given, but ", unset));
    return CheckPlace(field, place, bytes, kernels::ByteSize(dtype));
  };
  const OutputPlaces& outputs = request.outputs;
  absl::Status status = check("outputs.h", outputs.h, plan.states != StateSelectionMode::kNone, "states.mode is NONE",
                              plan.h_bytes, plan.states_dtype);
  status.Update(check("outputs.v_new", outputs.v_new, plan.save_new_value, "save_new_value is not set",
                      plan.v_new_bytes, plan.shape.input_dtype));
  status.Update(check("outputs.final_state", outputs.final_state, plan.output_final_state,
                      "output_final_state is not set", plan.final_state_bytes, kernels::DataType::kFloat32));
  status.Update(CheckEvent("ready_event", request.ready_event));
  status.Update(CheckEvent("done_event", request.done_event));
  status.Update(CheckFlag(request.done_flag.place));
  if (!status.ok()) return status;

  std::vector<Item> items = Inputs(request, plan);
  std::vector<Item> written = Results(request, plan);
  written.push_back({"done_flag", &request.done_flag.place, nullptr, sizeof(DoneFlag::value)});
  for (const Item& item : written) {
    if (IsInline(item)) continue;
    for (const Item& other : items) {
      if (!Overlap(item, other)) continue;
      return InvalidField(
          item.field, absl::StrCat("has ", item.bytes, " bytes at offset ", item.place->offset, " of its region; ",
                                   other.field, " has ", other.bytes, " at ", other.place->offset, ": they overlap"));
    }
    items.push_back(item);
  }
  return absl::OkStatus();
}

const void* DataOf(const TensorArgument& tensor) {
  return tensor.place.region != nullptr ? tensor.place.data() : tensor.data;
}

SegmentMemory MemoryOf(const PrefillRequest& request) {
  SegmentMemory memory;
  memory.k = DataOf(request.k);
  memory.w = DataOf(request.w);
  memory.u = DataOf(request.u);
  memory.g = static_cast<const float*>(DataOf(request.g));
  memory.initial_state = static_cast<const float*>(DataOf(request.initial_state));
  memory.h = DataOf(request.outputs.h);
  memory.v_new = DataOf(request.outputs.v_new);
  memory.final_state = DataOf(request.outputs.final_state);
  memory.on_device = {.k = request.k.place.on_device(),
                      .w = request.w.place.on_device(),
                      .u = request.u.place.on_device(),
                      .g = request.g.place.on_device(),
                      .initial_state = request.initial_state.place.on_device(),
                      .h = request.outputs.h.on_device(),
                      .v_new = request.outputs.v_new.on_device(),
                      .final_state = request.outputs.final_state.on_device()};
  return memory;
}

std::uint32_t* FlagOf(const PrefillRequest& request) {
  return static_cast<std::uint32_t*>(DataOf(request.done_flag.place));
}

std::int64_t InlineInputBytes(const PrefillRequest& request, const PrefillPlan& plan) {
  return Sum(Inputs(request, plan), IsInline);
}

std::int64_t InlineOutputBytes(const PrefillRequest& request, const PrefillPlan& plan) {
  return Sum(Results(request, plan), IsInline);
}

std::int64_t HostBytes(const PrefillRequest& request, const PrefillPlan& plan) {
  const auto on_host = [](const Item& item) { return !item.place->on_device(); };
  return Sum(Inputs(request, plan), on_host) + Sum(Results(request, plan), on_host);
}

}  // namespace gdpcache::engine
