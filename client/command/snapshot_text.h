#ifndef GDPCACHE_CLIENT_COMMAND_SNAPSHOT_TEXT_H_
#define GDPCACHE_CLIENT_COMMAND_SNAPSHOT_TEXT_H_

#include <ostream>
#include <string>

#include "absl/types/span.h"
#include "gdpcache/snapshot.h"
#include "nlohmann/json.hpp"

/// How the command shows snapshots, in every place alike. Keys are hexadecimal.
namespace gdpcache::command {

/// A key as people write it; empty when `text` is none. CheckKey says why.
std::string KeyFromHex(const std::string& text);
std::string KeyToHex(const std::string& key);

/// Empty when `text` is a key in hexadecimal, as CLI11 has it.
std::string CheckKey(const std::string& text);

/// "device", "host" or "disk".
std::string TierName(SnapshotTier tier);

nlohmann::json ToJson(const Snapshot& snapshot);
nlohmann::json ToJson(absl::Span<const Snapshot> snapshots);
void PrintSnapshots(absl::Span<const Snapshot> snapshots, std::ostream& out);

}  // namespace gdpcache::command

#endif  // GDPCACHE_CLIENT_COMMAND_SNAPSHOT_TEXT_H_
