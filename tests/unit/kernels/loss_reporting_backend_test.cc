#include "kernels/loss_reporting_backend.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/fault_injecting_backend.h"
#include "tests/support/heap_backend.h"

namespace gdpcache::kernels {
namespace {

using Operation = test::FaultInjectingBackend::Operation;

class LossReportingBackendTest : public ::testing::Test {
 protected:
  /// Every way to call the backend, with what the fault injector counts it as.
  std::vector<std::pair<Operation, std::function<absl::Status()>>> Calls() {
    Stream& stream = *stream_;
    return {
        {Operation::kAllocate, [&] { return backend_.Allocate(64, MemoryKind::kDevice).status(); }},
        {Operation::kCreateStream, [&] { return backend_.CreateStream().status(); }},
        {Operation::kRunRecurrence, [&] { return backend_.RunRecurrence({}, {}, stream); }},
        {Operation::kCopyStates, [&] { return backend_.CopyStates({}, {}, stream); }},
        {Operation::kCopyBytes, [&] { return backend_.CopyBytes({}, stream); }},
        {Operation::kCopyBytes, [&] { return backend_.CopyBytesAhead({}, stream); }},
        {Operation::kCopyBytes, [&] { return backend_.CopyBytesAside({}, stream); }},
        {Operation::kZeroBytes, [&] { return backend_.ZeroBytes({}, stream); }},
        {Operation::kFindNonFinite, [&] { return backend_.FindNonFinite({}, stream).status(); }},
        {Operation::kRecord, [&] { return backend_.Record(stream).status(); }},
        {Operation::kSynchronize, [&] { return backend_.Synchronize(stream); }},
        {Operation::kSynchronize, [&] { return backend_.Wait(*event_); }},
        {Operation::kQuery, [&] { return backend_.HasHappened(*event_).status(); }},
        {Operation::kAwait, [&] { return backend_.Await(*event_, stream); }},
    };
  }

  test::HeapBackend heap_;
  test::FaultInjectingBackend faulty_{heap_};
  std::vector<absl::Status> reports_;
  LossReportingBackend backend_{faulty_, [this](const absl::Status& status) { reports_.push_back(status); }};
  std::unique_ptr<Stream> stream_ = backend_.CreateStream().value();
  std::unique_ptr<Event> event_ = backend_.Record(*stream_).value();
};

TEST_F(LossReportingBackendTest, TheLossIsReportedWhateverOperationFindsIt) {
  const absl::Status lost = absl::UnavailableError("fallen off the bus");
  for (const auto& [operation, call] : Calls()) {
    SCOPED_TRACE(static_cast<int>(operation));
    reports_.clear();
    faulty_.FailAfter(operation, 0, lost);
    EXPECT_EQ(call(), lost);
    EXPECT_EQ(reports_, std::vector<absl::Status>{lost});
    call().IgnoreError();  // the heap computes nothing and says so
    EXPECT_EQ(reports_.size(), 1);
  }
}

TEST_F(LossReportingBackendTest, OtherErrorsAreTheCallersUnlessAWaitFails) {
  for (const absl::Status& error : {absl::ResourceExhaustedError("full"), absl::InternalError("no such kernel")}) {
    for (const auto& [operation, call] : Calls()) {
      SCOPED_TRACE(static_cast<int>(operation));
      reports_.clear();
      faulty_.FailAfter(operation, 0, error);
      const bool waits = operation == Operation::kSynchronize || operation == Operation::kQuery;
      EXPECT_EQ(call(), waits ? absl::UnavailableError(error.message()) : error);
      EXPECT_EQ(reports_.size(), waits ? 1 : 0);
    }
  }
}

}  // namespace
}  // namespace gdpcache::kernels
