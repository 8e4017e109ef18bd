// gdpcached: configuration, logging, backend, snapshots, caches, engine, server, and their end.

#include <pthread.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/device_memory.h"
#include "kernels/loss_reporting_backend.h"
#include "server/accept_guard.h"
#include "server/cache/catalog.h"
#include "server/cache/clock.h"
#include "server/cache/errors.h"
#include "server/cache/task_thread.h"
#include "server/config/build_info.h"
#include "server/config/config.h"
#include "server/engine/engine.h"
#include "server/grpc_log.h"
#include "server/observe/heap.h"
#include "server/observe/logging.h"
#include "server/observe/metrics_endpoint.h"
#include "server/observe/out_of_memory.h"
#include "server/open_access.h"
#include "server/open_snapshots.h"
#include "server/rpc/control/caches.h"
#include "server/rpc/deadline_thread.h"
#include "server/rpc/metrics/server_metrics.h"
#include "server/rpc/metrics/state_metrics.h"
#include "server/rpc/server.h"
#include "server/rpc/unix_socket.h"

namespace gdpcache {
namespace {

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// What a process that ends at once would leave behind, for a signal handler.
std::array<char, PATH_MAX> g_socket = {};
std::array<char, PATH_MAX> g_descriptor_socket = {};
std::array<char, PATH_MAX> g_socket_lock = {};

extern "C" void EndAtOnce(int signal_number) {
  // The lock is held until the process is gone, so nobody else's files are removed.
  for (const auto* path : {&g_socket, &g_descriptor_socket, &g_socket_lock}) unlink(path->data());
  raise(signal_number);  // by now what it does by default
}

// Waits for the first stop signal; from then on another one ends the process at once.
void WaitForStopSignal(const sigset_t& signals, const std::string& socket) {
  int signal_number = 0;
  sigwait(&signals, &signal_number);
  spdlog::info("{}: draining; the next signal stops at once", strsignal(signal_number));
  if (!socket.empty()) {
    socket.copy(g_socket.data(), g_socket.size() - 1);
    rpc::DescriptorSocketPath(socket).copy(g_descriptor_socket.data(), g_descriptor_socket.size() - 1);
    rpc::UnixSocketLock::LockPath(socket).copy(g_socket_lock.data(), g_socket_lock.size() - 1);
    struct sigaction end_at_once = {};
    end_at_once.sa_handler = EndAtOnce;
    end_at_once.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
    sigaction(SIGTERM, &end_at_once, nullptr);
    sigaction(SIGINT, &end_at_once, nullptr);
  }
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

// A lost device takes every state with it, and only a new process gets it back: stop serving, for a restart.
class DeviceLoss {
 public:
  void Report(const absl::Status& status) {
    if (lost_.exchange(true)) return;
    spdlog::critical("the device is lost, stopping: {}", std::string(status.message()));
    kill(getpid(), SIGTERM);
  }
  bool lost() const { return lost_; }

 private:
  std::atomic<bool> lost_ = false;
};

absl::Status CreateConfiguredCaches(const config::Config& config, cache::Catalog& catalog) {
  for (const v1::CreateCacheRequest& request : config.caches) {
    const absl::StatusOr<cache::CacheSpec> spec = rpc::DecodeCacheSpec(request);
    const absl::Status status = spec.ok() ? catalog.CreateCache(*spec).status() : spec.status();
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat("configured cache '", request.name(), "': ", status.message()));
    }
  }
  return absl::OkStatus();
}

void PrintReady(const rpc::Server& server, const config::Config& config, const std::string& backend,
                const std::string& metrics) {
  std::string line = "ready";
  for (const std::string& address : server.addresses()) absl::StrAppend(&line, " address=", address);
  if (!config.unix_path.empty()) absl::StrAppend(&line, " unix=", config.unix_path);
  absl::StrAppend(&line, " backend=", backend);
  if (!metrics.empty()) absl::StrAppend(&line, " metrics=", metrics);
  if (!server.admin_address().empty()) absl::StrAppend(&line, " admin=", server.admin_address());
  std::cout << line << std::endl;
}

v1::BuildInfo Describe(const config::BuildInfo& build) {
  v1::BuildInfo message;
  message.set_commit(build.commit);
  message.set_compiler(build.compiler);
  for (const std::string& library : build.libraries) message.add_libraries(library);
  return message;
}

// What a stop and a start keep. Not all of it may fit into the time or onto the disk.
void FlushSnapshots(cache::SnapshotStore& snapshots, absl::Duration limit) {
  const cache::SnapshotStore::Flushed flushed = snapshots.Flush(limit);
  if (flushed.left > 0) {
    spdlog::warn("{} written to disk, {} lost", cache::Counted(flushed.written, "snapshot"), flushed.left);
  } else if (flushed.written > 0) {
    spdlog::info("{} written to disk", cache::Counted(flushed.written, "snapshot"));
  }
}

// How often an idle server looks for free memory to give back.
constexpr absl::Duration kFreeMemoryPeriod = absl::Seconds(5);

// As many connections, regions and files as the process may have: what the soft limit usually allows is for programs
// that use select().
void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) spdlog::warn("cannot raise the limit of file descriptors");
}

// A core dump would have keys, tokens and the states of everybody's prompts. The limit is one byte, not none: only one
// keeps the kernel from piping a dump to a program, too. Where a crash has to be looked into, prlimit lifts it again.
void LeaveNoCoreDump() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_CORE, &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(1, limit.rlim_max);
  if (setrlimit(RLIMIT_CORE, &limit) != 0) spdlog::warn("cannot keep a crash from leaving a core dump");
}

// Serves until a signal. An error says why it could not start or stop.
absl::Status Serve(const config::Config& config) {
  const sigset_t stop_signals = StopSignals();
  RaiseDescriptorLimit();
  if (!config.access.identities.empty() || !config.access.tls_certificate.empty()) LeaveNoCoreDump();
  pthread_sigmask(SIG_BLOCK, &stop_signals, nullptr);  // before any thread starts: all inherit it

  rpc::ServerMetrics metrics;
  absl::StatusOr<std::shared_ptr<const rpc::AccessControl>> access =
      OpenAccess(config, [&metrics](const absl::Status& refusal) { metrics.refusals.Count(refusal); });
  if (!access.ok()) return access.status();
  const auto& identities = config.access.identities;
  if (std::any_of(identities.begin(), identities.end(), [](const auto& identity) { return identity.has_uid(); })) {
    LetInOwnUserAlone();
  }
  absl::StatusOr<std::unique_ptr<kernels::Backend>> real_backend = kernels::CreateBackend(config.backend);
  if (!real_backend.ok()) return real_backend.status();
  DeviceLoss device_loss;
  const auto report_loss = [&device_loss](const absl::Status& status) { device_loss.Report(status); };
  kernels::LossReportingBackend backend(**real_backend, report_loss);
  const kernels::DeviceInfo device = backend.device_info();

  const cache::RealClock clock;
  cache::CatalogLimits limits;
  limits.max_caches = config.max_caches;
  limits.max_sessions = config.max_sessions;
  const cache::TenantShare share{(*access)->tenants() > 1 ? config.max_tenant_share : 100};
  limits.state_memory_bytes = config.state_memory_bytes > 0 ? config.state_memory_bytes : device.memory_bytes / 2;
  limits.max_tenant_sessions = config.max_tenant_sessions;
  if (!share.is_all()) {
    if (limits.max_tenant_sessions == 0) limits.max_tenant_sessions = share.Of(config.max_sessions);
    limits.max_tenant_caches = share.Of(config.max_caches);
    limits.max_tenant_calls = share.Of(config.max_calls);
    limits.tenant_staging_bytes = share.Of(config.staging_memory_bytes);
    limits.tenant_state_bytes = share.Of(limits.state_memory_bytes);
  }
  limits.max_tenant_slots = config.max_tenant_slots;
  limits.default_session_ttl = config.default_session_ttl;
  limits.max_session_ttl = config.max_session_ttl;
  absl::StatusOr<std::unique_ptr<cache::SnapshotStore>> snapshots =
      OpenSnapshots(config.snapshots, backend, clock, share);
  if (!snapshots.ok()) return snapshots.status();
  cache::TaskThread memory_thread;
  cache::Catalog catalog(
      backend, clock, limits, [&store = **snapshots](cache::SessionKey session) { store.EndSession(session); },
      &memory_thread);
  if (absl::Status status = CreateConfiguredCaches(config, catalog); !status.ok()) return status;

  engine::EngineOptions engine_options;
  engine_options.staging_bytes = config.staging_memory_bytes;
  engine_options.max_unary_output_bytes = config.max_message_bytes;
  engine_options.admission = {.max_calls = config.max_calls, .max_wait = config.max_queue_wait};
  absl::StatusOr<std::unique_ptr<engine::Engine>> engine =
      engine::Engine::Create(backend, engine_options, snapshots->get(), report_loss, &memory_thread);
  if (!engine.ok()) return engine.status();

  rpc::ServerOptions server_options;
  const config::BuildInfo build = config::ThisBuild();
  server_options.version = build.version;
  server_options.build = Describe(build);
  server_options.listen = config.listen;
  server_options.unix_path = config.unix_path;
  server_options.admin = config.admin;
  server_options.max_message_bytes = config.max_message_bytes;
  server_options.rpc_memory_bytes = config.rpc_memory_bytes;
  server_options.max_connection_calls = config.max_connection_calls;
  server_options.shared_memory_bytes = config.shared_memory_bytes;
  server_options.limits = limits;
  server_options.tenant_share = share;
  server_options.access = *access;
  server_options.slow_call = config.slow_call;
  server_options.max_pin_ttl = config.snapshots.max_pin_ttl;
  server_options.transfer_timeout = config.snapshots.pending_timeout;
  const auto device_memory = [device, report_loss, options = config.backend] {
    absl::StatusOr<kernels::DeviceMemory> memory = kernels::ReadDeviceMemory(device, options);
    if (absl::IsUnavailable(memory.status())) report_loss(memory.status());  // an idle server finds out by nothing else
    return memory;
  };
  std::unique_ptr<observe::MetricsEndpoint> endpoint;
  if (!config.metrics.empty()) {
    absl::StatusOr<std::unique_ptr<observe::MetricsEndpoint>> started = observe::MetricsEndpoint::Start(
        config.metrics,
        {metrics.registry,
         std::make_shared<rpc::StateMetrics>(
             catalog, **snapshots, **engine,
             rpc::StateMetrics::Build{build.version, build.commit, device.backend, device.device}, device_memory)});
    if (!started.ok()) return started.status();
    endpoint = *std::move(started);
  }
  absl::StatusOr<std::unique_ptr<rpc::Server>> server =
      rpc::Server::Start(server_options, device, catalog, **engine, **snapshots, memory_thread, clock, metrics);
  if (!server.ok()) return server.status();
  rpc::DeadlineThread free_memory(clock, [&clock, &admission = (*engine)->admission()] {
    if (admission.calls() == 0) observe::GiveBackFreeMemory();
    return clock.Now() + kFreeMemoryPeriod;
  });
  free_memory.Expect(clock.Now() + kFreeMemoryPeriod);
  spdlog::info("serving on {} ({}), {} bytes of state memory", device.backend, device.device,
               limits.state_memory_bytes);
  PrintReady(**server, config, device.backend, endpoint == nullptr ? "" : endpoint->address());

  WaitForStopSignal(stop_signals, config.unix_path);
  if (device_loss.lost()) (*server)->ReportLost();
  const absl::Duration drain_timeout = device_loss.lost() ? absl::ZeroDuration() : config.drain_timeout;
  if (absl::Status status = (*server)->Shutdown(drain_timeout); !status.ok()) {
    spdlog::error("cannot stop cleanly: {}", std::string(status.message()));
    std::_Exit(EXIT_FAILURE);  // running calls still use what a return would destroy
  }
  if (!device_loss.lost()) FlushSnapshots(**snapshots, config.snapshots.flush_timeout);
  for (const int signal_number : {SIGTERM, SIGINT})
    signal(signal_number, SIG_DFL);  // the paths may be others' from now
  spdlog::info("stopped");
  if (device_loss.lost()) return absl::UnavailableError("stopped because the device was lost");
  return absl::OkStatus();
}

int Main(absl::Span<const char* const> arguments) {
  const config::Invocation invocation = config::ParseCommandLine(arguments);
  std::cout << invocation.output << std::flush;
  std::cerr << invocation.errors;
  if (!invocation.config.has_value()) return invocation.exit_code;
  observe::EndWhenOutOfMemory();
  observe::StartLogging(invocation.config->log);
  const GrpcLog grpc_log;
  if (const absl::Status status = Serve(*invocation.config); !status.ok()) {
    spdlog::error("{}", std::string(status.message()));
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace gdpcache

int main(int argc, char** argv) {
  // Distributions build Abseil with its detector of lock cycles, which looks at every lock that gRPC takes.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return gdpcache::Main(absl::MakeConstSpan(argv + 1, static_cast<std::size_t>(argc > 0 ? argc - 1 : 0)));
}
