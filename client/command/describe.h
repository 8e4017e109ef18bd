#ifndef GDPCACHE_CLIENT_COMMAND_DESCRIBE_H_
#define GDPCACHE_CLIENT_COMMAND_DESCRIBE_H_

#include <ostream>

#include "absl/types/span.h"
#include "gdpcache/cache.h"
#include "nlohmann/json.hpp"

/// How the command shows caches and tiers, in every place alike.
namespace gdpcache::command {

nlohmann::json ToJson(const CacheInfo& cache);
nlohmann::json ToJson(absl::Span<const CacheInfo> caches);
nlohmann::json ToJson(absl::Span<const SnapshotTierInfo> tiers);
void PrintCaches(absl::Span<const CacheInfo> caches, std::ostream& out);

}  // namespace gdpcache::command

#endif  // GDPCACHE_CLIENT_COMMAND_DESCRIBE_H_
