// The CUDA backend on the benchmark shapes: times beside the memory floor and beside recorded times of Megatron-LM's
// Triton kernel, with a float64 check of sampled columns in the same run.
//
//   gdpcache_cuda_bench [--shapes=ABC] [--repeats=N] [--precision=high]

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "client/command/bench/statistics.h"
#include "kernels/backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_stream.h"
#include "tests/bench/cuda_timing.h"
#include "tests/reference/numbers.h"

namespace gdpcache::bench {
namespace {

using kernels::Backend;
using kernels::BoundaryStore;
using kernels::Buffer;
using kernels::DataType;
using kernels::MemoryKind;
using kernels::RecurrenceShape;
using kernels::Sequence;
using kernels::StateView;
using kernels::Stream;

constexpr double kBytesPerMicrosecond = 4.3e6;  // of the H200, reads plus writes
constexpr std::size_t kPoolElements = std::size_t{1} << 23;
constexpr std::size_t kMinRotationBytes = std::size_t{400} << 20;  // several times the L2 cache

/// What has to be reached, and for what.
enum class Kind { kMemory, kShort, kLatency, kWide };

struct BenchShape {
  char name;
  std::vector<std::int64_t> tokens;  // per sequence, before expansion
  std::int64_t num_householder;
  std::int64_t heads;
  std::int64_t key_dim;
  std::int64_t value_dim;
  Kind kind;
  double triton_us[2];  // boundary states in float32, bfloat16
};

std::vector<std::int64_t> Equal(std::int64_t count, std::int64_t tokens) {
  return std::vector<std::int64_t>(static_cast<std::size_t>(count), tokens);
}

std::vector<BenchShape> Shapes() {
  return {
      {'A', Equal(1, 8192), 1, 32, 128, 128, Kind::kMemory, {179, 162}},
      {'B', Equal(1, 32768), 1, 32, 128, 128, Kind::kMemory, {686, 622}},
      {'C', Equal(32, 1024), 1, 32, 128, 128, Kind::kMemory, {694, 722}},
      {'D', Equal(8, 1024), 2, 32, 128, 128, Kind::kMemory, {274, 332}},
      {'E', Equal(4, 2048), 4, 32, 128, 128, Kind::kMemory, {492, 593}},
      {'F', Equal(1, 8192), 1, 8, 128, 128, Kind::kLatency, {177, 156}},
      {'G', Equal(64, 128), 1, 16, 128, 128, Kind::kShort, {117, 101}},
      {'H', Equal(1, 8192), 1, 8, 256, 256, Kind::kWide, {323, 282}},
      {'I', Equal(16, 512), 1, 64, 64, 64, Kind::kMemory, {123, 103}},
      {'J', {4096, 17, 1000, 64, 2049, 1, 777, 513}, 2, 32, 128, 128, Kind::kMemory, {274, 242}},
      {'K', Equal(1, 131072), 1, 4, 128, 128, Kind::kLatency, {2766, 2408}},
      {'L', Equal(256, 1), 1, 32, 128, 128, Kind::kShort, {807, 710}},
      {'M', Equal(16, 2048), 1, 32, 128, 128, Kind::kMemory, {610, 474}},
      {'N', Equal(1, 4096), 3, 32, 128, 64, Kind::kLatency, {231, 223}},
      {'O', Equal(8, 1024), 3, 32, 128, 64, Kind::kMemory, {249, 195}},
      {'P', Equal(256, 1), 3, 32, 128, 64, Kind::kShort, {607, 381}},
      {'Q', Equal(1, 4096), 3, 8, 128, 64, Kind::kLatency, {241, 222}},
  };
}

/// Random values that every tensor of a kind repeats, so that a host copy of any element is at hand.
struct Pool {
  std::vector<std::byte> host;
  Buffer device;
  DataType dtype;

  double operator[](std::size_t index) const {
    return testing::Decode(dtype, host.data() + index % kPoolElements * ByteSize(dtype));
  }
};

class Bench {
 public:
  Bench(int repeats, kernels::Precision precision)
      : repeats_(repeats),
        precision_(precision),
        backend_(Take(kernels::CreateCudaBackend(0))),
        stream_(Take(backend_->CreateStream())) {
    queue_ = static_cast<kernels::cuda::CudaStream&>(*stream_).get();
    std::mt19937_64 random(20240611);
    std::normal_distribution<double> normal;
    keys_ = MakePool(DataType::kBFloat16, [&] { return normal(random) / std::sqrt(128.0); });
    weights_ = MakePool(DataType::kBFloat16, [&] { return 0.3 * normal(random) / std::sqrt(128.0); });
    values_ = MakePool(DataType::kBFloat16, [&] { return normal(random); });
    std::printf("%s\n", backend_->device_info().device.c_str());
  }

  void RunShape(const BenchShape& shape);
  void SmallCall();
  void KeptBoundaries(const BenchShape& shape);
  void Summary() const;

 private:
  /// One set of tensors of a shape.
  struct Set {
    Buffer k, w, u, g, v_new, h, slots, singles;
    std::vector<std::vector<BoundaryStore>> boundaries;
    std::vector<Sequence> sequences;
  };

  template <typename Draw>
  Pool MakePool(DataType dtype, Draw draw) {
    Pool pool{std::vector<std::byte>(kPoolElements * ByteSize(dtype)), {}, dtype};
    for (std::size_t i = 0; i < kPoolElements; ++i) testing::Encode(dtype, draw(), &pool.host[i * ByteSize(dtype)]);
    pool.device = Take(backend_->Allocate(pool.host.size(), MemoryKind::kDevice));
    Check(backend_->CopyBytes({{pool.device.data(), pool.host.data(), pool.host.size()}}, *stream_));
    return pool;
  }

  Buffer Filled(const Pool& pool, std::int64_t elements) {
    const std::size_t size = static_cast<std::size_t>(elements * ByteSize(pool.dtype));
    Buffer buffer = Take(backend_->Allocate(size, MemoryKind::kDevice));
    for (std::size_t at = 0; at < size; at += pool.host.size()) {
      Check(backend_->CopyBytes({{buffer.bytes() + at, pool.device.data(), std::min(pool.host.size(), size - at)}},
                                *stream_));
    }
    return buffer;
  }

  Set MakeSet(const BenchShape& shape, DataType states_dtype, bool all);
  double MedianTime(const RecurrenceShape& shape, std::vector<Set>& sets);
  double SampledError(const BenchShape& shape, DataType states_dtype, Set& set);
  RecurrenceShape Shape(const BenchShape& shape) const {
    return {shape.heads, shape.key_dim, shape.value_dim, shape.num_householder, 64, DataType::kBFloat16, precision_};
  }

  int repeats_;
  kernels::Precision precision_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  cudaStream_t queue_;
  Pool keys_, weights_, values_;
  double log_speedups_ = 0;
  int timed_ = 0;
  int slower_ = 0;
  int bars_ = 0;
  int bars_met_ = 0;
};

double Decay(std::int64_t token_in_chunk) { return -0.02 * static_cast<double>(token_in_chunk + 1); }

Bench::Set Bench::MakeSet(const BenchShape& shape, DataType states_dtype, bool all) {
  const std::int64_t heads = shape.heads;
  const std::int64_t state = heads * shape.key_dim * shape.value_dim;
  std::int64_t tokens = 0;
  std::int64_t boundaries = 0;
  for (const std::int64_t length : shape.tokens) {
    tokens += length * shape.num_householder;
    boundaries += (length + 63) / 64;
  }
  const auto sequences = static_cast<std::int64_t>(shape.tokens.size());
  Set set;
  set.k = Filled(keys_, tokens * heads * shape.key_dim);
  set.w = Filled(weights_, tokens * heads * shape.key_dim);
  set.u = Filled(values_, tokens * heads * shape.value_dim);
  set.g = Take(backend_->Allocate(static_cast<std::size_t>(tokens * heads * 4), MemoryKind::kDevice));
  set.v_new =
      Take(backend_->Allocate(static_cast<std::size_t>(tokens * heads * shape.value_dim * 2), MemoryKind::kDevice));
  set.slots = Take(backend_->Allocate(static_cast<std::size_t>(sequences * state * 4), MemoryKind::kDevice));
  if (all) {
    set.h = Take(
        backend_->Allocate(static_cast<std::size_t>(boundaries * state * ByteSize(states_dtype)), MemoryKind::kDevice));
  } else {
    set.singles = Take(backend_->Allocate(static_cast<std::size_t>(sequences * 3 * state * 4), MemoryKind::kDevice));
  }
  std::vector<float> g;
  g.reserve(static_cast<std::size_t>(tokens * heads));
  std::int64_t token = 0;
  std::int64_t boundary = 0;
  std::int64_t n = 0;
  set.boundaries.resize(shape.tokens.size());
  for (const std::int64_t length : shape.tokens) {
    const std::int64_t expanded = length * shape.num_householder;
    for (std::int64_t t = 0; t < expanded; ++t) {
      for (std::int64_t head = 0; head < heads; ++head) g.push_back(static_cast<float>(Decay(t % 64)));
    }
    Sequence sequence;
    sequence.length = expanded;
    sequence.k = set.k.bytes() + token * heads * shape.key_dim * 2;
    sequence.w = set.w.bytes() + token * heads * shape.key_dim * 2;
    sequence.u = set.u.bytes() + token * heads * shape.value_dim * 2;
    sequence.g = reinterpret_cast<float*>(set.g.bytes()) + token * heads;
    sequence.v_new = set.v_new.bytes() + token * heads * shape.value_dim * 2;
    sequence.slot = {set.slots.bytes() + n * state * 4, DataType::kFloat32, shape.key_dim * shape.value_dim};
    sequence.initial_state = sequence.slot;
    const std::int64_t count = (length + 63) / 64;
    if (all) {
      sequence.all_boundaries = {set.h.bytes() + boundary * state * ByteSize(states_dtype), states_dtype,
                                 shape.key_dim * shape.value_dim};
    } else {
      auto& stores = set.boundaries[static_cast<std::size_t>(n)];
      for (std::int64_t i = 0; i < std::min<std::int64_t>(3, count); ++i) {
        stores.push_back(
            {i * (count / 3),
             {set.singles.bytes() + (n * 3 + i) * state * 4, DataType::kFloat32, shape.key_dim * shape.value_dim}});
      }
      sequence.boundaries = stores;
    }
    set.sequences.push_back(sequence);
    token += expanded;
    boundary += count;
    ++n;
  }
  Check(backend_->CopyBytes({{set.g.data(), g.data(), g.size() * 4}}, *stream_));
  Check(backend_->ZeroBytes({{set.slots.data(), set.slots.size()}}, *stream_));
  Check(backend_->Synchronize(*stream_));
  return set;
}

double Bench::MedianTime(const RecurrenceShape& shape, std::vector<Set>& sets) {
  return MedianMicroseconds(queue_, repeats_, [&](int number) {
    Check(backend_->RunRecurrence(shape, sets[static_cast<std::size_t>(number) % sets.size()].sequences, *stream_));
  });
}

/// The largest relative error of two columns of one (sequence, head): every boundary sampled, all of v_new, the slot.
double Bench::SampledError(const BenchShape& shape, DataType states_dtype, Set& set) {
  const std::int64_t heads = shape.heads;
  const std::int64_t key_dim = shape.key_dim;
  const std::int64_t value_dim = shape.value_dim;
  Check(backend_->ZeroBytes(
      {{set.slots.data(), set.slots.size()}, {set.v_new.data(), set.v_new.size()}, {set.h.data(), set.h.size()}},
      *stream_));
  Check(backend_->RunRecurrence(Shape(shape), set.sequences, *stream_));
  Check(backend_->Synchronize(*stream_));

  const std::size_t n = set.sequences.size() > 2 ? 2 : 0;
  const Sequence& sequence = set.sequences[n];
  const std::int64_t head = heads - 1;
  const std::int64_t columns[2] = {0, value_dim - 3};
  const std::int64_t length = std::min<std::int64_t>(sequence.length, 8192);
  const auto first_row =
      static_cast<std::size_t>((static_cast<const std::byte*>(sequence.k) - set.k.bytes()) / (heads * key_dim * 2));
  std::vector<double> state(static_cast<std::size_t>(2 * key_dim));
  std::vector<double> x(128);
  std::vector<double> exact_v, exact_h, exact_slot, v_new, h, slot;
  std::vector<std::byte> boundary_bytes(static_cast<std::size_t>(key_dim * value_dim * ByteSize(states_dtype)));
  const auto compare_state = [&](const std::byte* from, DataType dtype, std::vector<double>& exact,
                                 std::vector<double>& actual) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(key_dim * value_dim * ByteSize(dtype)));
    Check(backend_->CopyBytes({{bytes.data(), from, bytes.size()}}, *stream_));
    Check(backend_->Synchronize(*stream_));
    for (std::int64_t key = 0; key < key_dim; ++key) {
      for (std::size_t i = 0; i < 2; ++i) {
        exact.push_back(state[static_cast<std::size_t>(key) * 2 + i]);
        actual.push_back(
            testing::Decode(dtype, &bytes[static_cast<std::size_t>((key * value_dim + columns[i]) * ByteSize(dtype))]));
      }
    }
  };
  std::vector<std::byte> v_bytes(static_cast<std::size_t>(sequence.length * heads * value_dim * 2));
  Check(backend_->CopyBytes({{v_bytes.data(), sequence.v_new, v_bytes.size()}}, *stream_));
  Check(backend_->Synchronize(*stream_));

  for (std::int64_t c = 0; c * 64 < length; ++c) {
    const std::int64_t rows = std::min<std::int64_t>(64, length - c * 64);
    if (c % shape.num_householder == 0 && c / shape.num_householder % 16 == 0) {
      const std::int64_t boundary = c / shape.num_householder;
      compare_state(static_cast<const std::byte*>(sequence.all_boundaries.data) +
                        (boundary * heads + head) * key_dim * value_dim * ByteSize(states_dtype),
                    states_dtype, exact_h, h);
    }
    const double g_last = static_cast<double>(static_cast<float>(Decay(rows - 1)));
    for (std::int64_t t = 0; t < rows; ++t) {
      const std::size_t row = (first_row + static_cast<std::size_t>(c * 64 + t)) * static_cast<std::size_t>(heads) +
                              static_cast<std::size_t>(head);
      for (std::size_t i = 0; i < 2; ++i) {
        double sum = values_[row * static_cast<std::size_t>(value_dim) + static_cast<std::size_t>(columns[i])];
        for (std::size_t key = 0; key < static_cast<std::size_t>(key_dim); ++key) {
          sum -= weights_[row * static_cast<std::size_t>(key_dim) + key] * state[key * 2 + i];
        }
        exact_v.push_back(sum);
        v_new.push_back(testing::Decode(
            DataType::kBFloat16,
            &v_bytes[static_cast<std::size_t>((((c * 64 + t) * heads + head) * value_dim + columns[i]) * 2)]));
        x[static_cast<std::size_t>(t) * 2 + i] =
            sum * std::exp2(g_last - static_cast<double>(static_cast<float>(Decay(t))));
      }
    }
    for (double& s : state) s *= std::exp2(g_last);
    for (std::int64_t t = 0; t < rows; ++t) {
      const std::size_t row = (first_row + static_cast<std::size_t>(c * 64 + t)) * static_cast<std::size_t>(heads) +
                              static_cast<std::size_t>(head);
      for (std::size_t key = 0; key < static_cast<std::size_t>(key_dim); ++key) {
        const double value = keys_[row * static_cast<std::size_t>(key_dim) + key];
        for (std::size_t i = 0; i < 2; ++i) state[key * 2 + i] += value * x[static_cast<std::size_t>(t) * 2 + i];
      }
    }
  }
  // High precision shows in what is stored in float32 only.
  const bool high = precision_ == kernels::Precision::kHigh;
  double worst = high ? 0 : testing::RelativeError(v_new, exact_v);
  if (!high || states_dtype == DataType::kFloat32) worst = std::max(worst, testing::RelativeError(h, exact_h));
  if (length == sequence.length) {
    compare_state(static_cast<const std::byte*>(sequence.slot.data) + head * key_dim * value_dim * 4,
                  DataType::kFloat32, exact_slot, slot);
    worst = std::max(worst, testing::RelativeError(slot, exact_slot));
  }
  return worst;
}

void Bench::RunShape(const BenchShape& shape) {
  double bytes = 0;
  double boundaries = 0;
  double steps = 0;
  const auto heads = static_cast<double>(shape.heads);
  const auto key_dim = static_cast<double>(shape.key_dim);
  const auto value_dim = static_cast<double>(shape.value_dim);
  for (const std::int64_t length : shape.tokens) {
    const auto expanded = static_cast<double>(length * shape.num_householder);
    bytes += expanded * heads * (4 * key_dim + 4 * value_dim + 4) + 8 * heads * key_dim * value_dim;
    boundaries += std::ceil(static_cast<double>(length) / 64) * heads * key_dim * value_dim;
    steps = std::max(steps, std::ceil(expanded / 64));
  }
  const bool latency = shape.kind == Kind::kLatency || shape.kind == Kind::kWide;
  for (int variant = 0; variant < (latency ? 3 : 2); ++variant) {
    const bool all = variant < 2;
    const DataType states_dtype = variant == 1 ? DataType::kBFloat16 : DataType::kFloat32;
    const double total =
        bytes + (all ? boundaries * static_cast<double>(ByteSize(states_dtype)) : 12 * heads * key_dim * value_dim);
    std::vector<Set> sets;
    const auto count =
        static_cast<std::size_t>(std::clamp(std::ceil(static_cast<double>(kMinRotationBytes) / total), 2.0, 16.0));
    for (std::size_t i = 0; i < count; ++i) sets.push_back(MakeSet(shape, states_dtype, all));
    const double error = all ? SampledError(shape, states_dtype, sets[0]) : 0;
    const double time = MedianTime(Shape(shape), sets);
    const double floor = total / kBytesPerMicrosecond;
    double bar = shape.kind == Kind::kMemory ? 1.2 * floor : 1.3 * floor;
    if (shape.kind == Kind::kLatency) bar = steps * (all ? 0.75 : 0.6);
    if (shape.kind == Kind::kWide) bar = steps * 1.2;
    const bool met = time <= bar;
    bars_met_ += met ? 1 : 0;
    ++bars_;
    std::printf("%c %-7s %8.1f us  floor %7.1f  ratio %5.2f  per step %6.3f us", shape.name,
                !all           ? "3 f32"
                : variant == 0 ? "f32"
                               : "bf16",
                time, floor, time / floor, time / steps);
    if (all) {
      const double triton = shape.triton_us[variant];
      std::printf("  Triton %6.0f  speed-up %5.2f  error %.1e", triton, triton / time, error);
      log_speedups_ += std::log(triton / time);
      ++timed_;
      slower_ += time > triton ? 1 : 0;
    }
    std::printf("  bar %7.1f %s\n", bar, met ? "met" : "MISSED");
    std::fflush(stdout);
  }
}

/// What it costs that a prefill keeps three boundaries of every sequence, as prefix caching does.
void Bench::KeptBoundaries(const BenchShape& shape) {
  std::vector<Set> sets;
  for (int i = 0; i < 4; ++i) sets.push_back(MakeSet(shape, DataType::kFloat32, false));
  const double keeping = MedianTime(Shape(shape), sets);
  for (Set& set : sets) {
    for (Sequence& sequence : set.sequences) sequence.boundaries = {};
  }
  const double without = MedianTime(Shape(shape), sets);
  std::printf("%c without boundaries %8.1f us, keeping three of each sequence %8.1f us: %+.1f %%\n", shape.name,
              without, keeping, 100 * (keeping / without - 1));
}

void Bench::SmallCall() {
  const BenchShape small{'-', {64}, 1, 1, 128, 128, Kind::kShort, {1, 1}};
  Set set = MakeSet(small, DataType::kFloat32, true);
  std::vector<double> times;
  for (int i = 0; i < 300; ++i) {
    const auto start = std::chrono::steady_clock::now();
    Check(backend_->RunRecurrence(Shape(small), set.sequences, *stream_));
    Check(backend_->Synchronize(*stream_));
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  std::printf("nearly empty call, launch to completion: %.1f us\n", Median(times));

  const BenchShape many{'-', Equal(256, 1), 1, 32, 128, 128, Kind::kShort, {1, 1}};
  Set batch = MakeSet(many, DataType::kFloat32, true);
  times.clear();
  for (int i = 0; i < 21; ++i) {
    const auto start = std::chrono::steady_clock::now();
    Check(backend_->RunRecurrence(Shape(many), batch.sequences, *stream_));
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    Check(backend_->Synchronize(*stream_));
  }
  std::printf("host time to queue 256 sequences: %.1f us\n", Median(times));
}

void Bench::Summary() const {
  if (timed_ == 0) return;
  std::printf("geometric mean speed-up %.2f over %d, slower on %d; bars met %d of %d\n",
              std::exp(log_speedups_ / timed_), timed_, slower_, bars_met_, bars_);
}

int Main(int argc, char** argv) {
  std::string wanted;
  int repeats = 31;
  bool only_shapes = false;
  kernels::Precision precision = kernels::Precision::kDefault;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("--shapes=", 0) == 0) {
      wanted = argument.substr(9);
      only_shapes = true;
    } else if (argument.rfind("--repeats=", 0) == 0) {
      repeats = std::max(1, std::atoi(argument.c_str() + 10));
    } else if (argument == "--precision=high") {
      precision = kernels::Precision::kHigh;
    } else {
      std::fprintf(stderr, "usage: %s [--shapes=ABC] [--repeats=N] [--precision=high]\n", argv[0]);
      return 2;
    }
  }
  Bench bench(repeats, precision);
  for (const BenchShape& shape : Shapes()) {
    if (wanted.empty() || wanted.find(shape.name) != std::string::npos) bench.RunShape(shape);
  }
  bench.Summary();
  for (const BenchShape& shape : Shapes()) {
    if (shape.name == 'C' && (wanted.empty() || wanted.find('C') != std::string::npos)) bench.KeptBoundaries(shape);
  }
  if (!only_shapes) bench.SmallCall();
  return 0;
}

}  // namespace
}  // namespace gdpcache::bench

int main(int argc, char** argv) { return gdpcache::bench::Main(argc, argv); }
