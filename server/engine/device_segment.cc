#include "server/engine/device_segment.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gdpcache::engine {

DeviceSegment::~DeviceSegment() {
  // An error has nowhere to go: after a refused wait the device is lost, and its memory with it.
  if (backend_ == nullptr) return;
  (end_ == nullptr ? backend_->Synchronize(*stream_) : backend_->Wait(*end_)).IgnoreError();
}

absl::Status DeviceSegment::Download() {
  if (backend_ == nullptr) return absl::OkStatus();
  absl::Status status;
  if (copies_ == Copies::kInOrder) {
    if (!results_.empty()) status = backend_->CopyBytes(results_, *stream_);
  } else {
    if (!results_.empty()) status = backend_->CopyBytesAside(results_, *stream_);
    if (status.ok()) {
      absl::StatusOr<std::unique_ptr<kernels::Event>> end = backend_->Record(*stream_);
      if (end.ok()) {
        end_ = *std::move(end);
      } else {
        status = end.status();
      }
    }
  }
  if (status.ok()) return status;
  return absl::UnavailableError(absl::StrCat("results cannot leave the device: ", status.message()));
}

absl::Status DeviceSegment::Wait() { return end_ == nullptr ? absl::OkStatus() : backend_->Wait(*end_); }

absl::StatusOr<DeviceSegment> DeviceSegment::Upload(const Environment& environment, StagingAccount* account,
                                                    const PrefillPlan& plan, const Segment& segment,
                                                    const SegmentMemory& host, Copies copies,
                                                    std::vector<kernels::ByteCopy> more, kernels::Stream& stream) {
  if (environment.device_staging == nullptr) return DeviceSegment(nullptr, stream, host, copies);
  DeviceSegment device(&environment.backend, stream, host, copies);

  std::vector<kernels::ByteCopy> inputs = std::move(more);
  const auto acquire = [&](std::int64_t bytes) -> absl::StatusOr<std::byte*> {
    absl::StatusOr<StagingBuffer> buffer = account->Acquire(bytes);
    if (!buffer.ok()) return buffer.status();
    device.buffers_.push_back(*std::move(buffer));
    return device.buffers_.back().data();
  };
  const auto upload = [&](auto*& pointer, bool& on_device, std::int64_t bytes) -> absl::Status {
    if (pointer == nullptr || on_device || bytes == 0) return absl::OkStatus();
    on_device = true;
    const absl::StatusOr<std::byte*> place = acquire(bytes);
    if (!place.ok()) return place.status();
    inputs.push_back({*place, pointer, static_cast<std::size_t>(bytes)});
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(*place);
    return absl::OkStatus();
  };
  const auto reserve = [&](void*& pointer, bool& on_device, std::int64_t bytes) -> absl::Status {
    if (pointer == nullptr || on_device || bytes == 0) return absl::OkStatus();
    on_device = true;
    const absl::StatusOr<std::byte*> place = acquire(bytes);
    if (!place.ok()) return place.status();
    device.results_.push_back({pointer, *place, static_cast<std::size_t>(bytes)});
    pointer = *place;
    return absl::OkStatus();
  };

  // Rows behind the last sequence are not computed, and nobody wants what a device buffer holds there.
  const std::int64_t rows = std::max<std::int64_t>(0, std::min(segment.row_end, plan.used_rows()) - segment.row_begin);
  SegmentMemory& memory = device.memory_;
  absl::Status status = upload(memory.k, memory.on_device.k, rows * KeyRowBytes(plan));
  if (status.ok()) status = upload(memory.w, memory.on_device.w, rows * KeyRowBytes(plan));
  if (status.ok()) status = upload(memory.u, memory.on_device.u, rows * ValueRowBytes(plan));
  if (status.ok()) status = upload(memory.g, memory.on_device.g, rows * plan.shape.heads * std::int64_t{sizeof(float)});
  if (status.ok()) {
    status = upload(memory.initial_state, memory.on_device.initial_state,
                    (segment.sequence_end - segment.sequence_begin) * StateBytes(plan, kernels::DataType::kFloat32));
  }
  if (status.ok()) status = reserve(memory.v_new, memory.on_device.v_new, rows * ValueRowBytes(plan));
  if (status.ok())
    status =
        reserve(memory.h, memory.on_device.h, (segment.h_end - segment.h_begin) * StateBytes(plan, plan.states_dtype));
  if (status.ok()) {
    status = reserve(memory.final_state, memory.on_device.final_state,
                     (segment.final_end - segment.final_begin) * StateBytes(plan, kernels::DataType::kFloat32));
  }
  if (status.ok() && !inputs.empty()) {
    status = copies == Copies::kInOrder ? environment.backend.CopyBytes(inputs, stream)
                                        : environment.backend.CopyBytesAhead(inputs, stream);
  }
  if (!status.ok()) return status;
  return device;
}

absl::StatusOr<std::shared_ptr<StagingAccount>> OpenDeviceAccount(const Environment& environment,
                                                                  const CallContext& context, int segments,
                                                                  std::int64_t segment_bytes,
                                                                  std::int64_t state_bytes) {
  if (environment.device_staging == nullptr) return nullptr;
  // The tensors share the segment, each rounded up to a block: at most a quarter more, and a small block each.
  constexpr std::int64_t kTensors = 8;
  const std::int64_t segment = segment_bytes + segment_bytes / 4 + kTensors * StagingPool::BlockSize(1);
  return environment.device_staging->Open(segments * segment + StagingPool::BlockSize(state_bytes),
                                          DeviceStagingShare(context));
}

}  // namespace gdpcache::engine
