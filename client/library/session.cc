#include "gdpcache/session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/library/prefill_call.h"
#include "client/library/session_impl.h"
#include "client/library/slot_contents.h"
#include "client/library/snapshots.h"

namespace gdpcache {
namespace {

using Stub = v1::StateCache::StubInterface;

}  // namespace

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::Session(Session&&) noexcept = default;

Session& Session::operator=(Session&& other) noexcept {
  if (this != &other) {
    Session ended(std::move(impl_));
    impl_ = std::move(other.impl_);
  }
  return *this;
}

/// A server that does not answer frees the slots by itself after the ttl.
Session::~Session() {
  if (impl_ != nullptr) Close(impl_->connection->DestructorOptions()).IgnoreError();
}

const std::string& Session::id() const { return impl_->id; }
const std::string& Session::cache() const { return impl_->cache; }
const CacheGeometry& Session::geometry() const { return impl_->geometry; }
absl::Duration Session::ttl() const { return impl_->ttl; }

absl::Status Session::status() const {
  return impl_->keep_alive == nullptr ? absl::OkStatus() : impl_->keep_alive->status();
}

absl::StatusOr<absl::Duration> Session::KeepAlive(const CallOptions& options) {
  v1::KeepAliveRequest request;
  request.set_session(impl_->id);
  v1::KeepAliveResponse response;
  const absl::Status status = impl_->connection->Call(&Stub::KeepAlive, options, request, &response);
  if (!status.ok()) return status;
  return absl::Milliseconds(response.ttl_ms());
}

absl::StatusOr<std::vector<std::int64_t>> Session::AcquireSlots(std::int64_t count, const CallOptions& options) {
  v1::AcquireSlotsRequest request;
  request.set_session(impl_->id);
  request.set_count(count);
  v1::AcquireSlotsResponse response;
  const absl::Status status = impl_->connection->Call(&Stub::AcquireSlots, options, request, &response);
  if (!status.ok()) return status;
  if (response.slots_size() != count) {
    return absl::InternalError(
        absl::StrCat("the server broke the protocol: ", response.slots_size(), " slots instead of ", count));
  }
  return std::vector<std::int64_t>(response.slots().begin(), response.slots().end());
}

absl::Status Session::ReleaseSlots(absl::Span<const std::int64_t> slots, const CallOptions& options) {
  v1::ReleaseSlotsRequest request;
  request.set_session(impl_->id);
  request.mutable_slots()->Assign(slots.begin(), slots.end());
  v1::ReleaseSlotsResponse response;
  return impl_->connection->Call(&Stub::ReleaseSlots, options, request, &response);
}

absl::Status Session::ResetSlots(absl::Span<const std::int64_t> slots, const CallOptions& options) {
  v1::ResetSlotsRequest request;
  request.set_session(impl_->id);
  request.mutable_slots()->Assign(slots.begin(), slots.end());
  v1::ResetSlotsResponse response;
  return impl_->connection->Call(&Stub::ResetSlots, options, request, &response);
}

absl::Status Session::CopySlots(absl::Span<const SlotCopy> copies, const CallOptions& options) {
  v1::CopySlotsRequest request;
  request.set_session(impl_->id);
  for (const SlotCopy& copy : copies) {
    v1::SlotCopy* message = request.add_copies();
    message->set_source(copy.source);
    message->mutable_destinations()->Assign(copy.destinations.begin(), copy.destinations.end());
  }
  v1::CopySlotsResponse response;
  return impl_->connection->Call(&Stub::CopySlots, options, request, &response);
}

absl::StatusOr<SlotContents> Session::ReadSlots(absl::Span<const std::int64_t> slots,
                                                absl::Span<const std::int64_t> layers, const SlotOutputs& outputs,
                                                const CallOptions& options) {
  return client::ReadSlotContents(*impl_->connection, impl_->id, impl_->geometry, slots, layers, outputs,
                                  impl_->connection->Deadline(options));
}

absl::Status Session::WriteSlots(const SlotUpdate& update, const CallOptions& options) {
  return client::WriteSlotContents(*impl_->connection, impl_->id, update, impl_->connection->Deadline(options));
}

absl::StatusOr<PrefillResult> Session::Prefill(const PrefillCall& call, const CallOptions& options) {
  return client::RunPrefill(*impl_->connection, impl_->id, impl_->geometry, *impl_->regions, call,
                            impl_->connection->Deadline(options));
}

absl::StatusOr<std::vector<SnapshotOutcome>> Session::SaveSnapshots(absl::Span<const SlotSave> saves,
                                                                    const CallOptions& options) {
  return client::SaveSnapshots(*impl_->connection, impl_->id, saves, options);
}

absl::StatusOr<std::vector<std::int64_t>> Session::RestoreSnapshots(absl::Span<const SlotRestore> restores,
                                                                    const std::string& pin,
                                                                    const CallOptions& options) {
  return client::RestoreSnapshots(*impl_->connection, impl_->id, restores, pin, options);
}

absl::Status Session::Close(const CallOptions& options) {
  if (impl_ == nullptr) return absl::OkStatus();
  // No renewal may follow the end.
  impl_->keep_alive.reset();
  impl_->regions->EndSession();
  v1::CloseSessionRequest request;
  request.set_session(impl_->id);
  v1::CloseSessionResponse response;
  const absl::Status status = impl_->connection->Call(&Stub::CloseSession, options, request, &response);
  impl_.reset();
  return status;
}

}  // namespace gdpcache
