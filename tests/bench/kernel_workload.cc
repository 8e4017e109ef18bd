#include "tests/bench/kernel_workload.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/time/clock.h"

namespace gdpcache::bench {
namespace {

std::size_t Count(std::int64_t n) { return static_cast<std::size_t>(n); }

template <typename T>
std::size_t Bytes(const std::vector<T>& values) {
  return values.size() * sizeof(T);
}

}  // namespace

KernelWorkload::KernelWorkload(PrefillShape shape) : PrefillWorkload(std::move(shape)), results_(MakeResults()) {
  slots_.resize(Count(sequences() * this->shape().heads * this->shape().key_dim * this->shape().value_dim));
}

std::vector<kernels::Sequence> KernelWorkload::Describe(const Operands& operands) const {
  const std::int64_t key_row = shape().heads * shape().key_dim;
  const std::int64_t value_row = shape().heads * shape().value_dim;
  const std::int64_t head_stride = shape().key_dim * shape().value_dim;
  const std::int64_t state = shape().heads * head_stride;
  const std::int64_t tokens_per_boundary = kChunk * shape().num_householder;
  std::vector<kernels::Sequence> sequences;
  float* h = operands.h;
  for (std::size_t n = 0; n < shape().lengths.size(); ++n) {
    const std::int64_t row = cu_seqlens()[n];
    kernels::Sequence sequence;
    sequence.length = shape().lengths[n];
    sequence.k = operands.k + row * key_row;
    sequence.w = operands.w + row * key_row;
    sequence.u = operands.u + row * value_row;
    sequence.g = operands.g + row * shape().heads;
    sequence.v_new = operands.v_new + row * value_row;
    sequence.slot = {operands.slots + static_cast<std::int64_t>(n) * state, kernels::DataType::kFloat32, head_stride};
    if (shape().continues) sequence.initial_state = sequence.slot;
    if (shape().all_states) {
      sequence.all_boundaries = {h, kernels::DataType::kFloat32, head_stride};
      h += (sequence.length + tokens_per_boundary - 1) / tokens_per_boundary * state;
    }
    sequences.push_back(sequence);
  }
  return sequences;
}

absl::StatusOr<KernelWorkload::Operands> KernelWorkload::Reach(kernels::Backend& backend, kernels::Stream& stream) {
  if (backend.device_info().unified_memory) {
    return Operands{inputs().k.data(),     inputs().w.data(), inputs().u.data(), inputs().g.data(),
                    results_.v_new.data(), results_.h.data(), slots_.data()};
  }
  if (device_.empty()) {
    const std::array<kernels::ByteRange, 4> ranges = {
        {{const_cast<std::uint16_t*>(inputs().k.data()), Bytes(inputs().k)},
         {const_cast<std::uint16_t*>(inputs().w.data()), Bytes(inputs().w)},
         {const_cast<std::uint16_t*>(inputs().u.data()), Bytes(inputs().u)},
         {const_cast<float*>(inputs().g.data()), Bytes(inputs().g)}}};
    std::vector<std::size_t> sizes;
    for (const kernels::ByteRange& input : ranges) sizes.push_back(input.size);
    for (const std::size_t bytes : {Bytes(results_.v_new), Bytes(results_.h), Bytes(slots_)}) sizes.push_back(bytes);
    for (const std::size_t size : sizes) {
      absl::StatusOr<kernels::Buffer> buffer = backend.Allocate(size, kernels::MemoryKind::kDevice);
      if (!buffer.ok()) return buffer.status();
      device_.push_back(*std::move(buffer));
    }
    std::vector<kernels::ByteCopy> copies;
    for (std::size_t i = 0; i < ranges.size(); ++i)
      copies.push_back({device_[i].data(), ranges[i].data, ranges[i].size});
    absl::Status status = backend.CopyBytes(copies, stream);
    if (status.ok()) status = backend.Synchronize(stream);
    if (!status.ok()) return status;
  }
  return Operands{static_cast<std::uint16_t*>(device_[0].data()), static_cast<std::uint16_t*>(device_[1].data()),
                  static_cast<std::uint16_t*>(device_[2].data()), static_cast<float*>(device_[3].data()),
                  static_cast<std::uint16_t*>(device_[4].data()), static_cast<float*>(device_[5].data()),
                  static_cast<float*>(device_[6].data())};
}

absl::StatusOr<absl::Duration> KernelWorkload::RunKernel(kernels::Backend& backend, kernels::Stream& stream) {
  const absl::StatusOr<Operands> operands = Reach(backend, stream);
  if (!operands.ok()) return operands.status();
  const std::vector<kernels::Sequence> sequences = Describe(*operands);
  const kernels::RecurrenceShape recurrence = {
      .heads = shape().heads,
      .key_dim = shape().key_dim,
      .value_dim = shape().value_dim,
      .num_householder = shape().num_householder,
      .chunk_size = kChunk,
      .input_dtype = kernels::DataType::kBFloat16,
  };
  const absl::Time start = absl::Now();
  if (absl::Status status = backend.RunRecurrence(recurrence, sequences, stream); !status.ok()) return status;
  if (absl::Status status = backend.Synchronize(stream); !status.ok()) return status;
  const absl::Duration elapsed = absl::Now() - start;
  if (!device_.empty()) {
    absl::Status status = backend.CopyBytes({{results_.v_new.data(), device_[4].data(), device_[4].size()},
                                             {results_.h.data(), device_[5].data(), device_[5].size()}},
                                            stream);
    if (status.ok()) status = backend.Synchronize(stream);
    if (!status.ok()) return status;
  }
  return elapsed;
}

bool KernelWorkload::ResultsAgree() const {
  const auto same_bits = [](const auto& wanted, const void* got) {
    return std::memcmp(wanted.data(), got, Bytes(wanted)) == 0;
  };
  return same_bits(results_.v_new, v_new()) && same_bits(results_.h, h());
}

}  // namespace gdpcache::bench
