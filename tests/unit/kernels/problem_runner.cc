#include "tests/unit/kernels/problem_runner.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "gtest/gtest.h"

namespace gdpcache::testing {
namespace {

using kernels::DataType;

constexpr std::size_t kGuardBytes = 8192;
constexpr std::byte kPoison{0xFF};  // repeated, a NaN of every dtype

std::vector<std::byte> ReadBack(kernels::Backend& backend, kernels::Stream& stream, const std::byte* from,
                                std::size_t size) {
  std::vector<std::byte> bytes(size);
  EXPECT_TRUE(backend.CopyBytes({{bytes.data(), from, size}}, stream).ok());
  EXPECT_TRUE(backend.Synchronize(stream).ok());
  return bytes;
}

/// A cache whose heads lie `gap` elements apart, and back.
std::vector<std::byte> SpreadHeads(const HostTensor& state, std::size_t head_bytes, std::size_t gap_bytes) {
  std::vector<std::byte> spread;
  for (std::size_t at = 0; at < state.bytes.size(); at += head_bytes) {
    spread.insert(spread.end(), state.bytes.begin() + static_cast<std::ptrdiff_t>(at),
                  state.bytes.begin() + static_cast<std::ptrdiff_t>(at + head_bytes));
    spread.insert(spread.end(), gap_bytes, kPoison);
  }
  return spread;
}

std::vector<std::byte> GatherHeads(const std::vector<std::byte>& spread, std::size_t head_bytes,
                                   std::size_t gap_bytes) {
  std::vector<std::byte> dense;
  for (std::size_t at = 0; at < spread.size(); at += head_bytes + gap_bytes) {
    const auto head = spread.begin() + static_cast<std::ptrdiff_t>(at);
    dense.insert(dense.end(), head, head + static_cast<std::ptrdiff_t>(head_bytes));
    const auto gap = head + static_cast<std::ptrdiff_t>(head_bytes);
    EXPECT_TRUE(std::all_of(gap, gap + static_cast<std::ptrdiff_t>(gap_bytes), [](std::byte b) {
      return b == kPoison;
    })) << "a gap between heads was written";
  }
  return dense;
}

/// The tensors of one problem in the backend's memory.
class Launch {
 public:
  Launch(kernels::Backend& backend, const Problem& problem, const RunOptions& options)
      : backend_(backend), problem_(problem), options_(options) {
    auto stream = backend.CreateStream();
    EXPECT_TRUE(stream.ok()) << stream.status();
    stream_ = *std::move(stream);
  }

  Results Run() {
    Prepare();
    Describe();
    const absl::Status status = backend_.RunRecurrence(problem_.shape, sequences_, *stream_);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(backend_.Synchronize(*stream_).ok());
    return Collect();
  }

 private:
  std::size_t StateBytes(DataType dtype) const {
    return static_cast<std::size_t>(problem_.state_elements() * ByteSize(dtype));
  }

  std::unique_ptr<GuardedMemory> Place(DataType dtype, std::size_t bytes) {
    return std::make_unique<GuardedMemory>(backend_, *stream_, bytes,
                                           static_cast<std::size_t>(options_.misalign_elements * ByteSize(dtype)));
  }

  std::unique_ptr<GuardedMemory> PlaceInput(const HostTensor& tensor) {
    if (!tensor.present()) return nullptr;
    auto memory = Place(tensor.dtype, tensor.bytes.size());
    memory->Upload(tensor.bytes);
    return memory;
  }

  /// Place, for an output whose shape is known.
  std::unique_ptr<GuardedMemory> PlaceOutput(HostTensor& tensor) {
    return Place(tensor.dtype, static_cast<std::size_t>(tensor.elements() * ByteSize(tensor.dtype)));
  }

  void Prepare() {
    const auto& shape = problem_.shape;
    k_ = PlaceInput(problem_.k);
    w_ = PlaceInput(problem_.w);
    u_ = PlaceInput(problem_.u);
    g_ = PlaceInput(problem_.g);
    initial_ = PlaceInput(problem_.initial_state);
    if (problem_.state.present()) {
      head_bytes_ = static_cast<std::size_t>(shape.key_dim * shape.value_dim * ByteSize(problem_.state.dtype));
      gap_bytes_ = static_cast<std::size_t>(options_.head_gap_elements * ByteSize(problem_.state.dtype));
      const std::vector<std::byte> spread = SpreadHeads(problem_.state, head_bytes_, gap_bytes_);
      state_ = Place(problem_.state.dtype, spread.size());
      state_->Upload(spread);
    }
    if (problem_.save_new_value) {
      results_.v_new = {shape.input_dtype, problem_.u.shape, {}};
      v_new_ = PlaceOutput(results_.v_new);
    }
    if (options_.all_boundaries) {
      std::int64_t boundaries = 0;
      for (std::int64_t n = 0; n < problem_.sequences(); ++n) boundaries += problem_.BoundaryCount(n);
      results_.h = {problem_.states_dtype, {boundaries, shape.heads, shape.key_dim, shape.value_dim}, {}};
      h_ = PlaceOutput(results_.h);
    }
    if (problem_.output_final_state) {
      results_.final_state = {
          DataType::kFloat32, {problem_.sequences(), shape.heads, shape.key_dim, shape.value_dim}, {}};
      final_ = PlaceOutput(results_.final_state);
    }
    for (const BoundaryRequest& request : options_.boundaries) {
      results_.boundaries.push_back({request.dtype, {shape.heads, shape.key_dim, shape.value_dim}, {}});
      boundary_memory_.push_back(PlaceOutput(results_.boundaries.back()));
    }
  }

  void Describe() {
    const auto& shape = problem_.shape;
    const std::int64_t head_elements = shape.key_dim * shape.value_dim;
    stores_.resize(static_cast<std::size_t>(problem_.sequences()));
    for (std::size_t i = 0; i < options_.boundaries.size(); ++i) {
      const BoundaryRequest& request = options_.boundaries[i];
      stores_[static_cast<std::size_t>(request.sequence)].push_back(
          {request.boundary, {boundary_memory_[i]->data(), request.dtype, head_elements}});
    }
    std::size_t boundary = 0;
    for (std::size_t n = 0; n < stores_.size(); ++n) {
      const std::size_t row = static_cast<std::size_t>(problem_.cu_seqlens[n] * shape.heads);
      const std::size_t size = static_cast<std::size_t>(ByteSize(shape.input_dtype));
      kernels::Sequence sequence;
      sequence.length = problem_.cu_seqlens[n + 1] - problem_.cu_seqlens[n];
      sequence.k = k_->data() + row * static_cast<std::size_t>(shape.key_dim) * size;
      sequence.w = w_->data() + row * static_cast<std::size_t>(shape.key_dim) * size;
      sequence.u = u_->data() + row * static_cast<std::size_t>(shape.value_dim) * size;
      if (g_) sequence.g = reinterpret_cast<const float*>(g_->data()) + row;
      if (v_new_) sequence.v_new = v_new_->data() + row * static_cast<std::size_t>(shape.value_dim) * size;
      const std::int64_t slot = problem_.state_indices.empty() ? -1 : problem_.state_indices[n];
      if (slot >= 0) {
        sequence.slot = {state_->data() + static_cast<std::size_t>(slot * shape.heads) * (head_bytes_ + gap_bytes_),
                         problem_.state.dtype, head_elements + options_.head_gap_elements};
      }
      if (problem_.initial == InitialState::kSlot) sequence.initial_state = sequence.slot;
      if (problem_.initial == InitialState::kTensor) {
        sequence.initial_state = {initial_->data() + n * StateBytes(DataType::kFloat32), DataType::kFloat32,
                                  head_elements};
      }
      if (final_) {
        sequence.final_state = {final_->data() + n * StateBytes(DataType::kFloat32), DataType::kFloat32, head_elements};
      }
      if (h_) {
        sequence.all_boundaries = {h_->data() + boundary * StateBytes(problem_.states_dtype), problem_.states_dtype,
                                   head_elements};
      }
      sequence.boundaries = stores_[n];
      sequences_.push_back(sequence);
      boundary += static_cast<std::size_t>(problem_.BoundaryCount(static_cast<std::int64_t>(n)));
    }
  }

  Results Collect() {
    for (GuardedMemory* input : {k_.get(), w_.get(), u_.get(), g_.get(), initial_.get()}) {
      if (input != nullptr) input->ExpectGuardsIntact();
    }
    const auto collect = [](const std::unique_ptr<GuardedMemory>& memory, HostTensor& tensor) {
      if (memory == nullptr) return;
      tensor.bytes = memory->Download();
      memory->ExpectGuardsIntact();
    };
    collect(h_, results_.h);
    collect(v_new_, results_.v_new);
    collect(final_, results_.final_state);
    for (std::size_t i = 0; i < boundary_memory_.size(); ++i) collect(boundary_memory_[i], results_.boundaries[i]);
    if (state_) {
      results_.state = problem_.state;
      HostTensor spread;
      collect(state_, spread);
      results_.state.bytes = GatherHeads(spread.bytes, head_bytes_, gap_bytes_);
    }
    return std::move(results_);
  }

  kernels::Backend& backend_;
  const Problem& problem_;
  const RunOptions& options_;
  std::unique_ptr<kernels::Stream> stream_;
  std::unique_ptr<GuardedMemory> k_, w_, u_, g_, initial_, state_, v_new_, h_, final_;
  std::vector<std::unique_ptr<GuardedMemory>> boundary_memory_;
  std::vector<std::vector<kernels::BoundaryStore>> stores_;
  std::vector<kernels::Sequence> sequences_;
  std::size_t head_bytes_ = 0;
  std::size_t gap_bytes_ = 0;
  Results results_;
};

}  // namespace

GuardedMemory::GuardedMemory(kernels::Backend& backend, kernels::Stream& stream, std::size_t bytes, std::size_t offset)
    : backend_(backend), stream_(stream), begin_(kGuardBytes + offset), size_(bytes) {
  auto buffer = backend.Allocate(begin_ + size_ + kGuardBytes, kernels::MemoryKind::kDevice);
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  buffer_ = *std::move(buffer);
  const std::vector<std::byte> poison(buffer_.size(), kPoison);
  EXPECT_TRUE(backend.CopyBytes({{buffer_.data(), poison.data(), poison.size()}}, stream).ok());
  EXPECT_TRUE(backend.Synchronize(stream).ok());
}

void GuardedMemory::Upload(const std::vector<std::byte>& bytes) {
  EXPECT_EQ(bytes.size(), size_);
  EXPECT_TRUE(backend_.CopyBytes({{data(), bytes.data(), bytes.size()}}, stream_).ok());
  EXPECT_TRUE(backend_.Synchronize(stream_).ok());
}

std::vector<std::byte> GuardedMemory::Download() const { return ReadBack(backend_, stream_, data(), size_); }

void GuardedMemory::ExpectGuardsIntact() const {
  const std::vector<std::byte> all = ReadBack(backend_, stream_, buffer_.bytes(), buffer_.size());
  const auto poisoned = [](std::byte byte) { return byte == kPoison; };
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(begin_);
  EXPECT_TRUE(std::all_of(all.begin(), begin, poisoned)) << "memory before a tensor was written";
  EXPECT_TRUE(std::all_of(begin + static_cast<std::ptrdiff_t>(size_), all.end(), poisoned))
      << "memory behind a tensor was written";
}

Results RunProblem(kernels::Backend& backend, const Problem& problem, const RunOptions& options) {
  return Launch(backend, problem, options).Run();
}

}  // namespace gdpcache::testing
