#include "tests/bench/prefill_workload.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <random>
#include <type_traits>
#include <utility>

#include "absl/time/clock.h"

namespace gdpcache::bench {
namespace {

constexpr std::int64_t kChunk = 64;

std::size_t Count(std::int64_t n) { return static_cast<std::size_t>(n); }

/// Uniform in [-scale, scale], cut to bfloat16.
std::vector<std::uint16_t> RandomBFloat16(std::int64_t count, float scale, std::mt19937& random) {
  std::vector<std::uint16_t> values(Count(count));
  for (std::uint16_t& value : values) {
    const float x = scale * (static_cast<float>(random()) * 0x1p-31F - 1.0F);
    value = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
  }
  return values;
}

template <typename T>
std::int64_t Bytes(const std::vector<T>& values) {
  return static_cast<std::int64_t>(values.size() * sizeof(T));
}

}  // namespace

PrefillWorkload::PrefillWorkload(PrefillShape shape) : shape_(std::move(shape)), cu_seqlens_{0} {
  const std::int64_t tokens_per_boundary = kChunk * shape_.num_householder;
  for (const std::int64_t length : shape_.lengths) {
    tokens_ += length;
    cu_seqlens_.push_back(tokens_);
    if (shape_.all_states) boundaries_ += (length + tokens_per_boundary - 1) / tokens_per_boundary;
  }
  std::mt19937 random(7);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same inputs every time
  const float unit = 1.0F / std::sqrt(static_cast<float>(shape_.key_dim));
  k_ = RandomBFloat16(tokens_ * shape_.heads * shape_.key_dim, unit, random);
  w_ = RandomBFloat16(tokens_ * shape_.heads * shape_.key_dim, unit, random);
  u_ = RandomBFloat16(tokens_ * shape_.heads * shape_.value_dim, 1.0F, random);
  g_.resize(Count(tokens_ * shape_.heads));
  for (std::int64_t sequence = 0; sequence < sequences(); ++sequence) {
    const std::int64_t first = cu_seqlens_[Count(sequence)];
    for (std::int64_t row = first; row < cu_seqlens_[Count(sequence) + 1]; ++row) {
      const float decay = -0.02F * static_cast<float>((row - first) % kChunk + 1);
      for (std::int64_t head = 0; head < shape_.heads; ++head) g_[Count(row * shape_.heads + head)] = decay;
    }
  }
  slots_.resize(Count(sequences() * shape_.heads * shape_.key_dim * shape_.value_dim));
  from_kernel_ = MakeResults();
  from_server_ = MakeResults();
  called_ = {k_.data(), w_.data(), u_.data(), g_.data(), from_server_.v_new.data(), from_server_.h.data(), nullptr};
}

absl::Status PrefillWorkload::Share(Session& session) {
  constexpr std::int64_t kAlignment = 256;
  const auto aligned = [](std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; };
  std::int64_t size = 0;
  for (const std::int64_t bytes :
       {Bytes(k_), Bytes(w_), Bytes(u_), Bytes(g_), Bytes(from_server_.v_new), Bytes(from_server_.h)}) {
    size += aligned(bytes);
  }
  absl::StatusOr<SharedMemory> memory = session.ShareMemory(size);
  if (!memory.ok()) return memory.status();
  std::byte* next = memory->data();
  const auto place = [&](const auto& values, auto*& pointer) {
    std::memcpy(next, values.data(), Count(Bytes(values)));
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(next);
    next += aligned(Bytes(values));
  };
  place(k_, called_.k);
  place(w_, called_.w);
  place(u_, called_.u);
  place(g_, called_.g);
  place(from_server_.v_new, called_.v_new);
  place(from_server_.h, called_.h);
  shared_ = *std::move(memory);
  return absl::OkStatus();
}

PrefillWorkload::Results PrefillWorkload::MakeResults() const {
  return {std::vector<std::uint16_t>(Count(tokens_ * shape_.heads * shape_.value_dim)),
          std::vector<float>(Count(boundaries_ * shape_.heads * shape_.key_dim * shape_.value_dim))};
}

std::int64_t PrefillWorkload::bytes_in() const { return Bytes(k_) + Bytes(w_) + Bytes(u_) + Bytes(g_); }

std::int64_t PrefillWorkload::bytes_out() const { return Bytes(from_server_.v_new) + Bytes(from_server_.h); }

std::vector<kernels::Sequence> PrefillWorkload::Describe(const Operands& operands) const {
  const std::int64_t key_row = shape_.heads * shape_.key_dim;
  const std::int64_t value_row = shape_.heads * shape_.value_dim;
  const std::int64_t head_stride = shape_.key_dim * shape_.value_dim;
  const std::int64_t state = shape_.heads * head_stride;
  const std::int64_t tokens_per_boundary = kChunk * shape_.num_householder;
  std::vector<kernels::Sequence> sequences;
  float* h = operands.h;
  for (std::size_t n = 0; n < shape_.lengths.size(); ++n) {
    const std::int64_t row = cu_seqlens_[n];
    kernels::Sequence sequence;
    sequence.length = shape_.lengths[n];
    sequence.k = operands.k + row * key_row;
    sequence.w = operands.w + row * key_row;
    sequence.u = operands.u + row * value_row;
    sequence.g = operands.g + row * shape_.heads;
    sequence.v_new = operands.v_new + row * value_row;
    sequence.slot = {operands.slots + static_cast<std::int64_t>(n) * state, kernels::DataType::kFloat32, head_stride};
    if (shape_.continues) sequence.initial_state = sequence.slot;
    if (shape_.all_states) {
      sequence.all_boundaries = {h, kernels::DataType::kFloat32, head_stride};
      h += (sequence.length + tokens_per_boundary - 1) / tokens_per_boundary * state;
    }
    sequences.push_back(sequence);
  }
  return sequences;
}

absl::StatusOr<PrefillWorkload::Operands> PrefillWorkload::Reach(kernels::Backend& backend, kernels::Stream& stream) {
  if (backend.device_info().unified_memory) {
    return Operands{k_.data(),    w_.data(), u_.data(), g_.data(), from_kernel_.v_new.data(), from_kernel_.h.data(),
                    slots_.data()};
  }
  if (device_.empty()) {
    const std::array<kernels::ByteRange, 4> inputs = {{{k_.data(), Count(Bytes(k_))},
                                                       {w_.data(), Count(Bytes(w_))},
                                                       {u_.data(), Count(Bytes(u_))},
                                                       {g_.data(), Count(Bytes(g_))}}};
    std::vector<std::size_t> sizes;
    for (const kernels::ByteRange& input : inputs) sizes.push_back(input.size);
    for (const std::int64_t bytes : {Bytes(from_kernel_.v_new), Bytes(from_kernel_.h), Bytes(slots_)}) {
      sizes.push_back(Count(bytes));
    }
    for (const std::size_t size : sizes) {
      absl::StatusOr<kernels::Buffer> buffer = backend.Allocate(size, kernels::MemoryKind::kDevice);
      if (!buffer.ok()) return buffer.status();
      device_.push_back(*std::move(buffer));
    }
    std::vector<kernels::ByteCopy> copies;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      copies.push_back({device_[i].data(), inputs[i].data, inputs[i].size});
    absl::Status status = backend.CopyBytes(copies, stream);
    if (status.ok()) status = backend.Synchronize(stream);
    if (!status.ok()) return status;
  }
  return Operands{static_cast<std::uint16_t*>(device_[0].data()), static_cast<std::uint16_t*>(device_[1].data()),
                  static_cast<std::uint16_t*>(device_[2].data()), static_cast<float*>(device_[3].data()),
                  static_cast<std::uint16_t*>(device_[4].data()), static_cast<float*>(device_[5].data()),
                  static_cast<float*>(device_[6].data())};
}

absl::StatusOr<absl::Duration> PrefillWorkload::RunKernel(kernels::Backend& backend, kernels::Stream& stream) {
  const absl::StatusOr<Operands> operands = Reach(backend, stream);
  if (!operands.ok()) return operands.status();
  const std::vector<kernels::Sequence> sequences = Describe(*operands);
  const kernels::RecurrenceShape shape = {
      .heads = shape_.heads,
      .key_dim = shape_.key_dim,
      .value_dim = shape_.value_dim,
      .num_householder = shape_.num_householder,
      .chunk_size = kChunk,
      .input_dtype = kernels::DataType::kBFloat16,
  };
  const absl::Time start = absl::Now();
  if (absl::Status status = backend.RunRecurrence(shape, sequences, stream); !status.ok()) return status;
  if (absl::Status status = backend.Synchronize(stream); !status.ok()) return status;
  const absl::Duration elapsed = absl::Now() - start;
  if (!device_.empty()) {
    absl::Status status = backend.CopyBytes({{from_kernel_.v_new.data(), device_[4].data(), device_[4].size()},
                                             {from_kernel_.h.data(), device_[5].data(), device_[5].size()}},
                                            stream);
    if (status.ok()) status = backend.Synchronize(stream);
    if (!status.ok()) return status;
  }
  return elapsed;
}

absl::StatusOr<absl::Duration> PrefillWorkload::RunPrefill(Session& session, const std::vector<std::int64_t>& slots,
                                                           Transport transport) {
  PrefillCall call;
  call.k = {DataType::kBFloat16, {tokens_, shape_.heads, shape_.key_dim}, called_.k};
  call.w = {DataType::kBFloat16, {tokens_, shape_.heads, shape_.key_dim}, called_.w};
  call.u = {DataType::kBFloat16, {tokens_, shape_.heads, shape_.value_dim}, called_.u};
  call.g = {DataType::kFloat32, {tokens_, shape_.heads}, called_.g};
  call.cu_seqlens = cu_seqlens_;
  call.chunk_size = kChunk;
  call.state_indices = slots;
  call.initial_state_source = shape_.continues ? InitialState::kSlot : InitialState::kZero;
  call.save_new_value = true;
  call.outputs.v_new = {DataType::kBFloat16, {tokens_, shape_.heads, shape_.value_dim}, called_.v_new};
  if (shape_.all_states) {
    call.states = States::kAll;
    call.states_dtype = DataType::kFloat32;
    call.outputs.h = {DataType::kFloat32, {boundaries_, shape_.heads, shape_.key_dim, shape_.value_dim}, called_.h};
  }
  call.transport = transport;
  const absl::Time start = absl::Now();
  const absl::StatusOr<PrefillResult> result = session.Prefill(call);
  const absl::Duration elapsed = absl::Now() - start;
  if (!result.ok()) return result.status();
  return elapsed;
}

bool PrefillWorkload::ResultsAgree() const {
  const auto same_bits = [](const auto& wanted, const void* got) {
    return std::memcmp(wanted.data(), got, Count(Bytes(wanted))) == 0;
  };
  return same_bits(from_kernel_.v_new, called_.v_new) && same_bits(from_kernel_.h, called_.h);
}

CacheGeometry PrefillWorkload::geometry() const {
  return {.slots = sequences(),
          .heads = shape_.heads,
          .key_dim = shape_.key_dim,
          .value_dim = shape_.value_dim,
          .num_householder = shape_.num_householder};
}

}  // namespace gdpcache::bench
