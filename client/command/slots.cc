#include <iostream>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/command/subcommand.h"
#include "client/command/text.h"

namespace gdpcache::command {
namespace {

struct SlotsOptions {
  ServerOptions server;
  std::string cache;  // empty: all
};

using SlotsOfCaches = std::vector<std::pair<std::string, SlotList>>;

absl::StatusOr<SlotsOfCaches> AskSlots(const Client& client, const std::string& cache) {
  std::vector<std::string> names = {cache};
  if (cache.empty()) {
    const absl::StatusOr<std::vector<CacheInfo>> caches = client.ListCaches();
    if (!caches.ok()) return caches.status();
    names.clear();
    for (const CacheInfo& info : *caches) names.push_back(info.name);
  }
  SlotsOfCaches result;
  for (const std::string& name : names) {
    absl::StatusOr<SlotList> list = client.ListSlots(name);
    // A cache may go between the two questions.
    if (absl::IsNotFound(list.status()) && cache.empty()) continue;
    if (!list.ok()) return list.status();
    result.emplace_back(name, *std::move(list));
  }
  return result;
}

nlohmann::json ToJson(const SlotsOfCaches& caches) {
  nlohmann::json result = nlohmann::json::array();
  for (const auto& [name, list] : caches) {
    nlohmann::json slots = nlohmann::json::array();
    for (const SlotInfo& slot : list.slots) {
      slots.push_back({{"slot", slot.slot},
                       {"client_name", slot.client_name},
                       {"min_position", slot.min_position},
                       {"max_position", slot.max_position},
                       {"session_expires_in_ms", absl::ToInt64Milliseconds(slot.session_expires_in)}});
    }
    result.push_back({{"name", name}, {"free_slots", list.free_slots}, {"slots", std::move(slots)}});
  }
  return {{"caches", std::move(result)}};
}

void Print(const SlotsOfCaches& caches, std::ostream& out) {
  if (caches.empty()) out << "no caches\n";
  Table table({"CACHE", "SLOT", "CLIENT", "POSITION", "EXPIRES IN"});
  bool held = false;
  for (const auto& [name, list] : caches) {
    out << name << ": " << list.slots.size() << " held, " << list.free_slots << " free\n";
    for (const SlotInfo& slot : list.slots) {
      held = true;
      table.Add({name, absl::StrCat(slot.slot), slot.client_name,
                 slot.min_position == slot.max_position ? absl::StrCat(slot.min_position)
                                                        : absl::StrCat(slot.min_position, "-", slot.max_position),
                 absl::FormatDuration(slot.session_expires_in)});
    }
  }
  if (!held) return;
  out << "\n";
  table.Print(out);
}

absl::Status RunSlots(const SlotsOptions& options) {
  const absl::StatusOr<Client> client = Connect(options.server);
  if (!client.ok()) return client.status();
  const absl::StatusOr<SlotsOfCaches> caches = AskSlots(*client, options.cache);
  if (!caches.ok()) return caches.status();
  if (options.server.json) {
    PrintJson(ToJson(*caches), std::cout);
  } else {
    Print(*caches, std::cout);
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<Subcommand> AddSlots(CLI::App* app) {
  auto options = std::make_shared<SlotsOptions>();
  CLI::App* parser = app->add_subcommand("slots", "Show the slots that sessions hold, and their positions in tokens");
  parser->add_option("CACHE", options->cache, "Only this cache");
  AddServerOptions(parser, &options->server);
  return {{parser, [options] { return RunSlots(*options); }}};
}

}  // namespace gdpcache::command
