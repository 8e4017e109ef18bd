#include "tests/unit/kernels/backend_test.h"

#include <map>
#include <utility>

#include "absl/status/statusor.h"

namespace gdpcache::testing {

void BackendTest::SetUp() {
  static auto& backends = *new std::map<kernels::BackendChoice, absl::StatusOr<std::unique_ptr<kernels::Backend>>>();
  const kernels::BackendChoice choice = GetParam().choice;
  auto found = backends.find(choice);
  if (found == backends.end()) {
    // Three threads, so that work is shared out even on a small machine.
    found = backends.emplace(choice, kernels::CreateBackend({.choice = choice, .cpu_threads = 3})).first;
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
