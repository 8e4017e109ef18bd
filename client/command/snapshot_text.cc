#include "client/command/snapshot_text.h"

#include <algorithm>
#include <cctype>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/command/text.h"

namespace gdpcache::command {
namespace {

/// To the second: more is of no use to anybody.
std::string FormatAge(absl::Duration age) { return absl::FormatDuration(absl::Trunc(age, absl::Seconds(1))); }

std::string TierNames(const Snapshot& snapshot) {
  return absl::StrJoin(snapshot.tiers, ",",
                       [](std::string* out, SnapshotTier tier) { absl::StrAppend(out, TierName(tier)); });
}

}  // namespace

std::string CheckKey(const std::string& text) {
  const bool is_hex = std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isxdigit(c) != 0; });
  const std::size_t digits = text.size();
  if (is_hex && digits % 2 == 0 && digits / 2 >= kMinSnapshotKeyBytes && digits / 2 <= kMaxSnapshotKeyBytes) return "";
  return absl::StrCat("'", text, "' is no key: ", 2 * kMinSnapshotKeyBytes, " to ", 2 * kMaxSnapshotKeyBytes,
                      " hexadecimal digits, two for each byte");
}

std::string KeyFromHex(const std::string& text) { return CheckKey(text).empty() ? absl::HexStringToBytes(text) : ""; }

std::string KeyToHex(const std::string& key) { return absl::BytesToHexString(key); }

std::string TierName(SnapshotTier tier) {
  switch (tier) {
    case SnapshotTier::kDevice:
      return "device";
    case SnapshotTier::kHost:
      return "host";
    case SnapshotTier::kDisk:
      return "disk";
    case SnapshotTier::kUnknown:
      return "unknown";
  }
  return "unknown";
}

nlohmann::json ToJson(const Snapshot& snapshot) {
  nlohmann::json tiers = nlohmann::json::array();
  for (const SnapshotTier tier : snapshot.tiers) tiers.push_back(TierName(tier));
  return {{"key", KeyToHex(snapshot.key)},
          {"position", snapshot.position},
          {"bytes", snapshot.bytes},
          {"tiers", std::move(tiers)},
          {"pinned", snapshot.pinned},
          {"age_ms", absl::ToInt64Milliseconds(snapshot.age)},
          {"idle_ms", absl::ToInt64Milliseconds(snapshot.idle)}};
}

nlohmann::json ToJson(absl::Span<const Snapshot> snapshots) {
  nlohmann::json list = nlohmann::json::array();
  for (const Snapshot& snapshot : snapshots) list.push_back(ToJson(snapshot));
  return list;
}

void PrintSnapshots(absl::Span<const Snapshot> snapshots, std::ostream& out) {
  Table table({"KEY", "POSITION", "SIZE", "TIERS", "PINNED", "AGE", "IDLE"});
  for (const Snapshot& snapshot : snapshots) {
    table.Add({KeyToHex(snapshot.key), absl::StrCat(snapshot.position), FormatBytes(snapshot.bytes),
               TierNames(snapshot), snapshot.pinned ? "yes" : "no", FormatAge(snapshot.age), FormatAge(snapshot.idle)});
  }
  table.Print(out);
}

}  // namespace gdpcache::command
