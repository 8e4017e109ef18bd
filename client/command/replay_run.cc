#include "client/command/replay_run.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "client/command/shared_tensors.h"
#include "client/command/temporary_cache.h"
#include "proto/safetensors/safetensors.h"

namespace gdpcache::command {
namespace {

CacheGeometry Geometry(const RecordedBatch& batch) {
  CacheGeometry geometry;
  geometry.slots = batch.state_before ? batch.state_before->shape[0] : 1;
  geometry.heads = batch.heads;
  geometry.key_dim = batch.key_dim;
  geometry.value_dim = batch.value_dim;
  geometry.num_householder = batch.num_householder;
  geometry.state_dtype = batch.state_before ? batch.state_before->dtype : DataType::kFloat32;
  return geometry;
}

/// The recorded call on these slots, which stand for 0 .. S-1 of the file.
PrefillCall RecordedCall(const RecordedBatch& batch, absl::Span<const std::int64_t> state_indices,
                         Transport transport) {
  PrefillCall call;
  call.k = batch.k;
  call.w = batch.w;
  call.u = batch.u;
  call.g = batch.g;
  call.cu_seqlens = batch.cu_seqlens;
  call.batch = batch.batch;
  call.chunk_size = batch.chunk_size;
  call.state_indices = state_indices;
  call.initial_state_source = batch.initial_state_source;
  call.initial_state = batch.initial_state;
  call.save_new_value = batch.save_new_value;
  call.output_final_state = batch.output_final_state;
  call.states = States::kAll;
  call.states_dtype = batch.states_dtype;
  call.request_id = "replay";
  call.transport = transport;
  return call;
}

absl::StatusOr<ReplayResults> RunInCache(TemporaryCache& cache, const RecordedBatch& batch, Transport transport) {
  absl::StatusOr<Session> session = cache.OpenSession({.client_name = "gdpcache replay"});
  if (!session.ok()) return session.status();
  std::vector<std::int64_t> slots;
  if (batch.state_before) {
    absl::StatusOr<std::vector<std::int64_t>> acquired = session->AcquireSlots(batch.state_before->shape[0]);
    if (!acquired.ok()) return acquired.status();
    slots = *std::move(acquired);
    SlotUpdate update;
    update.slots = slots;
    update.state = *batch.state_before;
    update.state.shape.insert(update.state.shape.begin() + 1, 1);  // [S, layers, H, K, V]
    const absl::Status written = session->WriteSlots(update);
    if (!written.ok()) return written;
  }
  std::vector<std::int64_t> state_indices;
  for (const std::int64_t slot : batch.state_indices) {
    state_indices.push_back(slot < 0 ? slot : slots[static_cast<std::size_t>(slot)]);
  }
  ReplayResults results;
  PrefillCall call = RecordedCall(batch, state_indices, transport);
  std::optional<SharedTensors> shared;
  if (transport == Transport::kSharedMemory) {
    absl::StatusOr<SharedTensors> placed = SharedTensors::Place(*session, batch, call);
    if (!placed.ok()) return placed.status();
    shared = *std::move(placed);
  }
  absl::StatusOr<PrefillResult> prefill = session->Prefill(call);
  if (!prefill.ok()) return prefill.status();
  results.prefill = *std::move(prefill);
  if (shared) {
    const absl::Status taken = shared->TakeResults(results.prefill);
    if (!taken.ok()) return taken;
  }
  if (batch.state_before) {
    absl::StatusOr<SlotContents> contents = session->ReadSlots(slots);
    if (!contents.ok()) return contents.status();
    results.state = std::move(contents->state);
  }
  const absl::Status closed = session->Close();
  if (!closed.ok()) return closed;
  return results;
}

}  // namespace

absl::StatusOr<ReplayResults> RunRecordedBatch(const Client& client, const RecordedBatch& batch, Transport transport) {
  absl::StatusOr<TemporaryCache> cache = TemporaryCache::Create(client, "replay", Geometry(batch));
  if (!cache.ok()) return cache.status();
  return RunInCache(*cache, batch, transport);
}

absl::Status WriteResults(const std::string& path, const RecordedBatch& batch, const ReplayResults& results) {
  std::vector<TensorToWrite> tensors;
  const auto add = [&tensors](const char* name, const OwnedTensor& tensor, std::vector<std::int64_t> shape) {
    if (tensor.data() == nullptr) return;
    tensors.push_back({name,
                       SafetensorsDtype(tensor.dtype()),
                       std::move(shape),
                       {tensor.data(), static_cast<std::size_t>(tensor.byte_size())}});
  };
  add("h", results.prefill.h, results.prefill.h.shape());
  add("v_new", results.prefill.v_new, results.prefill.v_new.shape());
  add("state", results.state, batch.state_before ? batch.state_before->shape : std::vector<std::int64_t>());
  add("final_state", results.prefill.final_state, results.prefill.final_state.shape());
  // Wider elements first keep every tensor aligned.
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorToWrite& a, const TensorToWrite& b) {
    return SafetensorsElementSize(a.dtype) > SafetensorsElementSize(b.dtype);
  });
  return WriteSafetensors(path, tensors, {{"name", batch.name}});
}

}  // namespace gdpcache::command
