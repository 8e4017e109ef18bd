// What the service costs beyond the arithmetic and the wire: prefills through a real gdpcached, and in the same run,
// turn by turn, what they are measured against.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/command/bench/byte_pump.h"
#include "client/command/bench/client_crowd.h"
#include "client/command/bench/prefill_workload.h"
#include "client/command/bench/statistics.h"
#include "gdpcache/client.h"
#include "kernels/backend.h"
#include "tests/bench/kernel_workload.h"
#include "tests/support/server_process.h"

namespace gdpcache::bench {
namespace {

constexpr double kStreamTarget = 1.15;
constexpr double kTinyTarget = 1.5;
constexpr double kSharedTarget = 1.1;
constexpr double kCrowdTarget = 10;
constexpr int kCrowd = 64;

/// One way to reach the server, with a byte pump over the same kind of socket.
struct Route {
  std::string name;
  Client client;
  std::unique_ptr<BytePump> pump;
};

absl::StatusOr<Route> MakeRoute(std::string name, const std::string& server, const std::string& pump_address) {
  absl::StatusOr<Client> client = Client::Connect(server);
  if (!client.ok()) return client.status();
  absl::StatusOr<std::unique_ptr<BytePump>> pump = BytePump::Start(pump_address);
  if (!pump.ok()) return pump.status();
  return Route{std::move(name), *std::move(client), *std::move(pump)};
}

/// A session on a cache made for one workload, gone with the object.
struct Lease {
  Session session;
  std::vector<std::int64_t> slots;
};

absl::StatusOr<Lease> MakeLease(const Client& client, const std::string& cache, const CacheGeometry& geometry) {
  const absl::StatusOr<CreatedCache> created =
      client.CreateCache({.name = cache, .geometry = geometry, .fingerprint = "bench", .ephemeral = true});
  if (!created.ok()) return created.status();
  absl::StatusOr<Session> session = client.OpenSession(cache);
  if (!session.ok()) return session.status();
  absl::StatusOr<std::vector<std::int64_t>> slots = session->AcquireSlots(geometry.slots);
  if (!slots.ok()) return slots.status();
  return Lease{*std::move(session), *std::move(slots)};
}

/// Milliseconds of each round.
struct StreamTimes {
  std::vector<double> pump;
  std::vector<double> kernel;
  std::vector<double> prefill;
  std::vector<double> ratio;  // prefill / (pump + kernel) of the same round
};

absl::Status MeasureStreamRound(KernelWorkload& workload, kernels::Backend& backend, kernels::Stream& stream,
                                Route& route, Lease& lease, StreamTimes& times) {
  const absl::StatusOr<absl::Duration> pump = route.pump->Run(workload.bytes_in(), workload.bytes_out());
  if (!pump.ok()) return pump.status();
  const absl::StatusOr<absl::Duration> kernel = workload.RunKernel(backend, stream);
  if (!kernel.ok()) return kernel.status();
  const absl::StatusOr<absl::Duration> prefill = workload.RunPrefill(lease.session, lease.slots, Transport::kStream);
  if (!prefill.ok()) return prefill.status();
  if (!workload.ResultsAgree()) return absl::InternalError("the server's results differ from the kernel's");
  times.pump.push_back(absl::ToDoubleMilliseconds(*pump));
  times.kernel.push_back(absl::ToDoubleMilliseconds(*kernel));
  times.prefill.push_back(absl::ToDoubleMilliseconds(*prefill));
  times.ratio.push_back(absl::FDivDuration(*prefill, *pump + *kernel));
  return absl::OkStatus();
}

/// The first round only warms up.
absl::StatusOr<StreamTimes> MeasureStream(KernelWorkload& workload, kernels::Backend& backend, Route& route,
                                          int rounds) {
  absl::StatusOr<std::unique_ptr<kernels::Stream>> stream = backend.CreateStream();
  if (!stream.ok()) return stream.status();
  absl::StatusOr<Lease> lease = MakeLease(route.client, "bench/stream", workload.geometry());
  if (!lease.ok()) return lease.status();
  StreamTimes warm_up;
  StreamTimes times;
  for (int round = -1; round < rounds; ++round) {
    if (absl::Status status =
            MeasureStreamRound(workload, backend, **stream, route, *lease, round < 0 ? warm_up : times);
        !status.ok()) {
      return status;
    }
  }
  return times;
}

/// Microseconds of each call.
struct TinyTimes {
  std::vector<double> empty;
  std::vector<double> prefill;
};

/// One-token prefills and renewals of the session, which carry and do next to nothing, in turn.
absl::StatusOr<TinyTimes> MeasureTiny(PrefillWorkload& workload, Route& route, Transport transport, int calls) {
  absl::StatusOr<Lease> lease = MakeLease(route.client, "bench/tiny", workload.geometry());
  if (!lease.ok()) return lease.status();
  if (transport == Transport::kSharedMemory) {
    if (absl::Status status = workload.Share(lease->session); !status.ok()) return status;
  }
  TinyTimes times;
  for (int call = -calls / 10; call < calls; ++call) {
    const absl::Time start = absl::Now();
    if (const absl::StatusOr<absl::Duration> renewed = lease->session.KeepAlive(); !renewed.ok()) {
      return renewed.status();
    }
    const absl::Duration empty = absl::Now() - start;
    const absl::StatusOr<absl::Duration> prefill = workload.RunPrefill(lease->session, lease->slots, transport);
    if (!prefill.ok()) return prefill.status();
    if (call < 0) continue;
    times.empty.push_back(absl::ToDoubleMicroseconds(empty));
    times.prefill.push_back(absl::ToDoubleMicroseconds(*prefill));
  }
  return times;
}

/// Milliseconds of each round.
struct SharedTimes {
  std::vector<double> kernel;
  std::vector<double> prefill;
  std::vector<double> ratio;  // prefill / kernel of the same round
};

/// Prefills on memory shared with the server and the bare recurrence, in turn. The first round only warms up.
absl::StatusOr<SharedTimes> MeasureShared(KernelWorkload& workload, kernels::Backend& backend, Route& route,
                                          int rounds) {
  absl::StatusOr<std::unique_ptr<kernels::Stream>> stream = backend.CreateStream();
  if (!stream.ok()) return stream.status();
  absl::StatusOr<Lease> lease = MakeLease(route.client, "bench/shared", workload.geometry());
  if (!lease.ok()) return lease.status();
  if (absl::Status status = workload.Share(lease->session); !status.ok()) return status;
  SharedTimes times;
  for (int round = -1; round < rounds; ++round) {
    const absl::StatusOr<absl::Duration> kernel = workload.RunKernel(backend, **stream);
    if (!kernel.ok()) return kernel.status();
    const absl::StatusOr<absl::Duration> prefill =
        workload.RunPrefill(lease->session, lease->slots, Transport::kSharedMemory);
    if (!prefill.ok()) return prefill.status();
    if (!workload.ResultsAgree()) return absl::InternalError("the server's results differ from the kernel's");
    if (round < 0) continue;
    times.kernel.push_back(absl::ToDoubleMilliseconds(*kernel));
    times.prefill.push_back(absl::ToDoubleMilliseconds(*prefill));
    times.ratio.push_back(absl::FDivDuration(*prefill, *kernel));
  }
  return times;
}

std::vector<PrefillShape> SharedShapes() {
  std::vector<PrefillShape> shapes = {
      {.name = "one sequence of 256", .lengths = {256}, .heads = 16, .key_dim = 128, .value_dim = 128},
      {.name = "64 of one token",
       .lengths = std::vector<std::int64_t>(64, 1),
       .heads = 8,
       .key_dim = 128,
       .value_dim = 128},
  };
  return shapes;
}

std::vector<PrefillShape> StreamShapes() {
  return {
      {.name = "one sequence of 8192", .lengths = {8192}, .heads = 16, .key_dim = 128, .value_dim = 128},
      {.name = "ragged, M = 2",
       .lengths = {4096, 34, 2000, 128, 4098, 2, 1554, 1026},
       .heads = 16,
       .key_dim = 128,
       .value_dim = 128,
       .num_householder = 2},
      {.name = "8 of 512, all states",
       .lengths = {512, 512, 512, 512, 512, 512, 512, 512},
       .heads = 16,
       .key_dim = 128,
       .value_dim = 128,
       .all_states = true},
  };
}

nlohmann::json ReportStream(const PrefillWorkload& workload, const Route& route, const StreamTimes& times) {
  constexpr double kMegabyte = 1e6;
  const double in = static_cast<double>(workload.bytes_in()) / kMegabyte;
  const double out = static_cast<double>(workload.bytes_out()) / kMegabyte;
  std::printf("| %-20s | %-4s | %6.1f | %6.1f | %7.1f | %9.1f | %8.1f | %5.2f |\n", workload.shape().name.c_str(),
              route.name.c_str(), in, out, Median(times.pump), Median(times.kernel), Median(times.prefill),
              Median(times.ratio));
  return {{"shape", workload.shape().name}, {"route", route.name},          {"megabytes_in", in},
          {"megabytes_out", out},           {"pump_ms", times.pump},        {"recurrence_ms", times.kernel},
          {"prefill_ms", times.prefill},    {"ratio", Median(times.ratio)}, {"target", kStreamTarget}};
}

nlohmann::json ReportShared(const PrefillWorkload& workload, const SharedTimes& times) {
  std::printf("| %-20s | %9.2f | %8.2f | %5.2f |\n", workload.shape().name.c_str(), Median(times.kernel),
              Median(times.prefill), Median(times.ratio));
  return {{"shape", workload.shape().name},
          {"recurrence_ms", times.kernel},
          {"prefill_ms", times.prefill},
          {"ratio", Median(times.ratio)},
          {"target", kSharedTarget}};
}

nlohmann::json ReportCrowd(const std::string& what, const std::string& who, const CrowdTimes& times, double one_client,
                           double empty) {
  const double ratio = times.calls_per_second / one_client;
  const double of_empty = times.calls_per_second / empty;
  std::printf("| %-22s | %-11s | %9.0f | %7.0f | %7.0f | %5.1f | %8.2f | %6.1f | %6.1f |\n", what.c_str(), who.c_str(),
              times.calls_per_second, Quantile(times.call_us, 0.5), Quantile(times.call_us, 0.99), ratio, of_empty,
              times.server_us, times.client_us);
  return {{"what", what},
          {"who", who},
          {"calls_per_second", times.calls_per_second},
          {"p50_us", Quantile(times.call_us, 0.5)},
          {"p99_us", Quantile(times.call_us, 0.99)},
          {"ratio", ratio},
          {"of_empty", of_empty},
          {"server_processor_us", times.server_us},
          {"client_processor_us", times.client_us},
          {"target", kCrowdTarget}};
}

/// Calls a second of one client and of many.
struct CrowdBase {
  double one = 0;
  double many = 0;
};

/// One client, then many whose calls can and cannot share launches. `empty`, unless it is still to be measured, is what
/// the same clients reach with calls that do nothing.
absl::StatusOr<CrowdBase> MeasureCrowds(const std::string& what, const CrowdPlan& plan, const CrowdBase* empty,
                                        nlohmann::json& report) {
  const absl::StatusOr<CrowdTimes> one = MeasureCrowd(plan, 1, Caches::kOne);
  if (!one.ok()) return one.status();
  CrowdBase base{.one = one->calls_per_second};
  report.push_back(ReportCrowd(what, "1", *one, base.one, empty == nullptr ? base.one : empty->one));
  std::vector<std::pair<std::string, Caches>> crowds = {{absl::StrCat(kCrowd, " together"), Caches::kOne}};
  if (plan.call != CrowdCall::kEmpty) crowds.emplace_back(absl::StrCat(kCrowd, " apart"), Caches::kOneEach);
  for (const auto& [who, caches] : crowds) {
    const absl::StatusOr<CrowdTimes> many = MeasureCrowd(plan, kCrowd, caches);
    if (!many.ok()) return many.status();
    if (base.many == 0) base.many = many->calls_per_second;
    report.push_back(ReportCrowd(what, who, *many, base.one, empty == nullptr ? base.many : empty->many));
  }
  return base;
}

nlohmann::json ReportTiny(const std::string& over, const TinyTimes& times) {
  nlohmann::json report = {{"route", over}, {"calls", times.prefill.size()}, {"target", kTinyTarget}};
  for (const auto& [name, q] : {std::pair{"p50", 0.5}, std::pair{"p99", 0.99}}) {
    const double empty = Quantile(times.empty, q);
    const double prefill = Quantile(times.prefill, q);
    std::printf("| %-19s | %s | %8.0f | %8.0f | %5.2f |\n", over.c_str(), name, empty, prefill, prefill / empty);
    report[name] = {{"empty_us", empty}, {"prefill_us", prefill}, {"ratio", prefill / empty}};
  }
  return report;
}

struct Options {
  int rounds = 9;
  int calls = 3000;
  int crowd_ms = 2000;
  std::vector<std::string> parts = {"stream", "shared", "tiny", "crowd"};
  std::string backend = "cpu";
  std::string json;
};

/// What all parts measure with.
struct Bench {
  const Options& options;
  kernels::Backend& backend;
  test::ServerProcess& server;
  Route& tcp;
  Route& local;
  nlohmann::json& report;
};

PrefillShape TinyShape() {
  return {.name = "tiny", .lengths = {1}, .heads = 4, .key_dim = 64, .value_dim = 64, .continues = true};
}

absl::Status RunStream(const Bench& bench) {
  std::printf("| prefill              | over | MB in  | MB out | pump ms | kernel ms | total ms | ratio |\n");
  std::printf("| -------------------- | ---- | ------ | ------ | ------- | --------- | -------- | ----- |\n");
  for (PrefillShape& shape : StreamShapes()) {
    KernelWorkload workload(std::move(shape));
    for (Route* route : {&bench.tcp, &bench.local}) {
      const absl::StatusOr<StreamTimes> times = MeasureStream(workload, bench.backend, *route, bench.options.rounds);
      if (!times.ok()) return times.status();
      bench.report["stream"].push_back(ReportStream(workload, *route, *times));
    }
  }
  std::printf("\nratio: prefill / (pump + kernel); target at most %.2f\n\n", kStreamTarget);
  return absl::OkStatus();
}

absl::Status RunShared(const Bench& bench) {
  std::printf("| prefill, shared      | kernel ms | total ms | ratio |\n");
  std::printf("| -------------------- | --------- | -------- | ----- |\n");
  std::vector<PrefillShape> shapes = StreamShapes();
  for (PrefillShape& shape : SharedShapes()) shapes.push_back(std::move(shape));
  for (PrefillShape& shape : shapes) {
    KernelWorkload workload(std::move(shape));
    const absl::StatusOr<SharedTimes> times = MeasureShared(workload, bench.backend, bench.local, bench.options.rounds);
    if (!times.ok()) return times.status();
    bench.report["shared"].push_back(ReportShared(workload, *times));
  }
  std::printf("\nratio: prefill / kernel; target at most %.1f from 1 ms on\n\n", kSharedTarget);
  return absl::OkStatus();
}

absl::Status RunTiny(const Bench& bench) {
  std::printf("| over                |     | empty us | tiny us  | ratio |\n");
  std::printf("| ------------------- | --- | -------- | -------- | ----- |\n");
  PrefillWorkload tiny(TinyShape());
  for (Route* route : {&bench.tcp, &bench.local}) {
    for (const auto& [name, transport] :
         {std::pair{"", Transport::kUnary}, std::pair{", shared memory", Transport::kSharedMemory}}) {
      const absl::StatusOr<TinyTimes> times = MeasureTiny(tiny, *route, transport, bench.options.calls);
      if (!times.ok()) return times.status();
      bench.report["tiny"].push_back(ReportTiny(absl::StrCat(route->name, name), *times));
    }
  }
  std::printf("\nratio: one-token prefill / empty RPC of the same server; target at most %.1f\n\n", kTinyTarget);
  return absl::OkStatus();
}

absl::Status RunCrowd(const Bench& bench) {
  std::printf(
      "| one token of           | clients     | calls / s | p50 us  | p99 us  | ratio | of empty | server | client "
      "|\n");
  std::printf(
      "| ---------------------- | ----------- | --------- | ------- | ------- | ----- | -------- | ------ | ------ "
      "|\n");
  CrowdPlan plan = {.server = bench.server.unix_address(),
                    .server_process = bench.server.process().pid(),
                    .shape = TinyShape(),
                    .call = CrowdCall::kEmpty,
                    .duration = absl::Milliseconds(bench.options.crowd_ms)};
  nlohmann::json& report = bench.report["crowd"];
  const absl::StatusOr<CrowdBase> empty = MeasureCrowds("nothing: an empty RPC", plan, nullptr, report);
  if (!empty.ok()) return empty.status();
  const PrefillShape model = {
      .name = "model", .lengths = {1}, .heads = 32, .key_dim = 128, .value_dim = 128, .continues = true};
  for (const auto& [shape, name] : {std::pair{TinyShape(), "4 x 64 x 64"}, std::pair{model, "32 x 128 x 128"}}) {
    plan.shape = shape;
    for (const auto& [transport, call] :
         {std::pair{"inline", CrowdCall::kInline}, std::pair{"shared", CrowdCall::kShared}}) {
      plan.call = call;
      const auto crowd = MeasureCrowds(absl::StrCat(name, ", ", transport), plan, &*empty, report);
      if (!crowd.ok()) return crowd.status();
    }
  }
  std::printf(
      "\nratio: throughput / one client's; target at least %.0f. of empty: throughput / that of as many clients with "
      "empty RPCs.\nserver, client: processor time of a call on either side, us\n",
      kCrowdTarget);
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  test::ServerProcess server({"--backend=" + options.backend});
  if (server.tcp_address().empty()) return absl::InternalError("gdpcached did not start");
  absl::StatusOr<Route> tcp = MakeRoute("tcp", server.tcp_address(), "127.0.0.1:0");
  if (!tcp.ok()) return tcp.status();
  absl::StatusOr<Route> local = MakeRoute("unix", server.unix_address(), server.unix_address() + ".pump");
  if (!local.ok()) return local.status();
  absl::StatusOr<std::unique_ptr<kernels::Backend>> backend = kernels::CreateBackend(
      {.choice = options.backend == "cuda" ? kernels::BackendChoice::kCuda : kernels::BackendChoice::kCpu});
  if (!backend.ok()) return backend.status();
  nlohmann::json report = {{"device", (*backend)->device_info().device}, {"rounds", options.rounds}};
  const Bench bench = {options, **backend, server, *tcp, *local, report};

  std::printf("%s; medians of %d rounds\n\n", (*backend)->device_info().device.c_str(), options.rounds);
  for (const auto& [part, run] : {std::pair{"stream", &RunStream}, std::pair{"shared", &RunShared},
                                  std::pair{"tiny", &RunTiny}, std::pair{"crowd", &RunCrowd}}) {
    if (std::find(options.parts.begin(), options.parts.end(), part) == options.parts.end()) continue;
    if (absl::Status status = run(bench); !status.ok()) return status;
  }

  if (!options.json.empty()) {
    std::ofstream file(options.json);
    if (!(file << report.dump(2) << '\n')) return absl::UnknownError(absl::StrCat("cannot write ", options.json));
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Prefills through a real server against a raw byte pump, the bare recurrence and an empty RPC.");
  app.add_option("--rounds", options.rounds, "rounds of each streamed prefill")->check(CLI::Range(1, 1000));
  app.add_option("--calls", options.calls, "tiny prefills")->check(CLI::Range(100, 1'000'000));
  app.add_option("--crowd-ms", options.crowd_ms, "how long each crowd of clients calls")
      ->check(CLI::Range(100, 100'000));
  app.add_option("--parts", options.parts, "what to measure")
      ->delimiter(',')
      ->check(CLI::IsMember({"stream", "shared", "tiny", "crowd"}));
  app.add_option("--backend", options.backend, "what the server computes on")->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--json", options.json, "write every measurement to this file");
  CLI11_PARSE(app, argc, argv);
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);  // as the server does
  if (const absl::Status status = Run(options); !status.ok()) {
    std::cerr << "gdpcache_service_bench: " << status << '\n';
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace gdpcache::bench

int main(int argc, char** argv) {
  try {
    return gdpcache::bench::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gdpcache_service_bench: %s\n", error.what());
    return 1;
  }
}
