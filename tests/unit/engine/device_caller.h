#ifndef GDPCACHE_TESTS_UNIT_ENGINE_DEVICE_CALLER_H_
#define GDPCACHE_TESTS_UNIT_ENGINE_DEVICE_CALLER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/cache/memory/region.h"
#include "tests/reference/problem.h"
#include "tests/unit/engine/engine_world.h"

/// Calls whose tensors lie in the memory of a device that has a thread of its own: Memory::kAsynchronous.
namespace gdpcache::engine {

using Result = absl::StatusOr<PrefillResult>;

inline testing::Problem OneSequence(std::int64_t rows, std::int64_t slot, std::uint64_t seed) {
  return Sequences({rows}, {slot}, seed);
}

/// A client on the server's device: its tensors lie there behind each other, v_new last, and it has two events.
class DeviceCaller {
 public:
  DeviceCaller(World& world, std::shared_ptr<cache::Session> session, testing::Problem problem)
      : world_(world), session_(std::move(session)), problem_(std::move(problem)) {
    std::vector<std::pair<TensorArgument*, const testing::HostTensor*>> inputs = {
        {&request_.k, &problem_.k}, {&request_.w, &problem_.w}, {&request_.u, &problem_.u}, {&request_.g, &problem_.g}};
    constexpr std::size_t kAlignment = 64;
    constexpr std::size_t kSize = std::size_t{1} << 16;
    buffer_ = *world.separate.Allocate(kSize, kernels::MemoryKind::kDevice);
    memory_ = std::make_shared<cache::Region>(cache::RegionKind::kCuda, buffer_.data(), kSize, [] {});
    done_ = world.device->MakeEvent(true);
    done_region_ = std::make_shared<cache::Region>(cache::RegionKind::kCudaEvent, done_, 0, [] {});
    request_ = RequestOf(problem_, TensorTransport::kInline);
    std::uint64_t at = 0;
    for (const auto& [argument, tensor] : inputs) {
      argument->data = nullptr;
      argument->data_bytes = 0;
      argument->place = {memory_.get(), at};
      std::memcpy(test::SeparateMemoryBackend::HostAddress(memory_->At(at)), tensor->bytes.data(),
                  tensor->bytes.size());
      at += (tensor->bytes.size() + kAlignment - 1) / kAlignment * kAlignment;
    }
    request_.states = StateSelectionMode::kNone;
    request_.states_dtype = ElementType::kUnspecified;
    request_.output_final_state = false;
    request_.outputs.v_new = {memory_.get(), at};
    request_.done_event = done_region_.get();
    request_.regions = {memory_, done_region_};
  }

  /// Lets the inputs be there only when `event` has happened.
  void SetReadyEvent(void* event) {
    ready_region_ = std::make_shared<cache::Region>(cache::RegionKind::kCudaEvent, event, 0, [] {});
    request_.ready_event = ready_region_.get();
    request_.regions.push_back(ready_region_);
  }

  /// Has a flag set in the place of the event.
  void SetDoneFlag(std::uint32_t value) {
    flag_region_ = std::make_shared<cache::Region>(cache::RegionKind::kSystem, words_.data(), sizeof(words_), [] {});
    request_.done_flag = {.place = {flag_region_.get(), sizeof(std::uint32_t)}, .value = value};
    request_.done_event = nullptr;
    request_.regions.push_back(flag_region_);
  }
  std::uint32_t flag() { return std::atomic_ref(words_[1]).load(std::memory_order_acquire); }
  bool NothingElseIsWritten() const { return words_[0] == 0 && words_[2] == 0; }

  const cache::Region* memory() const { return memory_.get(); }
  const cache::Region* done_event() const { return done_region_.get(); }
  PrefillRequest& request() { return request_; }
  void LetGoOfSession() { session_.reset(); }
  bool IsDone() const { return world_.device->HasHappened(done_); }
  std::int64_t users() const { return memory_.use_count() - 2; }  // beside this and its request

  void SetDeadline(absl::Time deadline) { deadline_ = deadline; }
  /// After Make.
  Call& call() { return *call_; }
  void Cancel() { call_->Cancel(absl::CancelledError("enough")); }
  void Make() {
    auto made = world_.engine->Prefill({.session = session_, .deadline = deadline_}, request_,
                                       [this](Result result) { outcome_->Set(std::move(result)); });
    if (!made.ok()) return outcome_->Set(made.status());
    call_ = *std::move(made);
  }
  void Start() {
    if (call_ == nullptr) Make();
    if (call_ != nullptr) call_->Start();
  }
  bool IsAnswered() const { return outcome_->IsSet(); }
  Result Take() {
    Result result = outcome_->Take();
    outcome_ = std::make_unique<Outcome<Result>>();
    call_.reset();
    return result;
  }
  Result Run() {
    Start();
    return Take();
  }

 private:
  World& world_;
  std::shared_ptr<cache::Session> session_;
  const testing::Problem problem_;
  kernels::Buffer buffer_;
  std::shared_ptr<cache::Region> memory_;
  void* done_ = nullptr;
  std::shared_ptr<cache::Region> done_region_;
  std::shared_ptr<cache::Region> ready_region_;
  std::array<std::uint32_t, 3> words_ = {};
  std::shared_ptr<cache::Region> flag_region_;
  PrefillRequest request_;
  absl::Time deadline_ = absl::InfiniteFuture();
  std::unique_ptr<Outcome<Result>> outcome_ = std::make_unique<Outcome<Result>>();
  std::shared_ptr<UnaryPrefill> call_;
};

}  // namespace gdpcache::engine

#endif  // GDPCACHE_TESTS_UNIT_ENGINE_DEVICE_CALLER_H_
