#include "client/command/describe.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "client/command/snapshot_text.h"
#include "client/command/text.h"

namespace gdpcache::command {

nlohmann::json ToJson(const CacheInfo& cache) {
  const CacheGeometry& geometry = cache.geometry;
  return {{"name", cache.name},
          {"geometry",
           {{"layers", geometry.layers},
            {"slots", geometry.slots},
            {"heads", geometry.heads},
            {"key_dim", geometry.key_dim},
            {"value_dim", geometry.value_dim},
            {"num_householder", geometry.num_householder},
            {"state_dtype", std::string(DataTypeName(geometry.state_dtype))},
            {"auxiliary_bytes", geometry.auxiliary_bytes}}},
          {"fingerprint", cache.fingerprint},
          {"ephemeral", cache.ephemeral},
          {"free_slots", cache.free_slots},
          {"held_slots", cache.held_slots},
          {"sessions", cache.sessions},
          {"memory_bytes", cache.memory_bytes}};
}

nlohmann::json ToJson(absl::Span<const CacheInfo> caches) {
  nlohmann::json list = nlohmann::json::array();
  for (const CacheInfo& cache : caches) list.push_back(ToJson(cache));
  return list;
}

nlohmann::json ToJson(absl::Span<const SnapshotTierInfo> tiers) {
  nlohmann::json list = nlohmann::json::array();
  for (const SnapshotTierInfo& tier : tiers) {
    list.push_back({{"tier", TierName(tier.tier)},
                    {"capacity_bytes", tier.capacity_bytes},
                    {"used_bytes", tier.used_bytes},
                    {"snapshots", tier.snapshots}});
  }
  return list;
}

void PrintCaches(absl::Span<const CacheInfo> caches, std::ostream& out) {
  Table table({"CACHE", "LAYERS", "SLOTS", "HELD", "SESSIONS", "HEADS", "K", "V", "M", "STATE", "AUXILIARY", "MEMORY",
               "EPHEMERAL"});
  for (const CacheInfo& cache : caches) {
    const CacheGeometry& geometry = cache.geometry;
    table.Add({cache.name, absl::StrCat(geometry.layers), absl::StrCat(geometry.slots), absl::StrCat(cache.held_slots),
               absl::StrCat(cache.sessions), absl::StrCat(geometry.heads), absl::StrCat(geometry.key_dim),
               absl::StrCat(geometry.value_dim), absl::StrCat(geometry.num_householder),
               std::string(DataTypeName(geometry.state_dtype)), FormatBytes(geometry.auxiliary_bytes),
               FormatBytes(cache.memory_bytes), cache.ephemeral ? "yes" : "no"});
  }
  table.Print(out);
}

}  // namespace gdpcache::command
