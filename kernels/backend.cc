#include "kernels/backend.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "kernels/cpu/cpu_backend.h"
#ifdef GDPCACHE_HAVE_CUDA
#include "kernels/cuda/cuda_backend.h"
#endif

namespace gdpcache::kernels {
namespace {

absl::StatusOr<std::unique_ptr<Backend>> CreateCpu(const BackendOptions& options) {
  absl::StatusOr<std::unique_ptr<CpuBackend>> cpu = CpuBackend::Create(options.cpu_threads);
  if (!cpu.ok()) return cpu.status();
  return std::unique_ptr<Backend>(*std::move(cpu));
}

absl::StatusOr<std::unique_ptr<Backend>> CreateCuda(const BackendOptions& options) {
#ifdef GDPCACHE_HAVE_CUDA
  return CreateCudaBackend(options.cuda_device);
#else
  static_cast<void>(options);
  return absl::UnimplementedError("this build has no CUDA backend");
#endif
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options) {
  switch (options.choice) {
    case BackendChoice::kCpu:
      return CreateCpu(options);
    case BackendChoice::kCuda:
      return CreateCuda(options);
    case BackendChoice::kAuto:
      break;
  }
  absl::StatusOr<std::unique_ptr<Backend>> cuda = CreateCuda(options);
  const bool absent = absl::IsUnimplemented(cuda.status()) || absl::IsUnavailable(cuda.status());
  return absent ? CreateCpu(options) : std::move(cuda);
}

}  // namespace gdpcache::kernels
