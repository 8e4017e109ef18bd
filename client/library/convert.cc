#include "client/library/convert.h"

#include "absl/time/time.h"
#include "client/library/snapshots.h"
#include "google/protobuf/repeated_field.h"

namespace gdpcache::client {
namespace {

v1::DecayBase ToProto(DecayBase base) {
  return base == DecayBase::kNatural ? v1::DECAY_BASE_NATURAL : v1::DECAY_BASE_LOG2;
}

v1::Precision ToProto(Precision precision) {
  return precision == Precision::kHigh ? v1::PRECISION_HIGH : v1::PRECISION_DEFAULT;
}

v1::InitialStateSource ToProto(InitialState source) {
  switch (source) {
    case InitialState::kSlot:
      return v1::INITIAL_STATE_SOURCE_SLOT;
    case InitialState::kZero:
      return v1::INITIAL_STATE_SOURCE_ZERO;
    case InitialState::kTensor:
      return v1::INITIAL_STATE_SOURCE_TENSOR;
  }
  return v1::INITIAL_STATE_SOURCE_UNSPECIFIED;
}

v1::StateSelection::Mode ToProto(States states) {
  switch (states) {
    case States::kNone:
      return v1::StateSelection::MODE_NONE;
    case States::kAll:
      return v1::StateSelection::MODE_ALL;
    case States::kSelected:
      return v1::StateSelection::MODE_SELECTED;
  }
  return v1::StateSelection::MODE_UNSPECIFIED;
}

void ToProto(const ConstTensor& tensor, v1::Tensor* message) { client::ToProto(tensor.dtype, tensor.shape, message); }

void ToProto(const IndexSpan& values, google::protobuf::RepeatedField<std::int64_t>* field) {
  field->Reserve(static_cast<int>(values.size()));
  for (std::size_t i = 0; i < values.size(); ++i) field->Add(values[i]);
}

DataType FromProto(v1::DataType dtype) {
  switch (dtype) {
    case v1::DATA_TYPE_BFLOAT16:
      return DataType::kBFloat16;
    case v1::DATA_TYPE_FLOAT16:
      return DataType::kFloat16;
    case v1::DATA_TYPE_UINT8:
      return DataType::kUInt8;
    default:
      return DataType::kFloat32;  // the contract's default
  }
}

}  // namespace

v1::DataType ToProto(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat32:
      return v1::DATA_TYPE_FLOAT32;
    case DataType::kBFloat16:
      return v1::DATA_TYPE_BFLOAT16;
    case DataType::kFloat16:
      return v1::DATA_TYPE_FLOAT16;
    case DataType::kUInt8:
      return v1::DATA_TYPE_UINT8;
  }
  return v1::DATA_TYPE_UNSPECIFIED;
}

void ToProto(const CacheGeometry& geometry, v1::CacheGeometry* message) {
  message->set_layers(geometry.layers);
  message->set_slots(geometry.slots);
  message->set_heads(geometry.heads);
  message->set_key_dim(geometry.key_dim);
  message->set_value_dim(geometry.value_dim);
  message->set_num_householder(geometry.num_householder);
  message->set_state_dtype(ToProto(geometry.state_dtype));
  message->set_auxiliary_bytes(geometry.auxiliary_bytes);
}

void ToProto(DataType dtype, absl::Span<const std::int64_t> shape, v1::Tensor* message) {
  message->set_dtype(ToProto(dtype));
  message->mutable_shape()->Assign(shape.begin(), shape.end());
}

void ToProto(const PrefillCall& call, v1::PrefillRequest* message) {
  message->set_layer(call.layer);
  ToProto(call.k, message->mutable_k());
  ToProto(call.w, message->mutable_w());
  ToProto(call.u, message->mutable_u());
  if (call.g) ToProto(*call.g, message->mutable_g());
  message->set_g_base(ToProto(call.g_base));
  ToProto(call.cu_seqlens, message->mutable_cu_seqlens());
  message->set_batch(call.batch);
  message->set_chunk_size(call.chunk_size);
  message->set_num_householder(call.num_householder);
  ToProto(call.chunk_offsets, message->mutable_chunk_offsets());
  ToProto(call.chunk_indices, message->mutable_chunk_indices());
  ToProto(call.state_indices, message->mutable_state_indices());
  message->set_initial_state_source(ToProto(call.initial_state_source));
  if (call.initial_state) ToProto(*call.initial_state, message->mutable_initial_state());
  message->set_save_new_value(call.save_new_value);
  message->set_output_final_state(call.output_final_state);
  message->mutable_states()->set_mode(ToProto(call.states));
  for (const BoundaryRef& boundary : call.selected) {
    v1::BoundaryRef* selected = message->mutable_states()->add_selected();
    selected->set_sequence(boundary.sequence);
    selected->set_boundary(boundary.boundary);
  }
  if (call.states_dtype) message->set_states_dtype(ToProto(*call.states_dtype));
  ToProto(call.expected_positions, message->mutable_expected_positions());
  message->set_check_finite(call.check_finite);
  if (call.auxiliary_state) ToProto(*call.auxiliary_state, message->mutable_auxiliary_state());
  for (const SnapshotDirective& directive : call.snapshots) ToProto(directive, message->add_snapshots());
  message->set_request_id(call.request_id);
  message->set_precision(ToProto(call.precision));
}

CacheGeometry FromProto(const v1::CacheGeometry& message) {
  CacheGeometry geometry;
  geometry.layers = message.layers();
  geometry.slots = message.slots();
  geometry.heads = message.heads();
  geometry.key_dim = message.key_dim();
  geometry.value_dim = message.value_dim();
  geometry.num_householder = message.num_householder() > 0 ? message.num_householder() : 1;
  geometry.state_dtype = FromProto(message.state_dtype());
  geometry.auxiliary_bytes = message.auxiliary_bytes();
  return geometry;
}

CacheInfo FromProto(const v1::Cache& message) {
  CacheInfo cache;
  cache.name = message.name();
  cache.geometry = FromProto(message.geometry());
  cache.fingerprint = message.fingerprint();
  cache.ephemeral = message.ephemeral();
  cache.free_slots = message.free_slots();
  cache.held_slots = message.held_slots();
  cache.sessions = message.sessions();
  cache.memory_bytes = message.memory_bytes();
  return cache;
}

ServerInfo FromProto(const v1::GetServerInfoResponse& message) {
  ServerInfo info;
  info.version = message.version();
  info.backend = message.backend();
  info.device = message.device();
  info.device_memory_bytes = message.device_memory_bytes();
  info.state_memory_used_bytes = message.state_memory_used_bytes();
  info.staging_used_bytes = message.staging_used_bytes();
  info.limits.max_message_bytes = message.limits().max_message_bytes();
  info.limits.state_memory_bytes = message.limits().state_memory_bytes();
  info.limits.staging_bytes = message.limits().staging_bytes();
  info.limits.max_caches = message.limits().max_caches();
  info.limits.max_sessions = message.limits().max_sessions();
  info.limits.max_sequences_per_call = message.limits().max_sequences_per_call();
  info.limits.max_session_ttl = absl::Milliseconds(message.limits().max_session_ttl_ms());
  info.limits.shared_memory_bytes = message.limits().shared_memory_bytes();
  info.limits.max_regions = message.limits().max_regions();
  info.limits.max_calls = message.limits().max_calls();
  info.limits.max_queue_wait = absl::Milliseconds(message.limits().max_queue_wait_ms());
  info.limits.max_connection_calls = message.limits().max_connection_calls();
  info.limits.max_tenant_sessions = message.limits().max_tenant_sessions();
  info.limits.max_tenant_slots = message.limits().max_tenant_slots();
  info.addresses.assign(message.addresses().begin(), message.addresses().end());
  info.transports.assign(message.transports().begin(), message.transports().end());
  for (const v1::Cache& cache : message.caches()) info.caches.push_back(FromProto(cache));
  for (const v1::SnapshotTierInfo& tier : message.snapshot_tiers()) {
    info.snapshot_tiers.push_back({FromProto(tier.tier()), tier.capacity_bytes(), tier.used_bytes(), tier.snapshots()});
  }
  info.uptime = absl::Milliseconds(message.uptime_ms());
  info.build.commit = message.build().commit();
  info.build.compiler = message.build().compiler();
  info.build.libraries.assign(message.build().libraries().begin(), message.build().libraries().end());
  info.expected_wait = absl::Milliseconds(message.expected_wait_ms());
  return info;
}

SlotList FromProto(const v1::ListSlotsResponse& message) {
  SlotList list;
  list.free_slots = message.free_slots();
  for (const v1::SlotInfo& slot : message.slots()) {
    list.slots.push_back({slot.slot(), slot.client_name(), slot.min_position(), slot.max_position(),
                          absl::Milliseconds(slot.session_expires_in_ms())});
  }
  return list;
}

PrefillTiming FromProto(const v1::PrefillTiming& message) {
  return {absl::Microseconds(message.queue_us()), absl::Microseconds(message.stage_in_us()),
          absl::Microseconds(message.compute_us()), absl::Microseconds(message.stage_out_us()),
          absl::Microseconds(message.total_us())};
}

}  // namespace gdpcache::client
