#include "server/rpc/health/health.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
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

/// "ipv4:10.1.0.7", "ipv6:[...]" or "unix" of a call's peer, which has a port or a path behind that.
std::string HostOf(const std::string& peer) { return peer.substr(0, peer.rfind(':')); }

}  // namespace

/// A Check, or a Watch. On the wire the client sends one message; this takes part in it as in a stream, so that it is
/// there before the message is and can be ended before it has come.
class HealthCall final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  HealthCall(Health& health, grpc::CallbackServerContext& context, bool watches)
      : health_(health), context_(context), watches_(watches), link_(std::make_shared<Link<HealthCall>>(this)) {
    Health::Call oldest;
    {
      const std::lock_guard lock(mutex_);  // what has been set up is visible to whoever takes it next
      oldest = health_.Add(link_, health_.unfinished_);
      StartRead(&frame_);
    }
    if (oldest != nullptr) oldest->Use([](HealthCall& call) { call.MakeRoom(Health::kMaxMomentary); });
  }

  /// Ends it: its message has not come, and `most` such calls are all that there may be.
  void MakeRoom(std::size_t most) {
    const std::lock_guard lock(mutex_);
    RefuseLocked(
        absl::StrCat(most, " calls to the health service have not sent their whole message; there may be ", most));
  }

  /// The same of a watch, whose host has so many.
  void MakeRoomForOthers(std::size_t of_host) {
    const std::lock_guard lock(mutex_);
    RefuseWatchLocked(of_host);
  }

  /// Ends it without its client's help.
  void CutOff() { context_.TryCancel(); }

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
    Leave(health_.unfinished_);  // nothing more can come
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
      Leave(health_.unfinished_);
      Leave(health_.unread_);
      if (!host_.empty()) health_.RemoveWatch(host_, link_);
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
    host_ = HostOf(context_.peer());
    const Health::Crowd crowd = health_.AddWatch(host_, link_);
    if (crowd.to_go == link_) return RefuseWatchLocked(crowd.of_host);
    if (crowd.to_go != nullptr) {  // one that was there before, and waits for nobody who comes after
      crowd.to_go->Use([&crowd](HealthCall& call) { call.MakeRoomForOthers(crowd.of_host); });
    }
    StartRead(&frame_);  // for the end: until then the client may send
    WriteNextLocked();
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

  void RefuseWatchLocked(std::size_t of_host) {
    RefuseLocked(absl::StrCat("there are ", Health::kMaxWatches, " watchers of the health, ", of_host,
                              " of them of this host; there may be ", Health::kMaxWatches));
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
    Leave(health_.unfinished_);
    if (const Health::Call oldest = health_.Add(link_, health_.unread_); oldest != nullptr) {
      oldest->Use([](HealthCall& call) { call.CutOff(); });
    }
  }

  void Leave(Health::Passing& calls) {
    const std::lock_guard lock(health_.mutex_);
    calls.Remove(link_);
  }

  Health& health_;
  grpc::CallbackServerContext& context_;
  const bool watches_;
  const Health::Call link_;

  std::mutex mutex_;  // guards what follows
  grpc::ByteBuffer frame_;
  std::optional<std::string> service_;  // once the request is there
  std::string host_;                    // of a watch, once it is one
  std::optional<Health::Status> told_;
  grpc::ByteBuffer response_;
  bool in_flight_ = false;
  bool finished_ = false;
};

Health::Call Health::Passing::Add(Call call, absl::Time now) {
  Call oldest;
  if (calls_.size() >= kMaxMomentary) {
    oldest = std::move(calls_.front().call);
    calls_.pop_front();
  }
  calls_.push_back({std::move(call), now});
  return oldest;
}

void Health::Passing::Remove(const Call& call) {
  calls_.remove_if([&call](const Entry& entry) { return entry.call == call; });
}

std::vector<Health::Call> Health::Passing::TakeOverdue(absl::Time now) {
  std::vector<Call> overdue;
  for (; due() <= now; calls_.pop_front()) overdue.push_back(std::move(calls_.front().call));
  return overdue;
}

absl::Time Health::Passing::due() const {
  return calls_.size() > most_ ? calls_.front().since + kMoment : absl::InfiniteFuture();
}

Health::Health(RefusalMetrics& refusals, const cache::Clock& clock)
    : refusals_(refusals), clock_(clock), overdue_(clock, [this] { return EndOverdue(); }) {}

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

Health::Call Health::Add(const Call& call, Passing& calls) {
  Call oldest;
  absl::Time due;
  {
    const std::lock_guard lock(mutex_);
    oldest = calls.Add(call, clock_.Now());
    due = calls.due();
  }
  overdue_.Expect(due);
  return oldest;
}

Health::Crowd Health::AddWatch(const std::string& host, const Call& call) {
  const std::lock_guard lock(mutex_);
  Crowd crowd;
  if (watch_count_ >= kMaxWatches) {
    const auto most = std::max_element(watches_.begin(), watches_.end(),
                                       [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    crowd.of_host = most->second.size();
    const auto own = watches_.find(host);
    if (own != watches_.end() && own->second.size() >= crowd.of_host) {
      crowd.to_go = call;
      return crowd;
    }
    crowd.to_go = most->second.back();
    RemoveWatchLocked(most->first, crowd.to_go);
  }
  watches_[host].push_back(call);
  ++watch_count_;
  return crowd;
}

void Health::RemoveWatch(const std::string& host, const Call& call) {
  const std::lock_guard lock(mutex_);
  RemoveWatchLocked(host, call);
}

void Health::RemoveWatchLocked(const std::string& host, const Call& call) {
  const auto found = watches_.find(host);
  if (found == watches_.end()) return;
  watch_count_ -= found->second.remove(call);
  if (found->second.empty()) watches_.erase(found);
}

absl::Time Health::EndOverdue() {
  std::vector<Call> unfinished;
  std::vector<Call> unread;
  absl::Time next;
  {
    const std::lock_guard lock(mutex_);
    const absl::Time now = clock_.Now();
    unfinished = unfinished_.TakeOverdue(now);
    unread = unread_.TakeOverdue(now);
    next = std::min(unfinished_.due(), unread_.due());
  }
  for (const Call& call : unfinished) call->Use([](HealthCall& held) { held.MakeRoom(kMaxUnfinished); });
  for (const Call& call : unread) call->Use([](HealthCall& held) { held.CutOff(); });
  return next;
}

void Health::WakeWatches() const {
  std::vector<Call> watches;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [host, calls] : watches_) watches.insert(watches.end(), calls.begin(), calls.end());
  }
  for (const Call& watch : watches) {
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
