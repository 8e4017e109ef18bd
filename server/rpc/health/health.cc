#include "server/rpc/health/health.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/cache/errors.h"
#include "server/rpc/status.h"

namespace gdpcache::rpc {
namespace {

using Wire = google::protobuf::internal::WireFormatLite;

constexpr int kMaxServiceBytes = 200;  // as gRPC's own
constexpr absl::Duration kRetryAfter = absl::Seconds(1);

/// The service that a HealthCheckRequest { string service = 1; } names; nothing if it is none.
std::optional<std::string> DecodeRequest(grpc::ByteBuffer& bytes) {
  grpc::ProtoBufferReader reader(&bytes);
  if (!reader.status().ok()) return std::nullopt;
  google::protobuf::io::CodedInputStream input(&reader);
  std::string service;
  while (const std::uint32_t tag = input.ReadTag()) {
    if (tag != Wire::MakeTag(1, Wire::WIRETYPE_LENGTH_DELIMITED)) {
      if (!Wire::SkipField(&input, tag)) return std::nullopt;
      continue;
    }
    int size = 0;
    if (!input.ReadVarintSizeAsInt(&size) || size > kMaxServiceBytes || !input.ReadString(&service, size)) {
      return std::nullopt;
    }
  }
  if (!input.ConsumedEntireMessage()) return std::nullopt;
  return service;
}

/// HealthCheckResponse { ServingStatus status = 1; }
grpc::ByteBuffer EncodeResponse(Health::Status status) {
  const std::array<std::uint8_t, 2> bytes = {Wire::MakeTag(1, Wire::WIRETYPE_VARINT),
                                             static_cast<std::uint8_t>(status)};
  const grpc::Slice slice(bytes.data(), bytes.size());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace

/// A Check, or a Watch. On the wire the client sends one message; this takes part in it as in a stream, so that it is
/// there before the message is and can be ended before it has come.
class HealthCall final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  HealthCall(Health& health, grpc::CallbackServerContext& context, bool watches)
      : health_(health), context_(context), watches_(watches), link_(std::make_shared<Link<HealthCall>>(this)) {
    std::shared_ptr<Link<HealthCall>> oldest;
    {
      const std::lock_guard lock(mutex_);  // what has been set up is visible to whoever takes it next
      const std::lock_guard health_lock(health_.mutex_);
      if (health_.unfinished_.size() >= Health::kMaxUnfinished) {
        oldest = std::move(health_.unfinished_.front());
        health_.unfinished_.pop_front();
      }
      health_.unfinished_.push_back(link_);
      StartRead(&frame_);
    }
    if (oldest == nullptr) return;
    oldest->Use([](HealthCall& call) { call.MakeRoom(); });
  }

  /// The status may have changed.
  void Wake() {
    const std::lock_guard lock(mutex_);
    WriteNextLocked();
  }

 private:
  void OnReadDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    if (!service_.has_value()) return TakeRequestLocked(ok);
    if (ok) return FinishLocked({grpc::StatusCode::INVALID_ARGUMENT, "there is a second message"});
    LeaveLocked(health_.unfinished_);  // nothing more can come
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    in_flight_ = false;
    if (ok) WriteNextLocked();
  }

  void OnCancel() override {
    const std::lock_guard lock(mutex_);
    FinishLocked({grpc::StatusCode::CANCELLED, "the client has given up"});
  }

  void OnDone() override {
    {
      const std::lock_guard lock(mutex_);
      LeaveLocked(health_.unfinished_);
      LeaveLocked(health_.unread_);
      LeaveLocked(health_.watches_);
    }
    link_->Cut();
    delete this;
  }

  void TakeRequestLocked(bool ok) {
    service_ = ok ? DecodeRequest(frame_) : std::nullopt;
    frame_.Clear();
    if (!service_.has_value()) return FinishLocked({grpc::StatusCode::INVALID_ARGUMENT, "there is no request"});
    if (watches_) return WatchLocked();
    const Health::Status status = health_.Get(*service_);
    if (status == Health::Status::kServiceUnknown) {
      return FinishLocked({grpc::StatusCode::NOT_FOUND, "service name unknown"});
    }
    response_ = EncodeResponse(status);
    EndLocked();
    StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
  }

  void WatchLocked() {
    if (!AddWatch()) {
      return RefuseLocked(absl::StrCat("there are ", Health::kMaxWatches, " watchers of the health; there may be ",
                                       Health::kMaxWatches));
    }
    StartRead(&frame_);  // for the end: until then the client may send
    WriteNextLocked();
  }

  bool AddWatch() {
    const std::lock_guard lock(health_.mutex_);
    if (health_.watches_.size() >= Health::kMaxWatches) return false;
    health_.watches_.push_back(link_);
    return true;
  }

  void WriteNextLocked() {
    if (finished_ || in_flight_ || !service_.has_value()) return;
    const Health::Status status = health_.Get(*service_);
    if (told_ == status) return;
    told_ = status;
    response_ = EncodeResponse(status);
    in_flight_ = true;
    StartWrite(&response_);
  }

  void MakeRoom() {
    const std::lock_guard lock(mutex_);
    RefuseLocked(absl::StrCat(Health::kMaxUnfinished,
                              " calls to the health service have not sent their whole message; there may be ",
                              Health::kMaxUnfinished));
  }

  void RefuseLocked(absl::string_view why) {
    if (finished_) return;
    const absl::Status status = cache::Exhausted(why, kRetryAfter);
    health_.refusals_.Count(status);
    FinishLocked(ToGrpcStatus(status));
  }

  void FinishLocked(const grpc::Status& status) {
    if (finished_) return;
    EndLocked();
    Finish(status);
  }

  /// Its status is all that comes now.
  void EndLocked() {
    finished_ = true;
    std::shared_ptr<Link<HealthCall>> oldest;
    {
      const std::lock_guard lock(health_.mutex_);
      health_.unfinished_.remove(link_);
      health_.unread_.push_back(link_);
      if (health_.unread_.size() > Health::kMaxUnread) {
        oldest = std::move(health_.unread_.front());
        health_.unread_.pop_front();
      }
    }
    if (oldest == nullptr) return;
    oldest->Use([](HealthCall& call) { call.context_.TryCancel(); });
  }

  void LeaveLocked(Health::Calls& calls) {
    const std::lock_guard lock(health_.mutex_);
    calls.remove(link_);
  }

  Health& health_;
  grpc::CallbackServerContext& context_;
  const bool watches_;
  const std::shared_ptr<Link<HealthCall>> link_;

  std::mutex mutex_;  // guards what follows
  grpc::ByteBuffer frame_;
  std::optional<std::string> service_;  // once the request is there
  std::optional<Health::Status> told_;
  grpc::ByteBuffer response_;
  bool in_flight_ = false;
  bool finished_ = false;
};

void Health::Set(const std::string& service, bool serving) {
  {
    const std::lock_guard lock(mutex_);
    serving_[service] = serving;
  }
  WakeWatches();
}

void Health::SetNotServing() {
  {
    const std::lock_guard lock(mutex_);
    for (auto& [service, serving] : serving_) serving = false;
  }
  WakeWatches();
}

Health::Status Health::Get(absl::string_view service) const {
  const std::lock_guard lock(mutex_);
  const auto found = serving_.find(service);
  if (found == serving_.end()) return Status::kServiceUnknown;
  return found->second ? Status::kServing : Status::kNotServing;
}

void Health::WakeWatches() const {
  Calls watches;
  {
    const std::lock_guard lock(mutex_);
    watches = watches_;
  }
  for (const std::shared_ptr<Link<HealthCall>>& watch : watches) {
    watch->Use([](HealthCall& call) { call.Wake(); });
  }
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* HandleHealthCheck(Health& health,
                                                                               grpc::CallbackServerContext* context) {
  return new HealthCall(health, *context, /*watches=*/false);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* HandleHealthWatch(Health& health,
                                                                               grpc::CallbackServerContext* context) {
  return new HealthCall(health, *context, /*watches=*/true);
}

}  // namespace gdpcache::rpc
