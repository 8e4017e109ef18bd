#include "gdpcache/shared_memory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/library/connection.h"
#include "client/library/memfd.h"
#include "client/library/session_impl.h"
#include "client/library/shared_regions.h"

namespace gdpcache {
namespace {

using Stub = v1::StateCache::StubInterface;

}  // namespace

class SharedMemory::Impl {
 public:
  Impl(const Session::Impl& session, client::Memfd the_memory)
      : connection(session.connection),
        session_id(session.id),
        regions(session.regions),
        memory(std::move(the_memory)),
        name(regions->NewName()) {}

  absl::Status Register(const CallOptions& options) {
    v1::GetServerInfoResponse info;
    absl::Status status = connection->Call(&Stub::GetServerInfo, options, v1::GetServerInfoRequest(), &info);
    if (!status.ok()) return status;
    if (info.descriptor_socket().empty()) {
      return absl::UnimplementedError(absl::StrCat("the server at ", connection->address(), " shares no memory"));
    }
    const absl::StatusOr<std::string> token = memory.HandOver(info.descriptor_socket());
    if (!token.ok()) return token.status();
    v1::RegisterSystemMemoryRequest request;
    request.set_session(session_id);
    request.set_name(name);
    request.set_token(*token);
    request.set_size(static_cast<std::uint64_t>(memory.size()));
    v1::RegisterSystemMemoryResponse response;
    status = connection->Call(&Stub::RegisterSystemMemory, options, request, &response);
    if (status.ok()) regions->Add(memory.data(), memory.size(), name);
    return status;
  }

  absl::Status Unregister(const CallOptions& options) const {
    regions->Remove(memory.data());
    if (regions->session_ended()) return absl::OkStatus();
    v1::UnregisterMemoryRequest request;
    request.set_session(session_id);
    request.set_name(name);
    v1::UnregisterMemoryResponse response;
    return connection->Call(&Stub::UnregisterMemory, options, request, &response);
  }

  const std::shared_ptr<const client::Connection> connection;
  const std::string session_id;
  const std::shared_ptr<client::SharedRegions> regions;
  const client::Memfd memory;
  const std::string name;
};

SharedMemory::SharedMemory(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SharedMemory::SharedMemory(SharedMemory&&) noexcept = default;

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this != &other) {
    SharedMemory ended(std::move(impl_));
    impl_ = std::move(other.impl_);
  }
  return *this;
}

SharedMemory::~SharedMemory() {
  if (impl_ != nullptr) Release(impl_->connection->DestructorOptions()).IgnoreError();
}

std::byte* SharedMemory::data() const { return impl_->memory.data(); }
std::int64_t SharedMemory::size() const { return impl_->memory.size(); }
const std::string& SharedMemory::name() const { return impl_->name; }

absl::Status SharedMemory::Release(const CallOptions& options) {
  if (impl_ == nullptr) return absl::OkStatus();
  const absl::Status status = impl_->Unregister(options);
  impl_.reset();
  return status;
}

absl::StatusOr<SharedMemory> Session::ShareMemory(std::int64_t size, const CallOptions& options) {
  absl::StatusOr<client::Memfd> memory = client::Memfd::Create(size);
  if (!memory.ok()) return memory.status();
  auto impl = std::make_unique<SharedMemory::Impl>(*impl_, *std::move(memory));
  if (absl::Status status = impl->Register(options); !status.ok()) return status;
  return SharedMemory(std::move(impl));
}

}  // namespace gdpcache
