#include "tests/unit/kernels/backend_test.h"

#include <map>
#include <utility>

#include "absl/status/statusor.h"

namespace gdpcache::testing {

void BackendTest::SetUp() {
  static auto& backends = *new std::map<kernels::BackendChoice, absl::StatusOr<std::unique_ptr<kernels::Backend>>>();
  auto found = backends.find(GetParam());
  if (found == backends.end()) {
    // Three threads, so that work is shared out even on a small machine.
    found = backends.emplace(GetParam(), kernels::CreateBackend({.choice = GetParam(), .cpu_threads = 3})).first;
  }
  const auto& backend = found->second;
  if (absl::IsUnimplemented(backend.status()) || absl::IsUnavailable(backend.status())) {
    GTEST_SKIP() << backend.status();
  }
  ASSERT_TRUE(backend.ok()) << backend.status();
  backend_ = backend->get();
  auto stream = backend_->CreateStream();
  ASSERT_TRUE(stream.ok()) << stream.status();
  stream_ = *std::move(stream);
}

}  // namespace gdpcache::testing
