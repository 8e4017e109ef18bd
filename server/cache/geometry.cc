#include "server/cache/geometry.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/cache/errors.h"

namespace gdpcache::cache {
namespace {

constexpr std::int64_t kMaxLayers = 65'536;
constexpr std::int64_t kMaxSlots = 16'777'216;
constexpr std::int64_t kMaxHeads = 1'024;
constexpr std::int64_t kMaxNumHouseholder = 64;
constexpr std::int64_t kMaxAuxiliaryBytes = std::int64_t{1} << 30;
constexpr std::int64_t kMaxTotalBytes = std::int64_t{1} << 62;

absl::Status CheckRange(absl::string_view field, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("is ", value, "; it must be from ", least, " to ", most));
}

void AppendDifference(std::string& text, absl::string_view field, std::int64_t existing, std::int64_t wanted) {
  if (existing == wanted) return;
  absl::StrAppend(&text, text.empty() ? "" : "; ", field, " is ", existing, ", not ", wanted);
}

}  // namespace

absl::Status Geometry::Validate() const {
  absl::Status status;
  status.Update(CheckRange("geometry.layers", layers, 1, kMaxLayers));
  status.Update(CheckRange("geometry.slots", slots, 1, kMaxSlots));
  status.Update(CheckRange("geometry.heads", heads, 1, kMaxHeads));
  status.Update(CheckRange("geometry.key_dim", key_dim, 1, kernels::kMaxKeyDim));
  status.Update(CheckRange("geometry.value_dim", value_dim, 1, kernels::kMaxValueDim));
  status.Update(CheckRange("geometry.num_householder", num_householder, 1, kMaxNumHouseholder));
  status.Update(CheckRange("geometry.auxiliary_bytes", auxiliary_bytes, 0, kMaxAuxiliaryBytes));
  if (!status.ok()) return status;
  // Within these ranges neither factor overflows.
  if (layers * slots > (kMaxTotalBytes - 1) / (state_bytes() + auxiliary_bytes)) {
    return InvalidField(
        "geometry", absl::StrCat("has ", layers, " layers of ", slots, " slots of ", state_bytes() + auxiliary_bytes,
                                 " bytes; their product must be below 2^62 bytes"));
  }
  return absl::OkStatus();
}

std::int64_t Geometry::memory_charge() const {
  // Positions, owners, free list and, when one call claims every slot, the sequencer's entries.
  constexpr std::int64_t kBytesPerPlace = 96;
  constexpr std::int64_t kBytesPerSlot = 32;
  const std::int64_t bookkeeping = slots * (layers * kBytesPerPlace + kBytesPerSlot);
  const std::int64_t covered = total_bytes() / 4;
  return bookkeeping <= covered ? total_bytes() : total_bytes() - covered + bookkeeping;
}

std::string DescribeDifference(const Geometry& existing, const Geometry& wanted) {
  std::string text;
  AppendDifference(text, "layers", existing.layers, wanted.layers);
  AppendDifference(text, "slots", existing.slots, wanted.slots);
  AppendDifference(text, "heads", existing.heads, wanted.heads);
  AppendDifference(text, "key_dim", existing.key_dim, wanted.key_dim);
  AppendDifference(text, "value_dim", existing.value_dim, wanted.value_dim);
  AppendDifference(text, "num_householder", existing.num_householder, wanted.num_householder);
  if (existing.state_dtype != wanted.state_dtype) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", "state_dtype is ",
                    std::string(kernels::Name(existing.state_dtype)), ", not ",
                    std::string(kernels::Name(wanted.state_dtype)));
  }
  AppendDifference(text, "auxiliary_bytes", existing.auxiliary_bytes, wanted.auxiliary_bytes);
  return text;
}

}  // namespace gdpcache::cache
