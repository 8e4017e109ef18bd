#include "tests/bench/client_crowd.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <latch>
#include <memory>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
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

absl::StatusOr<Member> MakeMember(const std::string& server, const std::string& cache, const PrefillShape& shape,
                                  std::int64_t slots, Transport transport) {
  absl::StatusOr<Client> client = Client::Connect(server);
  if (!client.ok()) return client.status();
  auto workload = std::make_unique<PrefillWorkload>(shape);
  CacheGeometry geometry = workload->geometry();
  geometry.slots = slots;
  const absl::StatusOr<CreatedCache> created =
      client->CreateCache({.name = cache, .geometry = geometry, .fingerprint = "bench", .ephemeral = true});
  if (!created.ok()) return created.status();
  absl::StatusOr<Session> session = client->OpenSession(cache);
  if (!session.ok()) return session.status();
  absl::StatusOr<std::vector<std::int64_t>> slot = session->AcquireSlots(1);
  if (!slot.ok()) return slot.status();
  if (transport == Transport::kSharedMemory) {
    if (absl::Status status = workload->Share(*session); !status.ok()) return status;
  }
  return Member{*std::move(client), *std::move(session), *std::move(slot), std::move(workload), {}, {}};
}

}  // namespace

absl::StatusOr<CrowdTimes> MeasureCrowd(const std::string& server, const PrefillShape& shape, int clients,
                                        Caches caches, Transport transport, absl::Duration duration) {
  std::vector<Member> members;
  for (int i = 0; i < clients; ++i) {
    const bool one = caches == Caches::kOne;
    absl::StatusOr<Member> member =
        MakeMember(server, one ? "bench/crowd" : absl::StrCat("bench/crowd/", i), shape, one ? clients : 1, transport);
    if (!member.ok()) return member.status();
    members.push_back(*std::move(member));
  }
  std::latch ready(clients + 1);
  std::atomic<bool> counting = false;
  std::atomic<bool> over = false;
  std::vector<std::thread> threads;
  threads.reserve(members.size());
  for (Member& member : members) {
    threads.emplace_back([&] {
      ready.arrive_and_wait();
      while (!over && member.status.ok()) {
        const absl::StatusOr<absl::Duration> call = member.workload->RunPrefill(member.session, member.slot, transport);
        member.status = call.status();
        if (call.ok() && counting && !over) member.call_us.push_back(absl::ToDoubleMicroseconds(*call));
      }
    });
  }
  ready.arrive_and_wait();
  absl::SleepFor(duration / 4);  // connections, threads and memory settle
  counting = true;
  const absl::Time start = absl::Now();
  absl::SleepFor(duration);
  over = true;
  const absl::Duration counted = absl::Now() - start;
  for (std::thread& thread : threads) thread.join();
  CrowdTimes times;
  for (const Member& member : members) {
    if (!member.status.ok()) return member.status;
    times.call_us.insert(times.call_us.end(), member.call_us.begin(), member.call_us.end());
  }
  if (times.call_us.empty()) return absl::DeadlineExceededError("no call was over in time");
  times.calls_per_second = static_cast<double>(times.call_us.size()) / absl::ToDoubleSeconds(counted);
  return times;
}

}  // namespace gdpcache::bench
