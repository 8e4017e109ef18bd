#include <iostream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/command/describe.h"
#include "client/command/snapshot_text.h"
#include "client/command/subcommand.h"
#include "client/command/text.h"

namespace gdpcache::command {
namespace {

nlohmann::json ToJson(const ServerInfo& info) {
  return {{"version", info.version},
          {"build",
           {{"commit", info.build.commit}, {"compiler", info.build.compiler}, {"libraries", info.build.libraries}}},
          {"backend", info.backend},
          {"device", info.device},
          {"device_memory_bytes", info.device_memory_bytes},
          {"state_memory_used_bytes", info.state_memory_used_bytes},
          {"staging_used_bytes", info.staging_used_bytes},
          {"expected_wait_ms", absl::ToInt64Milliseconds(info.expected_wait)},
          {"limits",
           {{"max_message_bytes", info.limits.max_message_bytes},
            {"state_memory_bytes", info.limits.state_memory_bytes},
            {"staging_bytes", info.limits.staging_bytes},
            {"max_caches", info.limits.max_caches},
            {"max_sessions", info.limits.max_sessions},
            {"max_sequences_per_call", info.limits.max_sequences_per_call},
            {"max_session_ttl_ms", absl::ToInt64Milliseconds(info.limits.max_session_ttl)},
            {"shared_memory_bytes", info.limits.shared_memory_bytes},
            {"max_regions", info.limits.max_regions},
            {"max_calls", info.limits.max_calls},
            {"max_queue_wait_ms", absl::ToInt64Milliseconds(info.limits.max_queue_wait)},
            {"max_connection_calls", info.limits.max_connection_calls},
            {"max_tenant_sessions", info.limits.max_tenant_sessions},
            {"max_tenant_slots", info.limits.max_tenant_slots}}},
          {"addresses", info.addresses},
          {"transports", info.transports},
          {"caches", command::ToJson(absl::MakeConstSpan(info.caches))},
          {"snapshot_tiers", command::ToJson(absl::MakeConstSpan(info.snapshot_tiers))},
          {"uptime_ms", absl::ToInt64Milliseconds(info.uptime)}};
}

/// "10, 5 of one tenant"
std::string WithTenantLimit(std::int64_t limit, std::int64_t of_tenant) {
  return of_tenant == 0 ? absl::StrCat(limit) : absl::StrCat(limit, ", ", of_tenant, " of one tenant");
}

void Print(const ServerInfo& info, std::ostream& out) {
  const ServerLimits& limits = info.limits;
  Table table({"version", info.version});
  table.Add({"build", absl::StrCat("commit ", info.build.commit, ", ", info.build.compiler, ", ",
                                   absl::StrJoin(info.build.libraries, ", "))});
  table.Add({"backend", info.backend});
  table.Add({"device", info.device});
  table.Add({"device memory", FormatBytes(info.device_memory_bytes)});
  table.Add({"uptime", absl::FormatDuration(info.uptime)});
  table.Add({"addresses", absl::StrJoin(info.addresses, ", ")});
  table.Add({"transports", absl::StrJoin(info.transports, ", ")});
  table.Add({"state memory",
             absl::StrCat(FormatBytes(info.state_memory_used_bytes), " of ", FormatBytes(limits.state_memory_bytes))});
  table.Add({"staging memory",
             absl::StrCat(FormatBytes(info.staging_used_bytes), " of ", FormatBytes(limits.staging_bytes))});
  table.Add({"expected wait", absl::FormatDuration(info.expected_wait)});
  for (const SnapshotTierInfo& tier : info.snapshot_tiers) {
    table.Add(
        {absl::StrCat("snapshots, ", TierName(tier.tier)),
         absl::StrCat(tier.snapshots, " in ", FormatBytes(tier.used_bytes), " of ", FormatBytes(tier.capacity_bytes))});
  }
  table.Add({"caches", absl::StrCat(info.caches.size(), " of ", limits.max_caches)});
  table.Add({"sessions, at most", WithTenantLimit(limits.max_sessions, limits.max_tenant_sessions)});
  if (limits.max_tenant_slots > 0) {
    table.Add({"slots, at most", absl::StrCat(limits.max_tenant_slots, " of one tenant")});
  }
  table.Add({"session ttl, at most", absl::FormatDuration(limits.max_session_ttl)});
  table.Add(
      {"calls, at most", absl::StrCat(limits.max_calls, ", ", limits.max_connection_calls, " of one connection")});
  table.Add({"expected wait, at most", absl::FormatDuration(limits.max_queue_wait)});
  table.Add({"sequences per call, at most", absl::StrCat(limits.max_sequences_per_call)});
  table.Add({"message, at most", FormatBytes(limits.max_message_bytes)});
  table.Add({"shared memory, at most", limits.shared_memory_bytes == 0
                                           ? "none"
                                           : absl::StrCat(FormatBytes(limits.shared_memory_bytes), ", ",
                                                          limits.max_regions, " regions and events")});
  table.Print(out);
  if (info.caches.empty()) return;
  out << "\n";
  PrintCaches(info.caches, out);
}

absl::Status RunInfo(const ServerOptions& options) {
  const absl::StatusOr<Client> client = Connect(options);
  if (!client.ok()) return client.status();
  const absl::StatusOr<ServerInfo> info = client->GetServerInfo();
  if (!info.ok()) return info.status();
  if (options.json) {
    PrintJson(ToJson(*info), std::cout);
  } else {
    Print(*info, std::cout);
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<Subcommand> AddInfo(CLI::App* app) {
  auto options = std::make_shared<ServerOptions>();
  CLI::App* parser = app->add_subcommand("info", "Show the server: version, backend, limits, memory in use, caches");
  AddServerOptions(parser, options.get());
  return {{parser, [options] { return RunInfo(*options); }}};
}

}  // namespace gdpcache::command
