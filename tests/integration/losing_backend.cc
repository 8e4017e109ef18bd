// In the place of kernels/backend.cc: the CPU backend, until the first copy loses the device.

#include <memory>

#include "kernels/backend.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/fault_injecting_backend.h"

namespace gdpcache::kernels {

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options) {
  absl::StatusOr<std::unique_ptr<CpuBackend>> cpu = CpuBackend::Create(options.cpu_threads);
  if (!cpu.ok()) return cpu.status();
  static const std::unique_ptr<CpuBackend> kReal = *std::move(cpu);  // one server, one backend
  auto losing = std::make_unique<test::FaultInjectingBackend>(*kReal);
  losing->FailAfter(test::FaultInjectingBackend::Operation::kCopyBytes, 0,
                    absl::UnavailableError("fallen off the bus"));
  return losing;
}

}  // namespace gdpcache::kernels
