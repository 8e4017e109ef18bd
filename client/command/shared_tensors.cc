#include "client/command/shared_tensors.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

namespace gdpcache::command {
namespace {

constexpr std::int64_t kAlignment = 64;

/// The sizes of a recording's tensors were checked when it was loaded.
std::int64_t SizeOf(DataType dtype, const std::vector<std::int64_t>& shape) {
  return ByteSize(dtype, shape).value_or(0);
}

std::vector<ConstTensor*> Inputs(PrefillCall& call) {
  std::vector<ConstTensor*> inputs = {&call.k, &call.w, &call.u};
  if (call.g) inputs.push_back(&*call.g);
  if (call.initial_state) inputs.push_back(&*call.initial_state);
  return inputs;
}

std::vector<std::optional<Tensor>*> Results(PrefillOutputs& outputs) {
  return {&outputs.h, &outputs.v_new, &outputs.final_state};
}

absl::Status Take(const std::optional<Tensor>& from, OwnedTensor& to) {
  if (!from) return absl::OkStatus();
  absl::StatusOr<OwnedTensor> memory = OwnedTensor::Allocate(from->dtype, from->shape);
  if (!memory.ok()) return memory.status();
  to = *std::move(memory);
  std::memcpy(to.data(), from->data, static_cast<std::size_t>(to.byte_size()));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SharedTensors> SharedTensors::Place(Session& session, const RecordedBatch& batch, PrefillCall& call) {
  PrefillOutputs outputs;
  const auto states = [&batch](DataType dtype, std::int64_t count) {
    return Tensor{dtype, {count, batch.heads, batch.key_dim, batch.value_dim}, nullptr};
  };
  outputs.h = states(batch.states_dtype, batch.boundaries);
  if (batch.save_new_value) outputs.v_new = Tensor{batch.u.dtype, batch.u.shape, nullptr};
  if (batch.output_final_state) outputs.final_state = states(DataType::kFloat32, batch.sequences);

  std::int64_t size = 0;
  const auto reserve = [&size](DataType dtype, const std::vector<std::int64_t>& shape) {
    const std::int64_t begin = size;
    size += (SizeOf(dtype, shape) + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  };
  std::vector<std::int64_t> begins;
  for (const ConstTensor* input : Inputs(call)) begins.push_back(reserve(input->dtype, input->shape));
  for (const std::optional<Tensor>* result : Results(outputs)) {
    if (*result) begins.push_back(reserve((*result)->dtype, (*result)->shape));
  }
  absl::StatusOr<SharedMemory> memory = session.ShareMemory(std::max<std::int64_t>(size, 1));
  if (!memory.ok()) return memory.status();

  auto begin = begins.begin();
  for (ConstTensor* input : Inputs(call)) {
    std::byte* const place = memory->data() + *begin++;
    std::memcpy(place, input->data, static_cast<std::size_t>(SizeOf(input->dtype, input->shape)));
    input->data = place;
  }
  for (std::optional<Tensor>* result : Results(outputs)) {
    if (*result) (*result)->data = memory->data() + *begin++;
  }
  call.outputs = outputs;
  return SharedTensors(*std::move(memory), outputs);
}

absl::Status SharedTensors::TakeResults(PrefillResult& result) const {
  absl::Status status = Take(outputs_.h, result.h);
  status.Update(Take(outputs_.v_new, result.v_new));
  status.Update(Take(outputs_.final_state, result.final_state));
  return status;
}

}  // namespace gdpcache::command
