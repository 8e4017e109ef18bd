#include "kernels/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/cuda_memory_sharing.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/descriptors.h"
#include "kernels/cuda/hopper_maps.h"
#include "kernels/cuda/memory_kernels.h"
#include "kernels/cuda/recurrence_generic.h"
#include "kernels/cuda/recurrence_hopper.h"
#include "kernels/cuda/tensor_map.h"

namespace gdpcache::kernels {
namespace cuda {
namespace {

StateReference Reference(const ConstStateView& view) {
  return {const_cast<void*>(view.data), view.head_stride, view.dtype};
}

LaunchShape ToLaunchShape(const RecurrenceShape& shape) {
  return {shape.heads,
          static_cast<std::int32_t>(shape.key_dim),
          static_cast<std::int32_t>(shape.value_dim),
          shape.num_householder,
          static_cast<std::int32_t>(shape.chunk_size),
          shape.input_dtype,
          shape.precision == Precision::kHigh};
}

SequenceDescriptor Describe(const Sequence& sequence, std::int32_t first_boundary) {
  SequenceDescriptor descriptor;
  descriptor.length = sequence.length;
  descriptor.k = sequence.k;
  descriptor.w = sequence.w;
  descriptor.u = sequence.u;
  descriptor.g = sequence.g;
  descriptor.v_new = sequence.v_new;
  descriptor.initial_state = Reference(sequence.initial_state);
  descriptor.slot = Reference(sequence.slot);
  descriptor.final_state = Reference(sequence.final_state);
  descriptor.all_boundaries = Reference(sequence.all_boundaries);
  descriptor.first_boundary = first_boundary;
  descriptor.boundary_count = static_cast<std::int32_t>(sequence.boundaries.size());
  // An update in place of no tokens leaves the slot as it is, bit for bit.
  const StateReference& initial = descriptor.initial_state;
  StateReference& slot = descriptor.slot;
  if (sequence.length == 0 && slot.data == initial.data && slot.dtype == initial.dtype &&
      slot.head_stride == initial.head_stride) {
    slot.data = nullptr;
  }
  return descriptor;
}

bool HasWork(const SequenceDescriptor& sequence) {
  return sequence.length > 0 || sequence.slot.data != nullptr || sequence.final_state.data != nullptr;
}

/// The descriptors of a launch, before they go to the device.
struct Descriptors {
  std::vector<SequenceDescriptor> sequences;
  std::vector<BoundaryDescriptor> boundaries;

  explicit Descriptors(const std::vector<const Sequence*>& described) {
    sequences.reserve(described.size());
    for (const Sequence* sequence : described) {
      sequences.push_back(Describe(*sequence, static_cast<std::int32_t>(boundaries.size())));
      for (const BoundaryStore& store : sequence->boundaries) {
        boundaries.push_back({store.boundary, Reference(store.destination)});
      }
    }
  }

  // Where they lie in a launch's block: sequences first.
  std::size_t boundaries_offset() const { return sequences.size() * sizeof(SequenceDescriptor); }
  std::size_t size() const { return boundaries_offset() + boundaries.size() * sizeof(BoundaryDescriptor); }

  void CopyTo(std::byte* block) const {
    std::copy(sequences.begin(), sequences.end(), reinterpret_cast<SequenceDescriptor*>(block));
    std::copy(boundaries.begin(), boundaries.end(), reinterpret_cast<BoundaryDescriptor*>(block + boundaries_offset()));
  }
};

DeviceLimits LimitsOf(const cudaDeviceProp& properties) {
  return {properties.multiProcessorCount, static_cast<int>(properties.sharedMemPerBlockOptin),
          static_cast<int>(properties.sharedMemPerMultiprocessor)};
}

bool AlignedForRuns(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % kRunAlignment == 0; }

/// Whether the copy is one of a run of bytes at addresses that CopyRuns takes.
bool IsRun(const RecurrenceShape& shape, const StateCopy& copy, DataType dtype) {
  const std::int64_t head_elements = shape.key_dim * shape.value_dim;
  const auto dense = [&](const ConstStateView& view) {
    return view.data == nullptr || ((shape.heads == 1 || view.head_stride == head_elements) && view.dtype == dtype &&
                                    AlignedForRuns(view.data));
  };
  return shape.heads * head_elements * ByteSize(dtype) % kRunAlignment == 0 && dense(copy.destination) &&
         dense(copy.source);
}

absl::Status QueueCopies(absl::Span<const ByteCopy> copies, cudaStream_t queue) {
  for (const ByteCopy& copy : copies) {
    if (copy.size == 0) continue;
    GDPCACHE_RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(copy.destination, copy.source, copy.size, cudaMemcpyDefault, queue));
  }
  return absl::OkStatus();
}

/// Uploads what kernels read and calls `launch` with its place on the device.
template <typename Descriptor, typename Launch>
absl::Status LaunchUploaded(absl::Span<const Descriptor> descriptors, Launch launch, CudaStream& stream) {
  const std::size_t size = descriptors.size() * sizeof(Descriptor);
  absl::StatusOr<CudaStream::Scratch*> scratch = stream.AcquireScratch(size);
  if (!scratch.ok()) return scratch.status();
  std::copy(descriptors.begin(), descriptors.end(), reinterpret_cast<Descriptor*>((*scratch)->host()));
  if (absl::Status status = stream.Upload(**scratch, size); !status.ok()) return status;
  const absl::Status launched =
      ToStatus(launch(reinterpret_cast<const Descriptor*>((*scratch)->device())), "launching a copy");
  const absl::Status released = stream.Release(*scratch);
  return launched.ok() ? released : launched;
}

/// The runs as a launch takes them along; false where they are too many or too far apart.
bool Pack(absl::Span<const ByteRun> runs, InlineRuns& packed) {
  if (runs.size() > InlineRuns::kCapacity) return false;
  const auto address = [](const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); };
  const ByteRun* first = &runs[0];
  const ByteRun* first_source = nullptr;
  for (const ByteRun& run : runs) {
    if (address(run.destination) < address(first->destination)) first = &run;
    if (run.source != nullptr && (first_source == nullptr || address(run.source) < address(first_source->source))) {
      first_source = &run;
    }
  }
  packed.destination = static_cast<std::byte*>(first->destination);
  packed.source = first_source == nullptr ? nullptr : static_cast<const std::byte*>(first_source->source);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::uintptr_t destination = (address(runs[i].destination) - address(packed.destination)) / kRunAlignment;
    const std::uintptr_t source = runs[i].source == nullptr
                                      ? InlineRuns::kNoSource
                                      : (address(runs[i].source) - address(packed.source)) / kRunAlignment;
    if (destination > InlineRuns::kNoSource || (runs[i].source != nullptr && source >= InlineRuns::kNoSource)) {
      return false;
    }
    packed.destinations[i] = static_cast<std::uint32_t>(destination);
    packed.sources[i] = static_cast<std::uint32_t>(source);
  }
  return true;
}

absl::Status LaunchPacked(const InlineRuns& packed, std::int64_t count, std::int64_t bytes, const CudaStream& stream) {
  return ToStatus(LaunchCopyRuns(nullptr, packed, count, bytes, stream.get()), "launching a copy");
}

absl::Status QueueRuns(absl::Span<const ByteRun> runs, std::int64_t bytes, CudaStream& stream) {
  const auto count = static_cast<std::int64_t>(runs.size());
  InlineRuns packed;
  if (Pack(runs, packed)) return LaunchPacked(packed, count, bytes, stream);
  const auto launch = [&](const ByteRun* uploaded) { return LaunchCopyRuns(uploaded, {}, count, bytes, stream.get()); };
  return LaunchUploaded(runs, launch, stream);
}

/// Copies, and clears where there is no source, within the device's memory: one launch for all of a size. What can be
/// refused has been granted once Prepare returns, so that a call queues all of its work or none.
class DeviceCopies {
 public:
  static absl::StatusOr<DeviceCopies> Prepare(std::vector<ByteCopy> copies, CudaStream& stream) {
    std::stable_sort(copies.begin(), copies.end(),
                     [](const ByteCopy& a, const ByteCopy& b) { return a.size < b.size; });
    DeviceCopies prepared;
    for (const ByteCopy& copy : copies) {
      if (prepared.groups_.empty() || prepared.groups_.back().bytes != static_cast<std::int64_t>(copy.size)) {
        prepared.groups_.push_back({prepared.runs_.size(), 0, static_cast<std::int64_t>(copy.size)});
      }
      prepared.runs_.push_back({copy.destination, copy.source});
      ++prepared.groups_.back().count;
    }
    InlineRuns packed;
    if (std::all_of(prepared.groups_.begin(), prepared.groups_.end(),
                    [&](const Group& group) { return Pack(prepared.RunsOf(group), packed); })) {
      return prepared;
    }
    absl::StatusOr<CudaStream::Scratch*> scratch = stream.AcquireScratch(prepared.runs_.size() * sizeof(ByteRun));
    if (!scratch.ok()) return scratch.status();
    prepared.scratch_ = *scratch;
    return prepared;
  }

  absl::Status Launch(CudaStream& stream) const {
    const ByteRun* uploaded = nullptr;
    if (scratch_ != nullptr) {
      std::copy(runs_.begin(), runs_.end(), reinterpret_cast<ByteRun*>(scratch_->host()));
      if (absl::Status status = stream.Upload(*scratch_, runs_.size() * sizeof(ByteRun)); !status.ok()) return status;
      uploaded = reinterpret_cast<const ByteRun*>(scratch_->device());
    }
    absl::Status launched;
    for (const Group& group : groups_) {
      const auto count = static_cast<std::int64_t>(group.count);
      InlineRuns packed;
      launched.Update(Pack(RunsOf(group), packed)
                          ? LaunchPacked(packed, count, group.bytes, stream)
                          : ToStatus(LaunchCopyRuns(uploaded + group.first, {}, count, group.bytes, stream.get()),
                                     "launching a copy"));
    }
    if (scratch_ != nullptr) launched.Update(stream.Release(scratch_));
    return launched;
  }

 private:
  /// Runs of one size.
  struct Group {
    std::size_t first;
    std::size_t count;
    std::int64_t bytes;
  };

  absl::Span<const ByteRun> RunsOf(const Group& group) const {
    return absl::MakeConstSpan(runs_).subspan(group.first, group.count);
  }

  std::vector<ByteRun> runs_;
  std::vector<Group> groups_;
  CudaStream::Scratch* scratch_ = nullptr;  // for all runs, unless every group travels with its launch
};

/// What has been allocated on the device. Thread-safe.
class DeviceMemory {
 public:
  void Add(const void* data, std::size_t size) {
    const std::lock_guard lock(mutex_);
    allocations_.emplace(reinterpret_cast<std::uintptr_t>(data), size);
  }
  void Remove(const void* data) {
    const std::lock_guard lock(mutex_);
    allocations_.erase(reinterpret_cast<std::uintptr_t>(data));
  }
  bool Holds(const void* data, std::size_t size) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    const std::lock_guard lock(mutex_);
    const auto behind = allocations_.upper_bound(begin);
    if (behind == allocations_.begin()) return false;
    const auto& [first, length] = *std::prev(behind);
    return begin - first <= length && size <= length - (begin - first);
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, std::size_t> allocations_;
};

class CudaBackend final : public Backend {
 public:
  static absl::StatusOr<std::unique_ptr<Backend>> Create(int device);

  DeviceInfo device_info() const override { return info_; }
  MemorySharing* memory_sharing() override { return &sharing_; }
  absl::StatusOr<Buffer> Allocate(std::size_t size, MemoryKind kind) override;
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override;
  absl::Status RunRecurrence(const RecurrenceShape& shape, absl::Span<const Sequence> sequences,
                             Stream& stream) override;
  absl::Status CopyStates(const RecurrenceShape& shape, absl::Span<const StateCopy> copies, Stream& stream) override;
  absl::Status CopyBytes(absl::Span<const ByteCopy> copies, Stream& stream) override;
  absl::Status CopyBytesAhead(absl::Span<const ByteCopy> copies, Stream& stream) override;
  absl::Status CopyBytesAside(absl::Span<const ByteCopy> copies, Stream& stream) override;
  absl::Status ZeroBytes(absl::Span<const ByteRange> ranges, Stream& stream) override;
  absl::StatusOr<std::int64_t> FindNonFinite(absl::Span<const FiniteCheck> ranges, Stream& stream) override;
  absl::Status Synchronize(Stream& stream) override;
  absl::StatusOr<std::unique_ptr<Event>> Record(Stream& stream) override;
  absl::Status Wait(Event& event) override;
  absl::StatusOr<bool> HasHappened(Event& event) override;
  absl::Status Await(Event& event, Stream& stream) override;

 private:
  CudaBackend(int device, const cudaDeviceProp& properties, std::optional<TensorMapEncoder> encoder);
  void Free(void* data, std::size_t size, MemoryKind kind) noexcept override;

  absl::Status MakeCurrent() const;
  absl::Status RunHopper(const LaunchShape& shape, const std::vector<const Sequence*>& sequences,
                         CudaStream& stream) const;
  absl::Status RunGeneric(const LaunchShape& shape, const std::vector<const Sequence*>& sequences,
                          CudaStream& stream) const;

  int device_;
  DeviceLimits limits_;
  DeviceInfo info_;
  DeviceMemory memory_;
  CudaEventPool events_;
  CudaMemorySharing sharing_;
  std::optional<TensorMapEncoder> encoder_;  // on compute capability 9.0
};

absl::StatusOr<std::unique_ptr<Backend>> CudaBackend::Create(int device) {
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess) {
    return ToStatus(error, "looking for a device and a driver that knows this CUDA runtime");
  }
  if (device < 0 || device >= devices) {
    return absl::UnavailableError(absl::StrCat("CUDA device ", device, " is not present; there are ", devices));
  }
  cudaDeviceProp properties{};
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties, device));
  if (properties.major < 8) {
    return absl::UnavailableError(absl::StrCat("CUDA device ", device, " (", properties.name,
                                               ") has compute capability ", properties.major, ".", properties.minor,
                                               "; at least 8.0 is needed"));
  }
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaSetDevice(device));
  GDPCACHE_RETURN_IF_CUDA_ERROR(PrepareGenericRecurrence(LimitsOf(properties)));
  std::optional<TensorMapEncoder> encoder;
  if (properties.major == 9 && properties.minor == 0) {
    absl::StatusOr<TensorMapEncoder> created = TensorMapEncoder::Create();
    if (!created.ok()) return created.status();
    encoder = *created;
    GDPCACHE_RETURN_IF_CUDA_ERROR(PrepareHopperRecurrence(properties.multiProcessorCount));
  }
  return std::unique_ptr<Backend>(new CudaBackend(device, properties, encoder));
}

CudaBackend::CudaBackend(int device, const cudaDeviceProp& properties, std::optional<TensorMapEncoder> encoder)
    : device_(device),
      limits_(LimitsOf(properties)),
      sharing_(device, FormatUuid(properties.uuid.bytes)),
      encoder_(encoder) {
  info_.backend = "cuda";
  info_.device = absl::StrCat(properties.name, " (device ", device, ")");
  info_.unified_memory = false;
  info_.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
}

absl::Status CudaBackend::MakeCurrent() const {
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaSetDevice(device_));
  return absl::OkStatus();
}

absl::StatusOr<Buffer> CudaBackend::Allocate(std::size_t size, MemoryKind kind) {
  if (absl::Status status = MakeCurrent(); !status.ok()) return status;
  void* data = nullptr;
  if (size > 0) {
    const cudaError_t error =
        kind == MemoryKind::kDevice ? cudaMalloc(&data, size) : cudaHostAlloc(&data, size, cudaHostAllocPortable);
    if (error != cudaSuccess) {
      return ToStatus(error, absl::StrCat("allocating ", size, " bytes of ",
                                          kind == MemoryKind::kDevice ? "device" : "pinned host", " memory"));
    }
    if (kind == MemoryKind::kDevice) memory_.Add(data, size);
  }
  return Buffer(this, data, size, kind);
}

void CudaBackend::Free(void* data, std::size_t /*size*/, MemoryKind kind) noexcept {
  // Errors have nowhere to go: a lost device frees everything anyway.
  cudaSetDevice(device_);
  if (kind == MemoryKind::kDevice) {
    memory_.Remove(data);
    cudaFree(data);
  } else {
    cudaFreeHost(data);
  }
}

absl::StatusOr<std::unique_ptr<Stream>> CudaBackend::CreateStream() {
  if (absl::Status status = MakeCurrent(); !status.ok()) return status;
  return CudaStream::Create(device_);
}

absl::Status CudaBackend::RunHopper(const LaunchShape& shape, const std::vector<const Sequence*>& sequences,
                                    CudaStream& stream) const {
  Descriptors descriptors(sequences);
  HopperArguments arguments;
  arguments.shape = shape;
  int boundary_bytes = 0;
  for (const SequenceDescriptor& sequence : descriptors.sequences) {
    const StateReference& all = sequence.all_boundaries;
    if (all.data != nullptr) boundary_bytes = std::max(boundary_bytes, all.dtype == shape.input_dtype ? 2 : 4);
  }
  arguments.tiling = ChooseHopperTiling(shape, {static_cast<std::int64_t>(sequences.size()), sequences.front()->length,
                                                boundary_bytes, limits_.multiprocessors});
  arguments.items = static_cast<std::int64_t>(sequences.size()) * shape.heads *
                    (arguments.tiling.value_tiles / arguments.tiling.cluster);
  const HopperMaps maps(shape, arguments.tiling, absl::MakeSpan(descriptors.sequences));
  const std::size_t maps_offset =
      (descriptors.size() + alignof(CUtensorMap) - 1) / alignof(CUtensorMap) * alignof(CUtensorMap);
  const std::size_t size = maps_offset + maps.count() * sizeof(CUtensorMap);
  arguments.boundaries_offset = static_cast<std::int64_t>(descriptors.boundaries_offset());
  arguments.maps_offset = static_cast<std::int64_t>(maps_offset);
  arguments.counters = stream.counters();
  const auto fill = [&](std::byte* block) {
    descriptors.CopyTo(block);
    return maps.Encode(*encoder_, reinterpret_cast<CUtensorMap*>(block + maps_offset));
  };
  if (size <= kHopperInlineBytes) {
    if (absl::Status status = fill(arguments.inline_block); !status.ok()) return status;
    return ToStatus(LaunchHopperRecurrence(arguments, stream.get()), "launching the recurrence");
  }
  absl::StatusOr<CudaStream::Scratch*> scratch = stream.AcquireScratch(size);
  if (!scratch.ok()) return scratch.status();
  if (absl::Status status = fill((*scratch)->host()); !status.ok()) return status;
  if (absl::Status status = stream.Upload(**scratch, size); !status.ok()) return status;
  arguments.uploaded_block = (*scratch)->device();
  const absl::Status launched = ToStatus(LaunchHopperRecurrence(arguments, stream.get()), "launching the recurrence");
  const absl::Status released = stream.Release(*scratch);
  return launched.ok() ? released : launched;
}

absl::Status CudaBackend::RunGeneric(const LaunchShape& shape, const std::vector<const Sequence*>& sequences,
                                     CudaStream& stream) const {
  const Descriptors descriptors(sequences);
  absl::StatusOr<CudaStream::Scratch*> scratch = stream.AcquireScratch(descriptors.size());
  if (!scratch.ok()) return scratch.status();
  descriptors.CopyTo((*scratch)->host());
  if (absl::Status status = stream.Upload(**scratch, descriptors.size()); !status.ok()) return status;
  const std::byte* block = (*scratch)->device();
  const absl::Status launched = ToStatus(
      LaunchGenericRecurrence(
          shape, reinterpret_cast<const SequenceDescriptor*>(block), static_cast<std::int64_t>(sequences.size()),
          reinterpret_cast<const BoundaryDescriptor*>(block + descriptors.boundaries_offset()), limits_, stream.get()),
      "launching the recurrence");
  const absl::Status released = stream.Release(*scratch);
  return launched.ok() ? released : launched;
}

absl::Status CudaBackend::RunRecurrence(const RecurrenceShape& shape, absl::Span<const Sequence> sequences,
                                        Stream& stream) {
  if (absl::Status status = ValidateRecurrence(shape, sequences); !status.ok()) return status;
  if (absl::Status status = MakeCurrent(); !status.ok()) return status;
  // Longest first, so that the last thread blocks to finish have little left to do.
  std::vector<const Sequence*> order;
  order.reserve(sequences.size());
  for (const Sequence& sequence : sequences) {
    if (HasWork(Describe(sequence, 0))) order.push_back(&sequence);
  }
  if (order.empty()) return absl::OkStatus();
  std::stable_sort(order.begin(), order.end(),
                   [](const Sequence* a, const Sequence* b) { return a->length > b->length; });
  const LaunchShape launch_shape = ToLaunchShape(shape);
  auto& cuda_stream = static_cast<CudaStream&>(stream);
  // The choice depends on nothing that differs between sequences: results must not depend on what a batch holds.
  if (encoder_.has_value() && HopperCovers(launch_shape)) {
    return RunHopper(launch_shape, order, cuda_stream);
  }
  return RunGeneric(launch_shape, order, cuda_stream);
}

absl::Status CudaBackend::CopyStates(const RecurrenceShape& shape, absl::Span<const StateCopy> copies, Stream& stream) {
  if (absl::Status status = ValidateStateCopies(shape, copies); !status.ok()) return status;
  if (copies.empty()) return absl::OkStatus();
  if (absl::Status status = MakeCurrent(); !status.ok()) return status;
  auto& cuda_stream = static_cast<CudaStream&>(stream);
  const auto count = static_cast<std::int64_t>(copies.size());

  const DataType dtype = copies.front().destination.dtype;
  const std::int64_t bytes = shape.heads * shape.key_dim * shape.value_dim * ByteSize(dtype);
  if (std::all_of(copies.begin(), copies.end(), [&](const StateCopy& copy) { return IsRun(shape, copy, dtype); })) {
    std::vector<ByteRun> runs;
    runs.reserve(copies.size());
    for (const StateCopy& copy : copies) runs.push_back({copy.destination.data, copy.source.data});
    return QueueRuns(runs, bytes, cuda_stream);
  }
  std::vector<StateCopyDescriptor> descriptors;
  descriptors.reserve(copies.size());
  for (const StateCopy& copy : copies) descriptors.push_back({Reference(copy.destination), Reference(copy.source)});
  const auto launch = [&](const StateCopyDescriptor* uploaded) {
    return LaunchCopyStates(ToLaunchShape(shape), uploaded, count, cuda_stream.get());
  };
  return LaunchUploaded(absl::MakeConstSpan(descriptors), launch, cuda_stream);
}

absl::Status CudaBackend::CopyBytes(absl::Span<const ByteCopy> copies, Stream& stream) {
  if (absl::Status status = MakeCurrent(); !status.ok()) return status;
  auto& cuda_stream = static_cast<CudaStream&>(stream);
  if (copies.size() < 2) return QueueCopies(copies, cuda_stream.get());
  std::vector<ByteCopy> within;
  std::vector<ByteCopy> others;
  for (const ByteCopy& copy : copies) {
    const bool is_within = copy.size > 0 && copy.size % kRunAlignment == 0 && AlignedForRuns(copy.destination) &&
                           AlignedForRuns(copy.source) && memory_.Holds(copy.destination, copy.size) &&
                           memory_.Holds(copy.source, copy.size);
    (is_within ? within : others).push_back(copy);
  }
  const absl::StatusOr<DeviceCopies> prepared = DeviceCopies::Prepare(std::move(within), cuda_stream);
  if (!prepared.ok()) return prepared.status();
  if (absl::Status status = QueueCopies(others, cuda_stream.get()); !status.ok()) return status;
  return prepared->Launch(cuda_stream);
}

absl::Status CudaBackend::CopyBytesAhead(absl::Span<const ByteCopy> copies, Stream& stream) {
  if (absl::Status status = MakeCurrent(); !status.ok()) return status;
  auto& cuda_stream = static_cast<CudaStream&>(stream);
  if (absl::Status status = QueueCopies(copies, cuda_stream.uploads()); !status.ok()) return status;
  return cuda_stream.JoinUploads();
}

absl::Status CudaBackend::CopyBytesAside(absl::Span<const ByteCopy> copies, Stream& stream) {
  if (absl::Status status = MakeCurrent(); !status.ok()) return status;
  const absl::StatusOr<cudaStream_t> downloads = static_cast<CudaStream&>(stream).ForkDownloads();
  return downloads.ok() ? QueueCopies(copies, *downloads) : downloads.status();
}

absl::Status CudaBackend::ZeroBytes(absl::Span<const ByteRange> ranges, Stream& stream) {
  if (absl::Status status = MakeCurrent(); !status.ok()) return status;
  auto& cuda_stream = static_cast<CudaStream&>(stream);
  std::vector<ByteCopy> within;
  std::vector<ByteRange> others;
  for (const ByteRange& range : ranges) {
    if (range.size == 0) continue;
    if (ranges.size() > 1 && range.size % kRunAlignment == 0 && AlignedForRuns(range.data) &&
        memory_.Holds(range.data, range.size)) {
      within.push_back({range.data, nullptr, range.size});
    } else {
      others.push_back(range);
    }
  }
  const absl::StatusOr<DeviceCopies> prepared = DeviceCopies::Prepare(std::move(within), cuda_stream);
  if (!prepared.ok()) return prepared.status();
  for (const ByteRange& range : others) {
    GDPCACHE_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(range.data, 0, range.size, cuda_stream.get()));
  }
  return prepared->Launch(cuda_stream);
}

absl::StatusOr<std::int64_t> CudaBackend::FindNonFinite(absl::Span<const FiniteCheck> ranges, Stream& stream) {
  if (absl::Status status = MakeCurrent(); !status.ok()) return status;
  auto& cuda_stream = static_cast<CudaStream&>(stream);
  if (ranges.empty()) {
    if (absl::Status status = Synchronize(stream); !status.ok()) return status;
    return -1;
  }
  const std::size_t size = ranges.size() * sizeof(FiniteCheckDescriptor);
  absl::StatusOr<CudaStream::Scratch*> scratch = cuda_stream.AcquireScratch(size);
  if (!scratch.ok()) return scratch.status();
  auto* descriptors = reinterpret_cast<FiniteCheckDescriptor*>((*scratch)->host());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    descriptors[i] = {ranges[i].data, ranges[i].elements, ranges[i].dtype};
  }
  if (absl::Status status = cuda_stream.Upload(**scratch, size); !status.ok()) return status;
  unsigned long long* answer = cuda_stream.device_answer();
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(answer, 0xff, sizeof(*answer), cuda_stream.get()));
  const absl::Status launched = ToStatus(
      LaunchFindNonFinite(reinterpret_cast<const FiniteCheckDescriptor*>((*scratch)->device()),
                          static_cast<std::int64_t>(ranges.size()), answer, limits_.multiprocessors, cuda_stream.get()),
      "launching a finite check");
  if (absl::Status released = cuda_stream.Release(*scratch); !released.ok()) return released;
  if (!launched.ok()) return launched;
  GDPCACHE_RETURN_IF_CUDA_ERROR(
      cudaMemcpyAsync(cuda_stream.host_answer(), answer, sizeof(*answer), cudaMemcpyDeviceToHost, cuda_stream.get()));
  if (absl::Status status = Synchronize(stream); !status.ok()) return status;
  return static_cast<std::int64_t>(*cuda_stream.host_answer());  // all ones: -1
}

absl::Status CudaBackend::Synchronize(Stream& stream) {
  if (absl::Status status = MakeCurrent(); !status.ok()) return status;
  return static_cast<CudaStream&>(stream).Synchronize();
}

absl::StatusOr<std::unique_ptr<Event>> CudaBackend::Record(Stream& stream) {
  if (absl::Status status = MakeCurrent(); !status.ok()) return status;
  const absl::StatusOr<cudaStream_t> last = static_cast<CudaStream&>(stream).Last();
  if (!last.ok()) return last.status();
  return CudaEvent::Record(*last, events_);
}

absl::Status CudaBackend::Wait(Event& event) {
  if (absl::Status status = MakeCurrent(); !status.ok()) return status;
  GDPCACHE_RETURN_IF_CUDA_ERROR(static_cast<CudaEvent&>(event).Wait());
  return absl::OkStatus();
}

absl::StatusOr<bool> CudaBackend::HasHappened(Event& event) {
  if (absl::Status status = MakeCurrent(); !status.ok()) return status;
  const cudaError_t state = static_cast<CudaEvent&>(event).Query();
  if (state == cudaErrorNotReady) {
    cudaGetLastError();  // no error, but it would be taken for one later
    return false;
  }
  GDPCACHE_RETURN_IF_CUDA_ERROR(state);
  return true;
}

absl::Status CudaBackend::Await(Event& event, Stream& stream) {
  if (absl::Status status = MakeCurrent(); !status.ok()) return status;
  GDPCACHE_RETURN_IF_CUDA_ERROR(static_cast<CudaEvent&>(event).LetWait(static_cast<CudaStream&>(stream).get()));
  return absl::OkStatus();
}

}  // namespace
}  // namespace cuda

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(int device) { return cuda::CudaBackend::Create(device); }

}  // namespace gdpcache::kernels
