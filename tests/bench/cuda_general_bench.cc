// The CUDA backend's general path: float32 inputs, high precision and chunks other than 64, beside the memory floor.
//
//   gdpcache_cuda_general_bench

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_stream.h"
#include "tests/bench/cuda_timing.h"
#include "tests/reference/numbers.h"

namespace gdpcache::bench {
namespace {

using kernels::Buffer;
using kernels::DataType;
using kernels::RecurrenceShape;
using kernels::Sequence;

constexpr double kBytesPerMicrosecond = 4.3e6;  // of the H200, reads plus writes
constexpr std::int64_t kRandomElements = std::int64_t{1} << 22;
constexpr int kRepeats = 15;

struct Case {
  std::string name;
  RecurrenceShape shape;
  std::int64_t sequences;
  std::int64_t tokens;  // of each, before expansion
};

class Bench {
 public:
  Bench()
      : backend_(Take(kernels::CreateCudaBackend(0))),
        stream_(Take(backend_->CreateStream())),
        queue_(static_cast<kernels::cuda::CudaStream&>(*stream_).get()) {
    std::printf("%s\n", backend_->device_info().device.c_str());
    std::printf("| shape | inputs | chunk | us | floor us | ratio | us per chunk |\n");
  }

  void Run(const Case& wanted);

 private:
  /// Normal values times `scale`, repeated.
  Buffer Random(DataType dtype, std::int64_t elements, double scale) {
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal;
    const auto size = static_cast<std::size_t>(ByteSize(dtype));
    std::vector<std::byte> host(static_cast<std::size_t>(kRandomElements) * size);
    for (std::size_t i = 0; i < host.size(); i += size) testing::Encode(dtype, scale * normal(random), &host[i]);
    Buffer buffer = Empty(elements, dtype);
    for (std::size_t at = 0; at < buffer.size(); at += host.size()) {
      Check(backend_->CopyBytes({{buffer.bytes() + at, host.data(), std::min(host.size(), buffer.size() - at)}},
                                *stream_));
    }
    Check(backend_->Synchronize(*stream_));
    return buffer;
  }

  Buffer Empty(std::int64_t elements, DataType dtype) {
    return Take(backend_->Allocate(static_cast<std::size_t>(elements * ByteSize(dtype)), kernels::MemoryKind::kDevice));
  }

  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<kernels::Stream> stream_;
  cudaStream_t queue_;
};

void Bench::Run(const Case& wanted) {
  const RecurrenceShape& shape = wanted.shape;
  const std::int64_t size = ByteSize(shape.input_dtype);
  const std::int64_t length = wanted.tokens * shape.num_householder;
  const std::int64_t rows = wanted.sequences * length * shape.heads;
  const std::int64_t head = shape.key_dim * shape.value_dim;
  const std::int64_t boundaries = (wanted.tokens + shape.chunk_size - 1) / shape.chunk_size;
  const double root = 1 / std::sqrt(static_cast<double>(shape.key_dim));
  const Buffer k = Random(shape.input_dtype, rows * shape.key_dim, root);
  const Buffer w = Random(shape.input_dtype, rows * shape.key_dim, 0.3 * root);
  const Buffer u = Random(shape.input_dtype, rows * shape.value_dim, 1);
  const Buffer g = Random(DataType::kFloat32, rows, 0.02);
  const Buffer v_new = Empty(rows * shape.value_dim, shape.input_dtype);
  const Buffer h = Empty(wanted.sequences * boundaries * shape.heads * head, DataType::kFloat32);
  const Buffer slots = Empty(wanted.sequences * shape.heads * head, DataType::kFloat32);
  Check(backend_->ZeroBytes({{slots.data(), slots.size()}}, *stream_));

  std::vector<Sequence> sequences;
  for (std::int64_t n = 0; n < wanted.sequences; ++n) {
    const std::int64_t row = n * length * shape.heads;
    Sequence sequence;
    sequence.length = length;
    sequence.k = k.bytes() + row * shape.key_dim * size;
    sequence.w = w.bytes() + row * shape.key_dim * size;
    sequence.u = u.bytes() + row * shape.value_dim * size;
    sequence.g = reinterpret_cast<const float*>(g.bytes()) + row;
    sequence.v_new = v_new.bytes() + row * shape.value_dim * size;
    sequence.slot = {slots.bytes() + n * shape.heads * head * 4, DataType::kFloat32, head};
    sequence.initial_state = sequence.slot;
    sequence.all_boundaries = {h.bytes() + n * boundaries * shape.heads * head * 4, DataType::kFloat32, head};
    sequences.push_back(sequence);
  }
  const double time =
      MedianMicroseconds(queue_, kRepeats, [&](int) { Check(backend_->RunRecurrence(shape, sequences, *stream_)); });
  const auto bytes =
      static_cast<double>(k.size() + w.size() + u.size() + g.size() + v_new.size() + h.size() + 2 * slots.size());
  const double floor = bytes / kBytesPerMicrosecond;
  const double chunks = std::ceil(static_cast<double>(length) / static_cast<double>(shape.chunk_size));
  std::printf("| %s | %s | %lld | %.0f | %.0f | %.2f | %.2f |\n", wanted.name.c_str(),
              std::string(Name(shape.input_dtype)).c_str(), static_cast<long long>(shape.chunk_size), time, floor,
              time / floor, time / chunks);
  std::fflush(stdout);
}

void Main() {
  Bench bench;
  const RecurrenceShape wide{.heads = 32, .key_dim = 128, .value_dim = 128, .input_dtype = DataType::kFloat32};
  RecurrenceShape twice = wide;
  twice.num_householder = 2;
  RecurrenceShape few = wide;
  few.heads = 16;
  bench.Run({"A", wide, 1, 8192});
  bench.Run({"C", wide, 32, 1024});
  bench.Run({"D", twice, 8, 1024});
  bench.Run({"G", few, 64, 128});
  RecurrenceShape precise = wide;
  precise.input_dtype = DataType::kBFloat16;
  precise.precision = kernels::Precision::kHigh;
  bench.Run({"A, high precision", precise, 1, 8192});
  bench.Run({"C, high precision", precise, 32, 1024});
  for (const std::int64_t chunk_size : {16, 32, 128}) {
    for (const auto dtype : {DataType::kBFloat16, DataType::kFloat32}) {
      RecurrenceShape shape = wide;
      shape.chunk_size = chunk_size;
      shape.input_dtype = dtype;
      bench.Run({"A", shape, 1, 8192});
    }
  }
}

}  // namespace
}  // namespace gdpcache::bench

int main() { gdpcache::bench::Main(); }
