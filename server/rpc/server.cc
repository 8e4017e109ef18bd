#include "server/rpc/server.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/channelz_service_plugin.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/server_builder.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/prefill_plan.h"

namespace gdpcache::rpc {
namespace {

// How long cancelled calls may take to end: they finish the launch that they are in.
constexpr absl::Duration kCancelTimeout = absl::Seconds(20);
// How long answers may take to leave after the last call has ended. Clients that watch the health service, or that do
// not read, would hold up the end otherwise.
constexpr absl::Duration kFarewell = absl::Seconds(1);

constexpr int kKeepaliveTimeMs = 30'000;
constexpr int kKeepaliveTimeoutMs = 10'000;
constexpr int kMinClientPingIntervalMs = 10'000;

constexpr int kMaxAdminCalls = 16;                           // on one connection
constexpr std::size_t kAdminMemory = std::size_t{64} << 20;  // what gRPC keeps there

// gRPC answers reflection and channelz with a thread for each call, which lasts until the client ends it.
constexpr int kMaxBlockingThreads = 64;

v1::ServerLimits Limits(const ServerOptions& options, const engine::Engine& engine) {
  v1::ServerLimits limits;
  limits.set_max_message_bytes(options.max_message_bytes);
  limits.set_state_memory_bytes(options.limits.state_memory_bytes);
  limits.set_staging_bytes(engine.staging().budget());
  limits.set_max_caches(options.limits.max_caches);
  limits.set_max_sessions(options.limits.max_sessions);
  limits.set_max_sequences_per_call(engine::kMaxSequences);
  limits.set_max_session_ttl_ms(absl::ToInt64Milliseconds(options.limits.max_session_ttl));
  limits.set_shared_memory_bytes(options.shared_memory_bytes);
  limits.set_max_regions(MemoryPlane::kMaxRegions);
  const engine::AdmissionLimits& admission = engine.options().admission;
  limits.set_max_calls(admission.max_calls);
  limits.set_max_queue_wait_ms(absl::ToInt64Milliseconds(admission.max_wait));
  limits.set_max_connection_calls(options.max_connection_calls);
  limits.set_max_tenant_sessions(options.limits.max_tenant_sessions);
  limits.set_max_tenant_slots(options.limits.max_tenant_slots);
  return limits;
}

std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }
std::string PortOf(const std::string& address) { return address.substr(address.rfind(':') + 1); }

// Why gRPC, which only logs it, could not listen on an address; empty if it is free after all.
std::string WhyNotListening(const std::string& address) {
  std::string host = HostOf(address);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), PortOf(address).c_str(), &hints, &found); error != 0) {
    return gai_strerror(error);
  }
  std::string why;
  for (const addrinfo* entry = found; entry != nullptr && why.empty(); entry = entry->ai_next) {
    const int descriptor = socket(entry->ai_family, entry->ai_socktype | SOCK_CLOEXEC, entry->ai_protocol);
    const int on = 1;
    if (descriptor < 0 || setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        bind(descriptor, entry->ai_addr, entry->ai_addrlen) != 0 || listen(descriptor, 1) != 0) {
      why = std::strerror(errno);
    }
    if (descriptor >= 0) close(descriptor);
  }
  freeaddrinfo(found);
  return why;
}

absl::Status CannotListen(const std::vector<std::string>& addresses) {
  for (const std::string& address : addresses) {
    if (const std::string why = WhyNotListening(address); !why.empty()) {
      return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", why));
    }
  }
  return absl::UnavailableError("cannot listen; gRPC has logged why");
}

// gRPC undoes a message's compression before it looks at the size, and a thousandth of it is enough for one: of the
// largest message there would be 16 GiB. Tensors do not get smaller anyway.
void RefuseCompression(grpc::ServerBuilder& builder) {
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
}

// Files made while it lives, sockets too, are for this user only.
class PrivateFiles {
 public:
  PrivateFiles() : previous_(umask(S_IRWXG | S_IRWXO | S_IXUSR)) {}
  PrivateFiles(const PrivateFiles&) = delete;
  PrivateFiles& operator=(const PrivateFiles&) = delete;
  ~PrivateFiles() { umask(previous_); }

 private:
  const mode_t previous_;
};

// Something that has happened when all of its `parts` have, on other threads.
class Event {
 public:
  explicit Event(int parts) : left_(parts) {}
  void Happen() {
    const std::lock_guard lock(mutex_);
    --left_;
    changed_.notify_all();
  }
  bool WaitFor(absl::Duration timeout) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, absl::ToChronoNanoseconds(timeout), [this] { return left_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int left_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options, kernels::DeviceInfo device,
                                                      cache::Catalog& catalog, engine::Engine& engine,
                                                      cache::SnapshotStore& snapshots, cache::TaskThread& thread,
                                                      const cache::Clock& clock, ServerMetrics& metrics) {
  // The constructor is private to make_unique.
  std::unique_ptr<Server> server(
      new Server(options, std::move(device), catalog, engine, snapshots, thread, clock, metrics));
  if (absl::Status status = server->Listen(options); !status.ok()) return status;
  if (!options.admin.empty()) {
    if (absl::Status status = server->ListenForAdmin(options.admin); !status.ok()) return status;
  }
  server->ReportServing(true);
  return server;
}

Server::Server(const ServerOptions& options, kernels::DeviceInfo device, cache::Catalog& catalog,
               engine::Engine& engine, cache::SnapshotStore& snapshots, cache::TaskThread& thread,
               const cache::Clock& clock, ServerMetrics& metrics)
    : catalog_(catalog),
      metrics_(metrics),
      access_(options.access),
      log_(options.slow_call, metrics.refusals),
      info_(catalog, engine, snapshots, clock, options.version, options.build, std::move(device),
            Limits(options, engine)),
      stats_(catalog, engine, snapshots, metrics),
      expiry_(clock, [&catalog] { return catalog.ExpireSessions(); }),
      memory_(catalog, thread, clock, *access_, log_, engine.memory_sharing(), options.shared_memory_bytes,
              options.tenant_share),
      detached_(clock, options.transfer_timeout, [this](absl::Time time) { transfer_expiry_.Expect(time); }),
      uploads_(
          clock, options.transfer_timeout, engine.staging().budget() / SnapshotUploads::kStagingShare,
          options.tenant_share,
          [&engine, &catalog](std::int64_t bytes, const std::string& tenant) {
            return engine.Stage(bytes, cache::BudgetOf(catalog.UseOf(tenant), &cache::TenantUse::staging));
          },
          [this](absl::Time time) { transfer_expiry_.Expect(time); }),
      transfer_expiry_(clock, [this] { return std::min(detached_.ExpireStalled(), uploads_.ExpireIdle()); }),
      service_({catalog,
                engine,
                thread,
                clock,
                expiry_,
                info_,
                stats_,
                {catalog, snapshots, engine, clock, options.max_pin_ttl},
                uploads_,
                *access_,
                log_},
               {catalog, clock, engine, snapshots, uploads_, detached_, *access_, log_, metrics.prefills}, memory_),
      health_(metrics.refusals, clock) {
  if (options.rpc_memory_bytes > 0) quota_.Resize(static_cast<std::size_t>(options.rpc_memory_bytes));
  quota_.SetMaxThreads(kMaxBlockingThreads);
  admin_quota_.Resize(kAdminMemory);
  admin_quota_.SetMaxThreads(kMaxBlockingThreads);
}

Server::~Server() = default;

absl::Status Server::Listen(const ServerOptions& options) {
  // Never shut down: gRPC 1.51 now and then takes ten seconds for it when the process is to end.
  static const bool kInitialised = (grpc_init(), true);
  static_cast<void>(kInitialised);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();

  grpc::ServerBuilder builder;
  std::deque<int> ports;  // gRPC keeps pointers to them
  for (const std::string& address : options.listen) {
    builder.AddListeningPort(address, access_->TcpCredentials(), &ports.emplace_back(0));
  }
  if (!options.unix_path.empty()) {
    absl::StatusOr<UnixSocketLock> lock = UnixSocketLock::Acquire(options.unix_path);
    if (!lock.ok()) return lock.status();
    socket_lock_ = *std::move(lock);
    builder.AddListeningPort("unix:" + options.unix_path, access_->UnixCredentials());
  }
  builder.RegisterService(&service_);
  builder.RegisterService(&health_service_);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(metrics_.rpcs.MakeInterceptorFactory());
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  builder.SetResourceQuota(quota_);
  RefuseCompression(builder);
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);  // each has threads of the quota, used or not
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder.SetMaxSendMessageSize(-1);  // the engine bounds what it answers
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, static_cast<int>(options.max_connection_calls));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);                   // two servers on one port are a mistake
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);  // notices hosts that died
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinClientPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  {
    const PrivateFiles private_files;
    if (!options.unix_path.empty()) {
      if (absl::Status status = memory_.Listen(DescriptorSocketPath(options.unix_path)); !status.ok()) return status;
    }
    server_ = builder.BuildAndStart();
  }
  if (server_ == nullptr) {
    return CannotListen(options.listen);
  }
  std::vector<std::string> served;
  for (std::size_t n = 0; n < options.listen.size(); ++n) {
    addresses_.push_back(absl::StrCat(HostOf(options.listen[n]), ":", ports[n]));
    served.push_back(addresses_.back());
  }
  if (!options.unix_path.empty()) served.push_back("unix:" + options.unix_path);
  info_.SetAddresses(std::move(served));
  info_.SetSharedMemory(memory_.descriptors() != nullptr ? memory_.descriptors()->path() : "",
                        memory_.shares_cuda() ? memory_.sharing()->device_uuid() : "");
  return absl::OkStatus();
}

absl::Status Server::ListenForAdmin(const std::string& address) {
  // From now on every server of the process that is built gets channelz: the one above has been.
  grpc::channelz::experimental::InitChannelzService();
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address, access_->TcpCredentials(), &port);
  builder.RegisterService(&admin_health_service_);
  builder.SetResourceQuota(admin_quota_);
  RefuseCompression(builder);
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);  // each has threads of the quota, used or not
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxAdminCalls);
  admin_ = builder.BuildAndStart();
  if (admin_ == nullptr) return CannotListen({address});
  admin_address_ = absl::StrCat(HostOf(address), ":", port);
  return absl::OkStatus();
}

void Server::ReportServing(bool serving) { health_.Set(v1::StateCache::service_full_name(), serving); }

void Server::ReportLost() { health_.SetNotServing(); }

absl::Status Server::Shutdown(absl::Duration drain_timeout) {
  ReportServing(false);
  const auto drained = std::make_shared<Event>(2);
  catalog_.Drain([drained] { drained->Happen(); });
  detached_.Drain([drained] { drained->Happen(); });
  if (!drained->WaitFor(drain_timeout)) {
    catalog_.CloseAllSessions([] {});
    detached_.CancelAll();
    if (!drained->WaitFor(kCancelTimeout)) {
      return absl::DeadlineExceededError(absl::StrCat("calls of ", cache::Counted(catalog_.session_count(), "session"),
                                                      " do not end although cancelled"));
    }
  }
  const absl::Time farewell = absl::Now() + kFarewell;
  server_->Shutdown(absl::ToChronoTime(farewell));
  server_->Wait();
  if (admin_ != nullptr) {
    admin_->Shutdown(absl::ToChronoTime(farewell));
    admin_->Wait();
  }
  return absl::OkStatus();
}

}  // namespace gdpcache::rpc
