#ifndef GDPCACHE_TESTS_BENCH_CUDA_TIMING_H_
#define GDPCACHE_TESTS_BENCH_CUDA_TIMING_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/command/bench/statistics.h"

/// What benchmarks of single operations of the CUDA backend share. Whatever fails ends the program.
namespace gdpcache::bench {

inline void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

inline void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::exit(1);
}

template <typename T>
T Take(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

/// The median time of `repeats` calls of `work` (given its number), microseconds by CUDA events on `queue`. The calls
/// are queued one behind the other, so that the host's part of a call hides behind the device's part of the one
/// before; a few more warm up.
inline double MedianMicroseconds(cudaStream_t queue, int repeats, absl::FunctionRef<void(int)> work) {
  constexpr int kWarmUp = 12;  // a stream has all its scratch memory then
  std::vector<std::pair<cudaEvent_t, cudaEvent_t>> events(static_cast<std::size_t>(repeats));
  for (auto& [start, stop] : events) {
    Check(cudaEventCreate(&start));
    Check(cudaEventCreate(&stop));
  }
  for (int i = 0; i < kWarmUp; ++i) work(i);
  int number = kWarmUp;
  for (auto& [start, stop] : events) {
    Check(cudaEventRecord(start, queue));
    work(number++);
    Check(cudaEventRecord(stop, queue));
  }
  Check(cudaStreamSynchronize(queue));
  std::vector<double> times;
  for (auto& [start, stop] : events) {
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, start, stop));
    times.push_back(static_cast<double>(milliseconds) * 1000);
    Check(cudaEventDestroy(start));
    Check(cudaEventDestroy(stop));
  }
  return Median(times);
}

}  // namespace gdpcache::bench

#endif  // GDPCACHE_TESTS_BENCH_CUDA_TIMING_H_
