// The CPU recurrence against what the same cores do elsewhere: OpenBLAS's single-precision product at the same inner
// sizes, and memcpy for one-token batches, which only pass over their states. Each benchmark measures its yardstick in
// the same run, so that the ratio means something on a machine that has other work, too.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iostream>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "benchmark/benchmark.h"
#include "kernels/backend.h"

extern "C" {
// OpenBLAS by its Fortran names: column-major.
void sgemm_(const char* transpose_a, const char* transpose_b, const int* m, const int* n, const int* k,
            const float* alpha, const float* a, const int* lda, const float* b, const int* ldb, const float* beta,
            float* c, const int* ldc);
void openblas_set_num_threads(int threads);
}

namespace gdpcache {
namespace {

using kernels::DataType;

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << '\n';
  std::abort();
}

/// How long something took: by the clock, and in processor time of all threads together, which other work on the
/// machine disturbs less.
struct Duration {
  double wall = 1e9;
  double processor = 1e9;
};

double ProcessorSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Runs `work` on each of `threads` threads at the same time.
Duration Measure(int threads, absl::FunctionRef<void(int thread)> work) {
  const auto start = std::chrono::steady_clock::now();
  const double processor_start = ProcessorSeconds();
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back([&, thread] { work(thread); });
  work(0);
  for (std::thread& other : others) other.join();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
          ProcessorSeconds() - processor_start};
}

/// The fastest of several runs, for each of the two times.
void KeepFastest(Duration& fastest, const Duration& run) {
  fastest.wall = std::min(fastest.wall, run.wall);
  fastest.processor = std::min(fastest.processor, run.processor);
}

Duration FastestOfFive(int threads, absl::FunctionRef<void(int thread)> work) {
  Duration fastest;
  for (int round = 0; round < 5; ++round) KeepFastest(fastest, Measure(threads, work));
  return fastest;
}

/// The recurrence's two products, [rows x K] . [K x V] and [K x rows] . [rows x V], in OpenBLAS: seconds for one of
/// each on every thread.
Duration Sgemm(int threads, int rows, int key_dim, int value_dim) {
  openblas_set_num_threads(1);
  constexpr int kRepeats = 200;
  Duration duration = FastestOfFive(threads, [&](int /*thread*/) {
    std::vector<float> w(static_cast<std::size_t>(rows * key_dim), 0.01F);
    std::vector<float> x(static_cast<std::size_t>(rows * value_dim), 0.01F);
    std::vector<float> state(static_cast<std::size_t>(key_dim * value_dim), 0.01F);
    const float one = 1.0F;
    const float minus = -0.001F;
    for (int i = 0; i < kRepeats; ++i) {
      // Row-major C = A . B is column-major C^T = B^T . A^T.
      sgemm_("N", "N", &value_dim, &rows, &key_dim, &minus, state.data(), &value_dim, w.data(), &key_dim, &one,
             x.data(), &value_dim);
      sgemm_("N", "T", &value_dim, &key_dim, &rows, &minus, x.data(), &value_dim, w.data(), &key_dim, &one,
             state.data(), &value_dim);
    }
    benchmark::DoNotOptimize(state.data());
  });
  duration.wall /= kRepeats;
  duration.processor /= kRepeats;
  return duration;
}

constexpr std::size_t kCopiedBytes = std::size_t{128} << 20;

/// memcpy of kCopiedBytes between blocks far larger than the caches, shared out over the threads.
Duration Memcpy(int threads) {
  const std::size_t share = kCopiedBytes / static_cast<std::size_t>(threads);
  const std::vector<char> from(kCopiedBytes, 1);
  std::vector<char> to(kCopiedBytes, 2);
  return FastestOfFive(threads, [&](int thread) {
    const std::size_t begin = static_cast<std::size_t>(thread) * share;
    std::memcpy(to.data() + begin, from.data() + begin, share);
  });
}

/// A batch of equal sequences with a dense float32 cache, updated in place.
class Batch {
 public:
  Batch(kernels::Backend& backend, const kernels::RecurrenceShape& shape, std::int64_t sequences, std::int64_t length)
      : backend_(backend), shape_(shape) {
    auto stream = backend.CreateStream();
    Require(stream.status());
    stream_ = *std::move(stream);
    const std::int64_t rows = sequences * length * shape.heads;
    const std::int64_t state_elements = shape.heads * shape.key_dim * shape.value_dim;
    std::byte* const k = Allocate(rows * shape.key_dim * ByteSize(shape.input_dtype));
    std::byte* const w = Allocate(rows * shape.key_dim * ByteSize(shape.input_dtype));
    std::byte* const u = Allocate(rows * shape.value_dim * ByteSize(shape.input_dtype));
    std::byte* const v_new = Allocate(rows * shape.value_dim * ByteSize(shape.input_dtype));
    std::byte* const g = Allocate(rows * 4);
    std::byte* const slots = Allocate(sequences * state_elements * 4);
    for (std::int64_t n = 0; n < sequences; ++n) {
      const std::int64_t row = n * length * shape.heads;
      kernels::Sequence sequence;
      sequence.length = length;
      sequence.k = k + row * shape.key_dim * ByteSize(shape.input_dtype);
      sequence.w = w + row * shape.key_dim * ByteSize(shape.input_dtype);
      sequence.u = u + row * shape.value_dim * ByteSize(shape.input_dtype);
      sequence.v_new = v_new + row * shape.value_dim * ByteSize(shape.input_dtype);
      sequence.g = reinterpret_cast<const float*>(g) + row;
      sequence.slot = {slots + n * state_elements * 4, DataType::kFloat32, shape.key_dim * shape.value_dim};
      sequence.initial_state = sequence.slot;
      sequences_.push_back(sequence);
    }
  }

  void Run() { Require(backend_.RunRecurrence(shape_, sequences_, *stream_)); }

 private:
  /// Zeros: they take as long as other numbers, and never leave the range of normal ones however often the batch runs.
  std::byte* Allocate(std::int64_t bytes) {
    auto buffer = backend_.Allocate(static_cast<std::size_t>(bytes), kernels::MemoryKind::kDevice);
    Require(buffer.status());
    Require(backend_.ZeroBytes({{buffer->data(), buffer->size()}}, *stream_));
    buffers_.push_back(*std::move(buffer));
    return buffers_.back().bytes();
  }

  kernels::Backend& backend_;
  const kernels::RecurrenceShape shape_;
  std::unique_ptr<kernels::Stream> stream_;
  std::vector<kernels::Buffer> buffers_;
  std::vector<kernels::Sequence> sequences_;
};

std::unique_ptr<kernels::Backend> CpuBackend(int threads) {
  auto backend = kernels::CreateBackend({.choice = kernels::BackendChoice::kCpu, .cpu_threads = threads});
  Require(backend.status());
  return *std::move(backend);
}

/// Runs the batch as often as the benchmark asks for; returns the fastest run.
Duration RunAll(benchmark::State& state, Batch& batch) {
  Duration fastest;
  for (auto iteration : state) {
    const Duration run = Measure(1, [&](int /*thread*/) { batch.Run(); });
    KeepFastest(fastest, run);
    state.SetIterationTime(run.wall);
  }
  return fastest;
}

/// Reports `work` done in the time of `run`, and the yardstick's.
void Report(benchmark::State& state, const char* unit, double work, const Duration& run, const char* yardstick,
            double yardstick_work, const Duration& yardstick_run) {
  state.counters[unit] = work / run.wall * 1e-9;
  state.counters[yardstick] = yardstick_work / yardstick_run.wall * 1e-9;
  state.counters["ratio"] = work / run.wall / (yardstick_work / yardstick_run.wall);
  state.counters["ratio of processor time"] = work / run.processor / (yardstick_work / yardstick_run.processor);
}

void Prefill(benchmark::State& state) {
  const auto threads = static_cast<int>(state.range(0));
  const std::int64_t key_dim = state.range(1);
  const std::int64_t value_dim = state.range(2);
  const auto dtype = static_cast<DataType>(state.range(3));
  constexpr std::int64_t kChunk = 64;
  constexpr std::int64_t kLength = 1024;
  constexpr std::int64_t kHeads = 16;
  const std::unique_ptr<kernels::Backend> backend = CpuBackend(threads);
  Batch batch(*backend,
              {.heads = kHeads,
               .key_dim = key_dim,
               .value_dim = value_dim,
               .num_householder = 1,
               .chunk_size = kChunk,
               .input_dtype = dtype},
              1, kLength);
  const auto sgemm = [&] { return Sgemm(threads, kChunk, static_cast<int>(key_dim), static_cast<int>(value_dim)); };
  Duration yardstick = sgemm();
  const Duration run = RunAll(state, batch);
  KeepFastest(yardstick, sgemm());
  const double flop_per_token = 4.0 * static_cast<double>(key_dim * value_dim);
  Report(state, "GFLOP/s", flop_per_token * kLength * kHeads, run, "sgemm GFLOP/s", flop_per_token * kChunk * threads,
         yardstick);
  state.SetLabel(backend->device_info().device);
}

void Decode(benchmark::State& state) {
  const auto threads = static_cast<int>(state.range(0));
  const std::int64_t num_householder = state.range(1);
  constexpr std::int64_t kSequences = 64;
  constexpr std::int64_t kHeads = 32;
  constexpr std::int64_t kDim = 128;
  const std::unique_ptr<kernels::Backend> backend = CpuBackend(threads);
  Batch batch(*backend,
              {.heads = kHeads,
               .key_dim = kDim,
               .value_dim = kDim,
               .num_householder = num_householder,
               .chunk_size = 64,
               .input_dtype = DataType::kBFloat16},
              kSequences, num_householder);
  Duration yardstick = Memcpy(threads);
  const Duration run = RunAll(state, batch);
  KeepFastest(yardstick, Memcpy(threads));
  // Read and written, of the states in one case and of the copied block in the other.
  Report(state, "GB/s", 2.0 * kSequences * kHeads * kDim * kDim * sizeof(float), run, "memcpy GB/s", 2.0 * kCopiedBytes,
         yardstick);
  state.SetLabel(backend->device_info().device);
}

BENCHMARK(Prefill)
    ->ArgNames({"threads", "K", "V", "dtype"})
    ->ArgsProduct({{1, 2}, {128}, {128}, {static_cast<std::int64_t>(DataType::kBFloat16)}})
    ->Args({1, 128, 128, static_cast<std::int64_t>(DataType::kFloat32)})
    ->Args({1, 64, 64, static_cast<std::int64_t>(DataType::kBFloat16)})
    ->Args({1, 128, 64, static_cast<std::int64_t>(DataType::kBFloat16)})
    ->Args({1, 256, 256, static_cast<std::int64_t>(DataType::kBFloat16)})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

BENCHMARK(Decode)
    ->ArgNames({"threads", "M"})
    ->ArgsProduct({{1, 2}, {1, 3}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace gdpcache

BENCHMARK_MAIN();
