#include "server/rpc/prefill_codec.h"

#include "absl/strings/str_cat.h"
#include "server/cache/errors.h"
#include "server/rpc/snapshot_codec.h"

namespace gdpcache::rpc {
namespace {

using cache::InvalidField;
using engine::ElementType;

constexpr std::size_t kMaxRequestId = 128;

absl::StatusOr<ElementType> DecodeDataType(absl::string_view field, v1::DataType type) {
  switch (type) {
    case v1::DATA_TYPE_UNSPECIFIED:
      return ElementType::kUnspecified;
    case v1::DATA_TYPE_FLOAT32:
      return ElementType::kFloat32;
    case v1::DATA_TYPE_BFLOAT16:
      return ElementType::kBFloat16;
    case v1::DATA_TYPE_FLOAT16:
      return ElementType::kFloat16;
    case v1::DATA_TYPE_UINT8:
      return ElementType::kUint8;
    default:
      return InvalidField(field, absl::StrCat("is ", static_cast<int>(type), "; there is no such type"));
  }
}

absl::StatusOr<bool> IsNatural(v1::DecayBase base) {
  switch (base) {
    case v1::DECAY_BASE_UNSPECIFIED:
    case v1::DECAY_BASE_LOG2:
      return false;
    case v1::DECAY_BASE_NATURAL:
      return true;
    default:
      return InvalidField("g_base", absl::StrCat("is ", static_cast<int>(base), "; there is no such base"));
  }
}

absl::StatusOr<kernels::Precision> DecodePrecision(v1::Precision precision) {
  switch (precision) {
    case v1::PRECISION_DEFAULT:
      return kernels::Precision::kDefault;
    case v1::PRECISION_HIGH:
      return kernels::Precision::kHigh;
    default:
      return InvalidField("precision",
                          absl::StrCat("is ", static_cast<int>(precision), "; there is no such precision"));
  }
}

absl::StatusOr<engine::InitialStateSource> DecodeSource(v1::InitialStateSource source) {
  switch (source) {
    case v1::INITIAL_STATE_SOURCE_UNSPECIFIED:
    case v1::INITIAL_STATE_SOURCE_SLOT:
      return engine::InitialStateSource::kSlot;
    case v1::INITIAL_STATE_SOURCE_ZERO:
      return engine::InitialStateSource::kZero;
    case v1::INITIAL_STATE_SOURCE_TENSOR:
      return engine::InitialStateSource::kTensor;
    default:
      return InvalidField("initial_state_source",
                          absl::StrCat("is ", static_cast<int>(source), "; there is no such source"));
  }
}

absl::StatusOr<engine::StateSelectionMode> DecodeMode(v1::StateSelection::Mode mode) {
  switch (mode) {
    case v1::StateSelection::MODE_UNSPECIFIED:
    case v1::StateSelection::MODE_NONE:
      return engine::StateSelectionMode::kNone;
    case v1::StateSelection::MODE_ALL:
      return engine::StateSelectionMode::kAll;
    case v1::StateSelection::MODE_SELECTED:
      return engine::StateSelectionMode::kSelected;
    default:
      return InvalidField("states.mode", absl::StrCat("is ", static_cast<int>(mode), "; there is no such mode"));
  }
}

absl::Status NotForStreams(absl::string_view field) {
  return InvalidField(field, "is given; only a unary Prefill takes it");
}

/// Everything but where the bytes are when they are in shared memory.
absl::StatusOr<engine::TensorArgument> DecodeHeader(absl::string_view field, bool present, const v1::Tensor& tensor) {
  const absl::StatusOr<ElementType> dtype = DecodeDataType(absl::StrCat(field, ".dtype"), tensor.dtype());
  if (!dtype.ok()) return dtype.status();
  engine::TensorArgument argument;
  argument.present = present;
  argument.dtype = *dtype;
  argument.shape = tensor.shape();
  if (tensor.data_case() == v1::Tensor::kInline) {
    argument.data = tensor.inline_().data();
    argument.data_bytes = static_cast<std::int64_t>(tensor.inline_().size());
  }
  return argument;
}

template <typename T>
absl::Status Assign(absl::StatusOr<T> value, T& to) {
  if (!value.ok()) return value.status();
  to = *std::move(value);
  return absl::OkStatus();
}

void DescribeStates(std::int64_t count, const kernels::RecurrenceShape& shape, kernels::DataType dtype,
                    v1::Tensor& tensor) {
  tensor.set_dtype(EncodeDataType(engine::ElementTypeOf(dtype)));
  for (const std::int64_t dimension : {count, shape.heads, shape.key_dim, shape.value_dim}) {
    tensor.add_shape(dimension);
  }
}

}  // namespace

absl::StatusOr<engine::TensorArgument> DecodeTensor(absl::string_view field, bool present, const v1::Tensor& tensor) {
  if (tensor.data_case() == v1::Tensor::kSharedMemory) return NotForStreams(absl::StrCat(field, ".shared_memory"));
  return DecodeHeader(field, present, tensor);
}

v1::DataType EncodeDataType(ElementType type) {
  switch (type) {
    case ElementType::kUnspecified:
      return v1::DATA_TYPE_UNSPECIFIED;
    case ElementType::kFloat32:
      return v1::DATA_TYPE_FLOAT32;
    case ElementType::kBFloat16:
      return v1::DATA_TYPE_BFLOAT16;
    case ElementType::kFloat16:
      return v1::DATA_TYPE_FLOAT16;
    case ElementType::kUint8:
      return v1::DATA_TYPE_UINT8;
  }
  return v1::DATA_TYPE_UNSPECIFIED;
}

absl::StatusOr<engine::PrefillRequest> DecodePrefill(const v1::PrefillRequest& request,
                                                     engine::TensorTransport transport) {
  engine::PrefillRequest decoded;
  decoded.transport = transport;
  decoded.layer = request.layer();
  const bool streamed = transport == engine::TensorTransport::kStream;
  const auto decode = streamed ? DecodeTensor : DecodeHeader;
  absl::Status status = Assign(decode("k", request.has_k(), request.k()), decoded.k);
  status.Update(Assign(decode("w", request.has_w(), request.w()), decoded.w));
  status.Update(Assign(decode("u", request.has_u(), request.u()), decoded.u));
  status.Update(Assign(decode("g", request.has_g(), request.g()), decoded.g));
  status.Update(Assign(IsNatural(request.g_base()), decoded.natural_decay));
  decoded.cu_seqlens = request.cu_seqlens();
  decoded.batch = request.batch();
  decoded.chunk_size = request.chunk_size();
  decoded.num_householder = request.num_householder();
  decoded.chunk_offsets = request.chunk_offsets();
  decoded.chunk_indices = request.chunk_indices();
  decoded.state_indices = request.state_indices();
  status.Update(Assign(DecodeSource(request.initial_state_source()), decoded.initial_state_source));
  status.Update(
      Assign(decode("initial_state", request.has_initial_state(), request.initial_state()), decoded.initial_state));
  decoded.save_new_value = request.save_new_value();
  decoded.output_final_state = request.output_final_state();
  status.Update(Assign(DecodeMode(request.states().mode()), decoded.states));
  decoded.selected.reserve(request.states().selected_size());
  for (const v1::BoundaryRef& boundary : request.states().selected()) {
    decoded.selected.push_back({boundary.sequence(), boundary.boundary()});
  }
  status.Update(Assign(DecodeDataType("states_dtype", request.states_dtype()), decoded.states_dtype));
  decoded.expected_positions = request.expected_positions();
  decoded.check_finite = request.check_finite();
  status.Update(Assign(decode("auxiliary_state", request.has_auxiliary_state(), request.auxiliary_state()),
                       decoded.auxiliary_state));
  status.Update(Assign(DecodePrecision(request.precision()), decoded.precision));
  if (streamed && request.has_outputs()) status.Update(NotForStreams("outputs"));
  if (streamed && !request.ready_event().empty()) status.Update(NotForStreams("ready_event"));
  if (streamed && !request.done_event().empty()) status.Update(NotForStreams("done_event"));
  if (streamed && request.has_done_flag()) status.Update(NotForStreams("done_flag"));
  decoded.done_flag.value = request.done_flag().value();
  decoded.snapshots.reserve(static_cast<std::size_t>(request.snapshots_size()));
  for (const v1::SnapshotDirective& directive : request.snapshots()) {
    decoded.snapshots.push_back({directive.sequence(), directive.boundary(), directive.key(), directive.auxiliary()});
  }
  if (request.request_id().size() > kMaxRequestId) {
    status.Update(InvalidField(
        "request_id", absl::StrCat("has ", request.request_id().size(), " bytes; it may have ", kMaxRequestId)));
  }
  if (!status.ok()) return status;
  return decoded;
}

void DescribeResults(const v1::PrefillRequest& request, const engine::PrefillPlan& plan,
                     v1::PrefillResponse& response) {
  if (plan.states != engine::StateSelectionMode::kNone) {
    DescribeStates(plan.h_states, plan.shape, plan.states_dtype, *response.mutable_h());
  }
  if (plan.save_new_value) {
    response.mutable_v_new()->set_dtype(request.u().dtype());
    *response.mutable_v_new()->mutable_shape() = request.u().shape();
  }
  if (plan.output_final_state) {
    DescribeStates(plan.sequence_count(), plan.shape, kernels::DataType::kFloat32, *response.mutable_final_state());
  }
  response.mutable_chunk_offsets()->Add(plan.chunk_offsets.begin(), plan.chunk_offsets.end());
}

void EncodeResult(const engine::PrefillResult& result, v1::PrefillResponse& response) {
  response.mutable_positions()->Add(result.positions.begin(), result.positions.end());
  for (const cache::SnapshotOutcome& outcome : result.snapshots) *response.add_snapshots() = EncodeOutcome(outcome);
  v1::PrefillTiming& timing = *response.mutable_timing();
  timing.set_queue_us(result.timing.queue_us);
  timing.set_stage_in_us(result.timing.stage_in_us);
  timing.set_compute_us(result.timing.compute_us);
  timing.set_stage_out_us(result.timing.stage_out_us);
  timing.set_total_us(result.timing.total_us);
}

}  // namespace gdpcache::rpc
