#include "tests/bench/overload.h"

#include <grpcpp/client_context.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <fstream>
#include <latch>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "gdpcache/v1/state_cache.grpc.pb.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tests/support/server_process.h"

namespace gdpcache::bench {
namespace {

using Stub = v1::StateCache::Stub;

// Calls that build on each other, the first from zero.
constexpr std::size_t kSteps = 4;
// Of the calls at the limit, which may be refused.
constexpr double kRefusedAtLimit = 0.01;
constexpr absl::Duration kPatience = absl::Minutes(1);

absl::Status ToStatus(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

template <typename Request, typename Response>
absl::Status Call(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                  const Request& request, Response& response) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  return ToStatus((stub.*method)(&context, request, &response));
}

void SetRandom(std::int64_t rows, std::int64_t heads, std::int64_t width, float scale, std::mt19937& random,
               v1::Tensor& tensor) {
  tensor.set_dtype(v1::DATA_TYPE_BFLOAT16);
  for (const std::int64_t size : {rows, heads, width}) tensor.add_shape(size);
  std::string& bytes = *tensor.mutable_inline_();
  for (std::int64_t n = 0; n < rows * heads * width; ++n) {
    const float x = scale * (static_cast<float>(random()) * 0x1p-31F - 1.0F);
    const auto bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
    bytes.push_back(static_cast<char>(bits & 0xFF));
    bytes.push_back(static_cast<char>(bits >> 8));
  }
}

/// The steps' requests but for whose they are.
std::vector<v1::PrefillRequest> MakeSteps(const OverloadShape& shape) {
  std::mt19937 random(7);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same inputs every time
  const float unit = 1.0F / std::sqrt(static_cast<float>(shape.key_dim));
  const std::int64_t rows = shape.sequences * shape.tokens;
  std::vector<v1::PrefillRequest> steps(kSteps);
  for (v1::PrefillRequest& request : steps) {
    SetRandom(rows, shape.heads, shape.key_dim, unit, random, *request.mutable_k());
    SetRandom(rows, shape.heads, shape.key_dim, unit, random, *request.mutable_w());
    SetRandom(rows, shape.heads, shape.value_dim, 1, random, *request.mutable_u());
    for (std::int64_t n = 0; n <= shape.sequences; ++n) request.add_cu_seqlens(n * shape.tokens);
    request.set_initial_state_source(v1::INITIAL_STATE_SOURCE_SLOT);
    request.set_save_new_value(true);
    request.mutable_states()->set_mode(v1::StateSelection::MODE_NONE);
  }
  steps.front().set_initial_state_source(v1::INITIAL_STATE_SOURCE_ZERO);
  return steps;
}

struct Sample {
  float ms;
  bool admitted;
};

/// One client: a connection, a session, slots, and how far it has come.
class Client {
 public:
  static absl::StatusOr<std::unique_ptr<Client>> Open(const std::string& server, const OverloadOptions& options,
                                                      const std::vector<v1::PrefillRequest>& steps) {
    auto client = std::unique_ptr<Client>(new Client(server, steps));
    v1::CreateCacheRequest create;
    create.set_name("overload");
    create.set_fingerprint("overload");
    v1::CacheGeometry& geometry = *create.mutable_geometry();
    geometry.set_layers(1);
    geometry.set_slots(options.shape.sequences * options.clients);
    geometry.set_heads(options.shape.heads);
    geometry.set_key_dim(options.shape.key_dim);
    geometry.set_value_dim(options.shape.value_dim);
    v1::CreateCacheResponse created;
    if (absl::Status status = Call(*client->stub_, &Stub::CreateCache, create, created); !status.ok()) return status;
    v1::OpenSessionRequest open;
    open.set_cache("overload");
    open.set_client_name("overload");
    open.set_ttl_ms(absl::ToInt64Milliseconds(absl::Hours(1)));
    v1::OpenSessionResponse opened;
    if (absl::Status status = Call(*client->stub_, &Stub::OpenSession, open, opened); !status.ok()) return status;
    v1::AcquireSlotsRequest acquire;
    acquire.set_session(opened.session());
    acquire.set_count(options.shape.sequences);
    v1::AcquireSlotsResponse acquired;
    if (absl::Status status = Call(*client->stub_, &Stub::AcquireSlots, acquire, acquired); !status.ok()) return status;
    for (v1::PrefillRequest& step : client->steps_) {
      step.set_session(opened.session());
      *step.mutable_state_indices() = acquired.slots();
    }
    return client;
  }

  /// Makes the next call. With `expected` empty its results are what others will be compared with.
  void CallOnce(std::vector<std::string>& expected) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    const absl::Time begin = absl::Now();
    const grpc::Status status = stub_->Prefill(&context, steps_[next_], &response_);
    const auto ms = static_cast<float>(absl::ToDoubleMilliseconds(absl::Now() - begin));
    ++statuses_[absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code()))];
    if (status.ok()) {
      samples_.push_back({ms, true});
      const std::string& result = response_.v_new().inline_();
      if (expected.size() == next_) expected.push_back(result);
      if (result != expected[next_]) ++wrong_results_;
      next_ = (next_ + 1) % kSteps;
    } else {
      samples_.push_back({ms, false});
      if (!HasRetryInfo(status)) ++refused_without_retry_info_;
    }
  }

  /// Adds what has been counted to a phase, and forgets it.
  void MoveCounts(OverloadPhase& phase, std::vector<float>& admitted, std::vector<float>& refused) {
    for (const Sample& sample : samples_) (sample.admitted ? admitted : refused).push_back(sample.ms);
    samples_.clear();
    for (const auto& [status, count] : std::exchange(statuses_, {})) phase.statuses[status] += count;
    phase.wrong_results += std::exchange(wrong_results_, 0);
    phase.refused_without_retry_info += std::exchange(refused_without_retry_info_, 0);
  }

 private:
  Client(const std::string& server, const std::vector<v1::PrefillRequest>& steps)
      : stub_(v1::StateCache::NewStub(test::Connect(server))), steps_(steps) {}

  static bool HasRetryInfo(const grpc::Status& status) {
    google::rpc::Status wire;
    if (!wire.ParseFromString(status.error_details())) return false;
    return std::any_of(wire.details().begin(), wire.details().end(),
                       [](const auto& detail) { return detail.template Is<google::rpc::RetryInfo>(); });
  }

  const std::unique_ptr<Stub> stub_;
  std::vector<v1::PrefillRequest> steps_;
  std::size_t next_ = 0;
  v1::PrefillResponse response_;
  std::vector<Sample> samples_;
  std::map<std::string, std::int64_t> statuses_;
  std::int64_t wrong_results_ = 0;
  std::int64_t refused_without_retry_info_ = 0;
};

double Percentile(std::vector<float>& values, double share) {
  if (values.empty()) return 0;
  const auto nth = values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), nth, values.end());
  return *nth;
}

std::int64_t PeakResidentBytes(pid_t process) {
  std::ifstream file(absl::StrCat("/proc/", process, "/status"));
  for (std::string line; std::getline(file, line);) {
    absl::string_view rest = line;
    std::int64_t kibibytes = 0;
    if (absl::ConsumePrefix(&rest, "VmHWM:") && absl::ConsumeSuffix(&rest, " kB") &&
        absl::SimpleAtoi(rest, &kibibytes)) {
      return kibibytes << 10;
    }
  }
  return 0;
}

/// Runs phases on a server with clients that stay.
class Driver {
 public:
  Driver(const OverloadOptions& options, test::ServerProcess& server)
      : options_(options), server_(server), steps_(MakeSteps(options.shape)) {}

  absl::Status Connect() {
    for (int n = 0; n < options_.clients; ++n) {
      absl::StatusOr<std::unique_ptr<Client>> client = Client::Open(server_.unix_address(), options_, steps_);
      if (!client.ok()) return client.status();
      clients_.push_back(*std::move(client));
    }
    while (expected_.size() < kSteps) {
      const std::size_t before = expected_.size();
      clients_.front()->CallOnce(expected_);
      if (expected_.size() == before) return absl::UnavailableError("an idle server refuses calls");
    }
    return absl::OkStatus();
  }

  /// The first `clients` of them call for `duration`: each one call after the other, or, with a `rate`, together that
  /// many a second, whatever becomes of them.
  OverloadPhase Run(int clients, absl::Duration duration, double rate = 0) {
    std::latch ready(clients + 1);
    std::atomic<bool> over = false;
    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(clients));
    for (int n = 0; n < clients; ++n) {
      threads.emplace_back([&, n] {
        const absl::Duration period = rate > 0 ? absl::Seconds(clients / rate) : absl::ZeroDuration();
        ready.arrive_and_wait();
        absl::Time due = absl::Now() + period * (static_cast<double>(n) / clients);
        while (!over) {
          absl::SleepFor(due - absl::Now());
          clients_[static_cast<std::size_t>(n)]->CallOnce(expected_);
          // One that comes late makes up for it, but not for ever.
          due = std::max(due + period, absl::Now() - absl::Seconds(1));
        }
      });
    }
    ready.arrive_and_wait();
    const absl::Time begin = absl::Now();
    absl::SleepFor(duration);
    over = true;
    OverloadPhase phase;
    phase.clients = clients;
    phase.seconds = absl::ToDoubleSeconds(absl::Now() - begin);
    for (std::thread& thread : threads) thread.join();
    std::vector<float> admitted;
    std::vector<float> refused;
    for (const std::unique_ptr<Client>& client : clients_) client->MoveCounts(phase, admitted, refused);
    phase.admitted_per_second = static_cast<double>(admitted.size()) / phase.seconds;
    phase.offered_per_second = static_cast<double>(admitted.size() + refused.size()) / phase.seconds;
    phase.admitted_p50_ms = Percentile(admitted, 0.5);
    phase.admitted_p99_ms = Percentile(admitted, 0.99);
    phase.admitted_max_ms = Percentile(admitted, 1);
    phase.refused_p50_ms = Percentile(refused, 0.5);
    phase.refused_p99_ms = Percentile(refused, 0.99);
    phase.peak_resident_bytes = PeakResidentBytes(server_.process().pid());
    return phase;
  }

  /// The most clients of which next to none is refused, found by trying.
  OverloadPhase RunAtLimit(absl::Duration duration) {
    const auto fits = [](const OverloadPhase& phase) {
      return phase.offered_per_second - phase.admitted_per_second <= kRefusedAtLimit * phase.offered_per_second;
    };
    const absl::Duration trial = std::max(duration / 10, absl::Milliseconds(300));
    int least = 1;
    int most = options_.clients;
    while (least < most) {
      const int middle = (least + most + 1) / 2;
      if (fits(Run(middle, trial))) {
        least = middle;
      } else {
        most = middle - 1;
      }
    }
    // What fits into a trial may be too much for longer.
    for (int clients = least;; clients -= (clients + 7) / 8) {
      OverloadPhase phase = Run(clients, duration);
      if (clients == 1 || fits(phase)) return phase;
    }
  }

 private:
  const OverloadOptions& options_;
  test::ServerProcess& server_;
  const std::vector<v1::PrefillRequest> steps_;
  std::vector<std::string> expected_;  // v_new of each step, from the idle server
  std::vector<std::unique_ptr<Client>> clients_;
};

struct Row {
  std::string name;
  const OverloadPhase& phase;
};

std::vector<Row> Rows(const OverloadReport& report) {
  return {{"idle", report.idle}, {"at the limit", report.at_limit}, {"overload", report.overload}};
}

}  // namespace

absl::StatusOr<OverloadReport> RunOverload(const OverloadOptions& options) {
  std::vector<std::string> flags = {"--listen=", "--max-queue-wait=20ms", "--log-level=error"};
  flags.insert(flags.end(), options.server_flags.begin(), options.server_flags.end());
  test::ServerProcess server(flags);
  if (server.ready_line().empty()) return absl::UnavailableError("the server does not start");
  OverloadReport report;
  {
    Driver driver(options, server);
    if (absl::Status status = driver.Connect(); !status.ok()) return status;
    const absl::Duration rehearsal = std::clamp(options.duration / 5, absl::Milliseconds(500), absl::Seconds(20));
    report.idle = driver.Run(1, rehearsal);
    report.at_limit = driver.RunAtLimit(rehearsal);
    report.overload = driver.Run(options.clients, options.duration, options.load * report.at_limit.admitted_per_second);
  }
  server.process().Signal(SIGTERM);
  const std::optional<int> exit_code = server.process().Wait();
  if (!exit_code.has_value()) return absl::DeadlineExceededError("the server does not stop");
  report.server_exit_code = *exit_code;
  return report;
}

std::string ToJson(const OverloadReport& report) {
  nlohmann::json json;
  for (const auto& [name, phase] : Rows(report)) {
    json[name] = {{"clients", phase.clients},
                  {"seconds", phase.seconds},
                  {"offered_per_second", phase.offered_per_second},
                  {"admitted_per_second", phase.admitted_per_second},
                  {"admitted_p50_ms", phase.admitted_p50_ms},
                  {"admitted_p99_ms", phase.admitted_p99_ms},
                  {"admitted_max_ms", phase.admitted_max_ms},
                  {"refused_p50_ms", phase.refused_p50_ms},
                  {"refused_p99_ms", phase.refused_p99_ms},
                  {"statuses", phase.statuses},
                  {"refused_without_retry_info", phase.refused_without_retry_info},
                  {"wrong_results", phase.wrong_results},
                  {"peak_resident_bytes", phase.peak_resident_bytes}};
  }
  json["p99_ratio"] = report.p99_ratio();
  json["server_exit_code"] = report.server_exit_code;
  return json.dump(2);
}

std::string ToTable(const OverloadReport& report) {
  std::string table =
      "             CLIENTS  OFFERED/S  ADMITTED/S  P50 MS  P99 MS  MAX MS  REFUSED P50  P99 MS  PEAK MB\n";
  for (const auto& [name, phase] : Rows(report)) {
    absl::StrAppendFormat(&table, "%-12s %7d %10.0f %11.0f %7.1f %7.1f %7.1f %12.1f %7.1f %8d\n", name, phase.clients,
                          phase.offered_per_second, phase.admitted_per_second, phase.admitted_p50_ms,
                          phase.admitted_p99_ms, phase.admitted_max_ms, phase.refused_p50_ms, phase.refused_p99_ms,
                          phase.peak_resident_bytes / 1'000'000);
  }
  absl::StrAppendFormat(&table, "\np99 under overload / at the limit: %.2f\n", report.p99_ratio());
  absl::StrAppend(&table, "statuses under overload:");
  for (const auto& [status, count] : report.overload.statuses) absl::StrAppend(&table, " ", status, " ", count);
  absl::StrAppend(&table, "\nrefusals without RetryInfo: ", report.overload.refused_without_retry_info,
                  "\nwrong results: ", report.overload.wrong_results, " of ", report.overload.count("OK"), "\n");
  return table;
}

}  // namespace gdpcache::bench
