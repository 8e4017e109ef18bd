#include "client/command/bench/client_crowd.h"

#include <time.h>

#include <atomic>
#include <cstdint>
#include <latch>
#include <memory>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/command/bench/interruption.h"
#include "client/command/bench/rounds.h"
#include "gdpcache/client.h"

namespace gdpcache::bench {
namespace {

/// One client, ready to call.
struct Member {
  Client client;
  Session session;
  std::vector<std::int64_t> slot;
  std::unique_ptr<PrefillWorkload> workload;
  std::vector<double> call_us;
  absl::Status status;
};

absl::StatusOr<Member> MakeMember(const CrowdPlan& plan, const std::string& cache, std::int64_t slots) {
  absl::StatusOr<Client> client = Client::Connect(plan.server, plan.client_options);
  if (!client.ok()) return client.status();
  auto workload = std::make_unique<PrefillWorkload>(plan.shape);
  CacheGeometry geometry = workload->geometry();
  geometry.slots = slots;
  const absl::StatusOr<CreatedCache> created =
      client->CreateCache({.name = cache, .geometry = geometry, .fingerprint = "bench", .ephemeral = true});
  if (!created.ok()) return created.status();
  absl::StatusOr<Session> session = client->OpenSession(cache);
  if (!session.ok()) return session.status();
  absl::StatusOr<std::vector<std::int64_t>> slot = session->AcquireSlots(1);
  if (!slot.ok()) return slot.status();
  if (plan.call == CrowdCall::kShared) {
    if (absl::Status status = workload->Share(*session); !status.ok()) return status;
  }
  return Member{*std::move(client), *std::move(session), *std::move(slot), std::move(workload), {}, {}};
}

absl::StatusOr<absl::Duration> CallOnce(Member& member, CrowdCall call) {
  if (call == CrowdCall::kEmpty) return Timed([&] { return member.session.KeepAlive().status(); });
  return member.workload->RunPrefill(member.session, member.slot,
                                     call == CrowdCall::kShared ? Transport::kSharedMemory : Transport::kUnary);
}

/// Processor time of a process so far; 0 names this one.
absl::Duration ProcessorTime(pid_t process) {
  clockid_t clock = CLOCK_PROCESS_CPUTIME_ID;
  timespec now = {};
  if ((process != 0 && clock_getcpuclockid(process, &clock) != 0) || clock_gettime(clock, &now) != 0) {
    return absl::ZeroDuration();
  }
  return absl::DurationFromTimespec(now);
}

}  // namespace

absl::StatusOr<CrowdTimes> MeasureCrowd(const CrowdPlan& plan, int clients, Caches caches) {
  std::vector<Member> members;
  for (int i = 0; i < clients; ++i) {
    const bool one = caches == Caches::kOne;
    absl::StatusOr<Member> member =
        MakeMember(plan, one ? plan.cache : absl::StrCat(plan.cache, "/", i), one ? clients : 1);
    if (!member.ok()) return member.status();
    members.push_back(*std::move(member));
  }
  std::latch ready(clients + 1);
  std::atomic<bool> counting = false;
  std::atomic<bool> over = false;
  std::atomic<bool> any = false;  // call is counted, or has failed
  std::vector<std::thread> threads;
  threads.reserve(members.size());
  for (Member& member : members) {
    threads.emplace_back([&] {
      ready.arrive_and_wait();
      while (!over && member.status.ok()) {
        const absl::StatusOr<absl::Duration> took = CallOnce(member, plan.call);
        member.status = took.status();
        if (took.ok() && counting && !over) member.call_us.push_back(absl::ToDoubleMicroseconds(*took));
        if (!member.call_us.empty() || !took.ok()) any = true;
      }
    });
  }
  ready.arrive_and_wait();
  SleepUnlessInterrupted(plan.duration / 4);  // connections, threads and memory settle
  counting = true;
  const absl::Time start = absl::Now();
  const absl::Duration server_start = ProcessorTime(plan.server_process);
  const absl::Duration client_start = ProcessorTime(0);
  SleepUnlessInterrupted(plan.duration);
  // On a machine that is busy with other things the first call may take longer than that.
  while (!any && CheckInterruption().ok()) SleepUnlessInterrupted(absl::Milliseconds(1));
  over = true;
  const absl::Duration counted = absl::Now() - start;
  const absl::Duration server = ProcessorTime(plan.server_process) - server_start;
  const absl::Duration client = ProcessorTime(0) - client_start;
  for (std::thread& thread : threads) thread.join();
  if (absl::Status status = CheckInterruption(); !status.ok()) return status;
  CrowdTimes times;
  for (const Member& member : members) {
    if (!member.status.ok()) return member.status;
    times.call_us.insert(times.call_us.end(), member.call_us.begin(), member.call_us.end());
  }
  const auto calls = static_cast<double>(times.call_us.size());
  times.calls_per_second = calls / absl::ToDoubleSeconds(counted);
  times.server_us = absl::ToDoubleMicroseconds(server) / calls;
  times.client_us = absl::ToDoubleMicroseconds(client) / calls;
  return times;
}

}  // namespace gdpcache::bench
