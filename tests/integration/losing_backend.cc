// In the place of kernels/backend.cc: the CPU backend, until the first copy loses the device; or the first allocation,
// if GDPCACHE_LOSE_AT says "allocation".

#include <cstdlib>
#include <memory>

#include "absl/strings/string_view.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/fault_injecting_backend.h"

namespace gdpcache::kernels {

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options) {
  absl::StatusOr<std::unique_ptr<CpuBackend>> cpu = CpuBackend::Create(options.cpu_threads);
  if (!cpu.ok()) return cpu.status();
  static const std::unique_ptr<CpuBackend> kReal = *std::move(cpu);  // one server, one backend
  auto losing = std::make_unique<test::FaultInjectingBackend>(*kReal);
  using Operation = test::FaultInjectingBackend::Operation;
  const char* const lose_at = std::getenv("GDPCACHE_LOSE_AT");
  const bool at_allocation = lose_at != nullptr && absl::string_view(lose_at) == "allocation";
  losing->FailForEverAfter(at_allocation ? Operation::kAllocate : Operation::kCopyBytes, 0,
                           absl::UnavailableError("fallen off the bus"));
  return losing;
}

}  // namespace gdpcache::kernels
