// Copies of states on the GPU beside one cudaMemcpy of as many bytes. Bytes are counted as the operation needs them:
// each source read once, each destination written once.
//
//   gdpcache_cuda_copies_bench

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_stream.h"
#include "tests/bench/cuda_timing.h"

namespace gdpcache::bench {
namespace {

using kernels::Buffer;
using kernels::DataType;
using kernels::RecurrenceShape;
using kernels::StateCopy;

constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;
constexpr std::int64_t kPoolBytes = 2560 * kMebibyte;  // many times the L2 cache
constexpr int kRepeats = 41;

/// One way to copy: how large a state is, where states lie, what they become.
struct Case {
  std::string name;
  RecurrenceShape shape;
  DataType to = DataType::kFloat32;
  std::int64_t head_gap = 0;  // elements
  bool fork = false;          // one source
  bool zero = false;          // no source
  bool bytes = false;         // by CopyBytes, as slots and snapshots are copied
};

class Bench {
 public:
  Bench()
      : backend_(Take(kernels::CreateCudaBackend(0))),
        stream_(Take(backend_->CreateStream())),
        queue_(static_cast<kernels::cuda::CudaStream&>(*stream_).get()),
        source_(Take(backend_->Allocate(kPoolBytes, kernels::MemoryKind::kDevice))),
        destination_(Take(backend_->Allocate(kPoolBytes, kernels::MemoryKind::kDevice))) {
    Check(cudaMemset(source_.data(), 0x3D, source_.size()));
    std::printf("%s\n", backend_->device_info().device.c_str());
    std::printf("| copy | rows | MB | us | TB/s | cudaMemcpy TB/s | ratio |\n");
  }

  void Run(const Case& wanted, std::int64_t source_bytes);

 private:
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<kernels::Stream> stream_;
  cudaStream_t queue_;
  Buffer source_;
  Buffer destination_;
};

void Bench::Run(const Case& wanted, std::int64_t source_bytes) {
  const std::int64_t head = wanted.shape.key_dim * wanted.shape.value_dim;
  const std::int64_t stride = head + wanted.head_gap;
  const std::int64_t row = wanted.shape.heads * head * 4;     // bytes read
  const std::int64_t span = wanted.shape.heads * stride * 4;  // bytes a state spreads over
  const std::int64_t count = source_bytes / row;
  // Every second state of the pool, destinations in reverse, as slots are; the next call takes the next part.
  const std::int64_t part = count * 2 * span;
  const std::int64_t parts = kPoolBytes / part;
  std::vector<std::vector<StateCopy>> calls(static_cast<std::size_t>(parts));
  for (std::int64_t p = 0; p < parts; ++p) {
    for (std::int64_t i = 0; i < count; ++i) {
      StateCopy copy;
      copy.destination = {destination_.bytes() + p * part + (count - 1 - i) * 2 * span, wanted.to, stride};
      if (!wanted.zero) {
        copy.source = {source_.bytes() + p * part + (wanted.fork ? 0 : i * 2 * span), DataType::kFloat32, stride};
      }
      calls[static_cast<std::size_t>(p)].push_back(copy);
    }
  }
  const double ours = MedianMicroseconds(queue_, kRepeats, [&](int number) {
    const std::vector<StateCopy>& copies = calls[static_cast<std::size_t>(number) % calls.size()];
    if (!wanted.bytes) return Check(backend_->CopyStates(wanted.shape, copies, *stream_));
    std::vector<kernels::ByteCopy> byte_copies;
    for (const StateCopy& copy : copies) {
      byte_copies.push_back({copy.destination.data, copy.source.data, static_cast<std::size_t>(row)});
    }
    Check(backend_->CopyBytes(byte_copies, *stream_));
  });
  const std::int64_t plain_bytes = count * row;
  const double plain = MedianMicroseconds(queue_, kRepeats, [&](int number) {
    const std::int64_t at = number % parts * part;
    Check(cudaMemcpyAsync(destination_.bytes() + at, source_.bytes() + at, static_cast<std::size_t>(plain_bytes),
                          cudaMemcpyDeviceToDevice, queue_));
  });
  const double read = wanted.zero ? 0 : static_cast<double>(wanted.fork ? row : plain_bytes);
  const double written = static_cast<double>(plain_bytes) * static_cast<double>(ByteSize(wanted.to)) / 4;
  const double speed = (read + written) / ours * 1e-6;
  const double plain_speed = 2 * static_cast<double>(plain_bytes) / plain * 1e-6;
  std::printf("| %s | %lld x %lld KB | %lld | %.1f | %.2f | %.2f | %.2f |\n", wanted.name.c_str(),
              static_cast<long long>(count), static_cast<long long>(row >> 10),
              static_cast<long long>(source_bytes / kMebibyte), ours, speed, plain_speed, speed / plain_speed);
  std::fflush(stdout);
}

void Main() {
  Bench bench;
  const RecurrenceShape large{.heads = 32, .key_dim = 128, .value_dim = 128};  // 2 MB
  const RecurrenceShape small{.heads = 4, .key_dim = 64, .value_dim = 64};     // 64 KB
  for (const std::int64_t megabytes : {2, 16, 64, 512}) {
    const std::int64_t bytes = megabytes * kMebibyte;
    bench.Run({.name = "states", .shape = large}, bytes);
    bench.Run({.name = "states as bytes", .shape = large, .bytes = true}, bytes);
    bench.Run({.name = "small states", .shape = small}, bytes);
    bench.Run({.name = "heads apart", .shape = large, .head_gap = 4096}, bytes);
    bench.Run({.name = "fork", .shape = large, .fork = true}, bytes);
    bench.Run({.name = "float32 to bfloat16", .shape = large, .to = DataType::kBFloat16}, bytes);
    bench.Run({.name = "zeroing", .shape = large, .zero = true}, bytes);
  }
}

}  // namespace
}  // namespace gdpcache::bench

int main() { gdpcache::bench::Main(); }
