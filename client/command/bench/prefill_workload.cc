#include "client/command/bench/prefill_workload.h"

#include <algorithm>
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
  // So short that what a chunk of keys takes out of a state is no more than what is there.
  const float unit = 1.0F / std::sqrt(static_cast<float>(std::max(shape_.key_dim, kChunk)));
  inputs_.k = RandomBFloat16(tokens_ * shape_.heads * shape_.key_dim, unit, random);
  inputs_.w = inputs_.k;  // each token takes out of the state what stands under its own key
  inputs_.u = RandomBFloat16(tokens_ * shape_.heads * shape_.value_dim, 1.0F, random);
  inputs_.g.resize(Count(tokens_ * shape_.heads));
  for (std::int64_t sequence = 0; sequence < sequences(); ++sequence) {
    const std::int64_t first = cu_seqlens_[Count(sequence)];
    for (std::int64_t row = first; row < cu_seqlens_[Count(sequence) + 1]; ++row) {
      const float decay = -0.02F * static_cast<float>((row - first) % kChunk + 1);
      for (std::int64_t head = 0; head < shape_.heads; ++head) inputs_.g[Count(row * shape_.heads + head)] = decay;
    }
  }
  results_ = MakeResults();
  called_ = {inputs_.k.data(), inputs_.w.data(),      inputs_.u.data(),
             inputs_.g.data(), results_.v_new.data(), results_.h.data()};
}

absl::Status PrefillWorkload::Share(Session& session) {
  constexpr std::int64_t kAlignment = 256;
  const auto aligned = [](std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; };
  std::int64_t size = 0;
  for (const std::int64_t bytes : {Bytes(inputs_.k), Bytes(inputs_.w), Bytes(inputs_.u), Bytes(inputs_.g),
                                   Bytes(results_.v_new), Bytes(results_.h)}) {
    size += aligned(bytes);
  }
  absl::StatusOr<SharedMemory> memory = session.ShareMemory(size);
  if (!memory.ok()) return memory.status();
  std::byte* next = memory->data();
  const auto place = [&](const auto& values, auto*& pointer) {
    if (!values.empty()) std::memcpy(next, values.data(), Count(Bytes(values)));
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(next);
    next += aligned(Bytes(values));
  };
  place(inputs_.k, called_.k);
  place(inputs_.w, called_.w);
  place(inputs_.u, called_.u);
  place(inputs_.g, called_.g);
  place(results_.v_new, called_.v_new);
  place(results_.h, called_.h);
  shared_ = *std::move(memory);
  return absl::OkStatus();
}

PrefillWorkload::Results PrefillWorkload::MakeResults() const {
  return {std::vector<std::uint16_t>(Count(tokens_ * shape_.heads * shape_.value_dim)),
          std::vector<float>(Count(boundaries_ * shape_.heads * shape_.key_dim * shape_.value_dim))};
}

std::int64_t PrefillWorkload::bytes_in() const {
  return Bytes(inputs_.k) + Bytes(inputs_.w) + Bytes(inputs_.u) + Bytes(inputs_.g);
}

std::int64_t PrefillWorkload::bytes_out() const { return Bytes(results_.v_new) + Bytes(results_.h); }

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
  timing_ = result->timing;
  return elapsed;
}

CacheGeometry PrefillWorkload::geometry() const {
  return {.slots = sequences(),
          .heads = shape_.heads,
          .key_dim = shape_.key_dim,
          .value_dim = shape_.value_dim,
          .num_householder = shape_.num_householder};
}

}  // namespace gdpcache::bench
