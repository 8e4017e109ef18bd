#include "kernels/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/descriptors.h"
#include "kernels/cuda/memory_kernels.h"
#include "kernels/cuda/recurrence_generic.h"
#include "kernels/cuda/recurrence_hopper.h"
#include "kernels/cuda/tensor_map.h"

namespace gdpcache::kernels {
namespace cuda {
namespace {

constexpr int kMapsPerSequence = 4;  // k, w, u, all boundaries

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

/// Where the parts of a launch's descriptor block lie.
struct BlockLayout {
  std::size_t sequences_offset = 0;
  std::size_t boundaries_offset = 0;
  std::size_t size = 0;
};

BlockLayout LayOut(std::size_t maps, std::size_t sequences, std::size_t boundaries) {
  BlockLayout layout;
  layout.sequences_offset = maps * sizeof(CUtensorMap);
  layout.boundaries_offset = layout.sequences_offset + sequences * sizeof(SequenceDescriptor);
  layout.size = layout.boundaries_offset + boundaries * sizeof(BoundaryDescriptor);
  return layout;
}

class CudaBackend final : public Backend {
 public:
  static absl::StatusOr<std::unique_ptr<Backend>> Create(int device);

  DeviceInfo device_info() const override { return info_; }
  absl::StatusOr<Buffer> Allocate(std::size_t size, MemoryKind kind) override;
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override;
  absl::Status RunRecurrence(const RecurrenceShape& shape, absl::Span<const Sequence> sequences,
                             Stream& stream) override;
  absl::Status CopyStates(const RecurrenceShape& shape, absl::Span<const StateCopy> copies, Stream& stream) override;
  absl::Status CopyBytes(absl::Span<const ByteCopy> copies, Stream& stream) override;
  absl::Status ZeroBytes(absl::Span<const ByteRange> ranges, Stream& stream) override;
  absl::StatusOr<std::int64_t> FindNonFinite(absl::Span<const FiniteCheck> ranges, Stream& stream) override;
  absl::Status Synchronize(Stream& stream) override;

 private:
  CudaBackend(int device, const cudaDeviceProp& properties, std::optional<TensorMapEncoder> encoder);
  void Free(void* data, std::size_t size, MemoryKind kind) noexcept override;

  absl::Status MakeCurrent() const;
  /// Gives the sequence its tensor maps where its operands can have them.
  absl::Status EncodeMaps(const LaunchShape& shape, int value_tile, std::int32_t map_index, CUtensorMap* maps,
                          SequenceDescriptor& sequence) const;

  /// Writes the launch's descriptor block; `value_tile` is 0 for a launch without tensor maps.
  absl::Status FillBlock(const LaunchShape& shape, const std::vector<const Sequence*>& sequences,
                         const BlockLayout& layout, std::byte* block, int value_tile) const;
  absl::Status RunHopper(const LaunchShape& shape, const std::vector<const Sequence*>& sequences,
                         std::size_t boundaries, CudaStream& stream) const;
  absl::Status RunGeneric(const LaunchShape& shape, const std::vector<const Sequence*>& sequences,
                          std::size_t boundaries, CudaStream& stream) const;

  int device_;
  int multiprocessors_;
  DeviceInfo info_;
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
  GDPCACHE_RETURN_IF_CUDA_ERROR(PrepareGenericRecurrence());
  std::optional<TensorMapEncoder> encoder;
  if (properties.major == 9 && properties.minor == 0) {
    absl::StatusOr<TensorMapEncoder> created = TensorMapEncoder::Create();
    if (!created.ok()) return created.status();
    encoder = *created;
    GDPCACHE_RETURN_IF_CUDA_ERROR(PrepareHopperRecurrence());
  }
  return std::unique_ptr<Backend>(new CudaBackend(device, properties, encoder));
}

CudaBackend::CudaBackend(int device, const cudaDeviceProp& properties, std::optional<TensorMapEncoder> encoder)
    : device_(device), multiprocessors_(properties.multiProcessorCount), encoder_(encoder) {
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
  }
  return Buffer(this, data, size, kind);
}

void CudaBackend::Free(void* data, std::size_t /*size*/, MemoryKind kind) noexcept {
  // Errors have nowhere to go: a lost device frees everything anyway.
  cudaSetDevice(device_);
  if (kind == MemoryKind::kDevice) {
    cudaFree(data);
  } else {
    cudaFreeHost(data);
  }
}

absl::StatusOr<std::unique_ptr<Stream>> CudaBackend::CreateStream() {
  if (absl::Status status = MakeCurrent(); !status.ok()) return status;
  return CudaStream::Create(device_);
}

absl::Status CudaBackend::EncodeMaps(const LaunchShape& shape, int value_tile, std::int32_t map_index,
                                     CUtensorMap* maps, SequenceDescriptor& sequence) const {
  struct Operand {
    const void* data;
    std::int64_t width;
    int box_columns;
  };
  const Operand operands[] = {
      {sequence.k, shape.key_dim, 64}, {sequence.w, shape.key_dim, 64}, {sequence.u, shape.value_dim, value_tile}};
  if (sequence.length == 0) return absl::OkStatus();
  const bool addressable = sequence.length <= std::numeric_limits<std::int32_t>::max() - kHopperChunk;
  const auto fits = [](const Operand& operand) { return TensorMapEncoder::CanEncode(operand.data, operand.width * 2); };
  if (addressable && std::all_of(std::begin(operands), std::end(operands), fits)) {
    sequence.map_index = map_index;
    CUtensorMap* map = maps + map_index;
    for (const Operand& operand : operands) {
      if (absl::Status status = encoder_->EncodeRows(map++, operand.data, shape.input_dtype, sequence.length,
                                                     shape.heads, operand.width, operand.box_columns);
          !status.ok()) {
        return status;
      }
    }
  }
  const StateReference& all = sequence.all_boundaries;
  const std::int64_t per_boundary = shape.num_householder * shape.chunk_size;
  const std::int64_t states = (sequence.length + per_boundary - 1) / per_boundary * shape.heads;
  if (all.data != nullptr && sequence.boundary_count == 0 && states > shape.heads &&
      (all.dtype == DataType::kFloat32 || all.dtype == shape.input_dtype) &&
      states <= std::numeric_limits<std::int32_t>::max() &&
      TensorMapEncoder::CanEncode(all.data, shape.value_dim * ByteSize(all.dtype))) {
    sequence.boundary_map = map_index + kMapsPerSequence - 1;
    return encoder_->EncodeStates(maps + sequence.boundary_map, all.data, all.dtype, states, shape.key_dim,
                                  shape.value_dim, all.dtype == DataType::kFloat32 ? 32 : value_tile, shape.key_dim);
  }
  return absl::OkStatus();
}

absl::Status CudaBackend::FillBlock(const LaunchShape& shape, const std::vector<const Sequence*>& sequences,
                                    const BlockLayout& layout, std::byte* block, int value_tile) const {
  auto* maps = reinterpret_cast<CUtensorMap*>(block);
  auto* descriptors = reinterpret_cast<SequenceDescriptor*>(block + layout.sequences_offset);
  auto* boundaries = reinterpret_cast<BoundaryDescriptor*>(block + layout.boundaries_offset);
  std::int32_t boundary_count = 0;
  for (std::size_t n = 0; n < sequences.size(); ++n) {
    SequenceDescriptor descriptor = Describe(*sequences[n], boundary_count);
    if (value_tile != 0) {
      const auto map_index = static_cast<std::int32_t>(n) * kMapsPerSequence;
      if (absl::Status status = EncodeMaps(shape, value_tile, map_index, maps, descriptor); !status.ok()) return status;
    }
    descriptors[n] = descriptor;
    for (const BoundaryStore& store : sequences[n]->boundaries) {
      boundaries[boundary_count++] = {store.boundary, Reference(store.destination)};
    }
  }
  return absl::OkStatus();
}

absl::Status CudaBackend::RunHopper(const LaunchShape& shape, const std::vector<const Sequence*>& sequences,
                                    std::size_t boundaries, CudaStream& stream) const {
  const BlockLayout layout = LayOut(sequences.size() * kMapsPerSequence, sequences.size(), boundaries);
  HopperArguments arguments;
  arguments.shape = shape;
  arguments.value_tile = HopperValueTile(shape, static_cast<std::int64_t>(sequences.size()), multiprocessors_);
  arguments.value_tiles = (shape.value_dim + arguments.value_tile - 1) / arguments.value_tile;
  arguments.items = static_cast<std::int64_t>(sequences.size()) * shape.heads * arguments.value_tiles;
  arguments.sequences_offset = static_cast<std::int64_t>(layout.sequences_offset);
  arguments.boundaries_offset = static_cast<std::int64_t>(layout.boundaries_offset);
  arguments.is_short = sequences.front()->length <= kHopperShort ? 1 : 0;
  arguments.counters = stream.counters();
  if (layout.size <= kHopperInlineBytes) {
    if (absl::Status status = FillBlock(shape, sequences, layout, arguments.inline_block, arguments.value_tile);
        !status.ok()) {
      return status;
    }
    return ToStatus(LaunchHopperRecurrence(arguments, multiprocessors_, stream.get()), "launching the recurrence");
  }
  absl::StatusOr<CudaStream::Scratch*> scratch = stream.AcquireScratch(layout.size);
  if (!scratch.ok()) return scratch.status();
  if (absl::Status status = FillBlock(shape, sequences, layout, (*scratch)->host(), arguments.value_tile); !status.ok())
    return status;
  if (absl::Status status = stream.Upload(**scratch, layout.size); !status.ok()) return status;
  arguments.uploaded_block = (*scratch)->device();
  const absl::Status launched =
      ToStatus(LaunchHopperRecurrence(arguments, multiprocessors_, stream.get()), "launching the recurrence");
  const absl::Status released = stream.Release(*scratch);
  return launched.ok() ? released : launched;
}

absl::Status CudaBackend::RunGeneric(const LaunchShape& shape, const std::vector<const Sequence*>& sequences,
                                     std::size_t boundaries, CudaStream& stream) const {
  const BlockLayout layout = LayOut(0, sequences.size(), boundaries);
  absl::StatusOr<CudaStream::Scratch*> scratch = stream.AcquireScratch(layout.size);
  if (!scratch.ok()) return scratch.status();
  if (absl::Status status = FillBlock(shape, sequences, layout, (*scratch)->host(), 0); !status.ok()) return status;
  if (absl::Status status = stream.Upload(**scratch, layout.size); !status.ok()) return status;
  const std::byte* block = (*scratch)->device();
  const absl::Status launched = ToStatus(
      LaunchGenericRecurrence(shape, reinterpret_cast<const SequenceDescriptor*>(block + layout.sequences_offset),
                              static_cast<std::int64_t>(sequences.size()),
                              reinterpret_cast<const BoundaryDescriptor*>(block + layout.boundaries_offset),
                              multiprocessors_, stream.get()),
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
  std::size_t boundaries = 0;
  for (const Sequence& sequence : sequences) {
    if (!HasWork(Describe(sequence, 0))) continue;
    order.push_back(&sequence);
    boundaries += sequence.boundaries.size();
  }
  if (order.empty()) return absl::OkStatus();
  std::stable_sort(order.begin(), order.end(),
                   [](const Sequence* a, const Sequence* b) { return a->length > b->length; });
  const LaunchShape launch_shape = ToLaunchShape(shape);
  auto& cuda_stream = static_cast<CudaStream&>(stream);
  // The choice depends on nothing that differs between sequences: results must not depend on what a batch holds.
  if (encoder_.has_value() && HopperCovers(launch_shape)) {
    return RunHopper(launch_shape, order, boundaries, cuda_stream);
  }
  return RunGeneric(launch_shape, order, boundaries, cuda_stream);
}

absl::Status CudaBackend::CopyStates(const RecurrenceShape& shape, absl::Span<const StateCopy> copies, Stream& stream) {
  if (absl::Status status = ValidateStateCopies(shape, copies); !status.ok()) return status;
  if (copies.empty()) return absl::OkStatus();
  if (absl::Status status = MakeCurrent(); !status.ok()) return status;
  auto& cuda_stream = static_cast<CudaStream&>(stream);
  const LaunchShape launch_shape = ToLaunchShape(shape);
  const auto count = static_cast<std::int64_t>(copies.size());
  const auto describe = [](const StateCopy& copy) {
    return StateCopyDescriptor{Reference(copy.destination), Reference(copy.source)};
  };
  if (copies.size() <= InlineStateCopies::kCapacity) {
    InlineStateCopies inline_copies;
    std::transform(copies.begin(), copies.end(), inline_copies.copies, describe);
    return ToStatus(LaunchCopyStates(launch_shape, nullptr, inline_copies, count, cuda_stream.get()),
                    "launching a state copy");
  }
  const std::size_t size = copies.size() * sizeof(StateCopyDescriptor);
  absl::StatusOr<CudaStream::Scratch*> scratch = cuda_stream.AcquireScratch(size);
  if (!scratch.ok()) return scratch.status();
  std::transform(copies.begin(), copies.end(), reinterpret_cast<StateCopyDescriptor*>((*scratch)->host()), describe);
  if (absl::Status status = cuda_stream.Upload(**scratch, size); !status.ok()) return status;
  const absl::Status launched =
      ToStatus(LaunchCopyStates(launch_shape, reinterpret_cast<const StateCopyDescriptor*>((*scratch)->device()), {},
                                count, cuda_stream.get()),
               "launching a state copy");
  const absl::Status released = cuda_stream.Release(*scratch);
  return launched.ok() ? released : launched;
}

absl::Status CudaBackend::CopyBytes(absl::Span<const ByteCopy> copies, Stream& stream) {
  if (absl::Status status = MakeCurrent(); !status.ok()) return status;
  cudaStream_t queue = static_cast<CudaStream&>(stream).get();
  for (const ByteCopy& copy : copies) {
    if (copy.size == 0) continue;
    GDPCACHE_RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(copy.destination, copy.source, copy.size, cudaMemcpyDefault, queue));
  }
  return absl::OkStatus();
}

absl::Status CudaBackend::ZeroBytes(absl::Span<const ByteRange> ranges, Stream& stream) {
  if (absl::Status status = MakeCurrent(); !status.ok()) return status;
  cudaStream_t queue = static_cast<CudaStream&>(stream).get();
  for (const ByteRange& range : ranges) {
    if (range.size == 0) continue;
    GDPCACHE_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(range.data, 0, range.size, queue));
  }
  return absl::OkStatus();
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
                          static_cast<std::int64_t>(ranges.size()), answer, multiprocessors_, cuda_stream.get()),
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
  GDPCACHE_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(static_cast<CudaStream&>(stream).get()));
  return absl::OkStatus();
}

}  // namespace
}  // namespace cuda

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(int device) { return cuda::CudaBackend::Create(device); }

}  // namespace gdpcache::kernels
