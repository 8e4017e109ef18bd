#ifndef GDPCACHE_SERVER_CONFIG_CONFIG_FILE_H_
#define GDPCACHE_SERVER_CONFIG_CONFIG_FILE_H_

#include <string>
#include <utility>
#include <vector>

#include "gdpcache/config/v1/server_config.pb.h"
#include "gdpcache/v1/cache.pb.h"

namespace gdpcache::config {

/// A configuration file taken apart; no value has been looked at.
struct ConfigFile {
  std::vector<std::pair<std::string, std::string>> values;  // flag name and value
  std::vector<gdpcache::v1::CreateCacheRequest> caches;
  std::vector<v1::Identity> identities;
};

/// Reads server_config.proto in text format from a file that can be trusted, since it says who may do what. Appends
/// what is wrong, with line and column.
ConfigFile ReadConfigFile(const std::string& path, std::vector<std::string>& errors);

}  // namespace gdpcache::config

#endif  // GDPCACHE_SERVER_CONFIG_CONFIG_FILE_H_
