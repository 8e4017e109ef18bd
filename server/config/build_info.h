#ifndef GDPCACHE_SERVER_CONFIG_BUILD_INFO_H_
#define GDPCACHE_SERVER_CONFIG_BUILD_INFO_H_

#include <string>
#include <vector>

namespace gdpcache::config {

/// What this program was made of.
struct BuildInfo {
  std::string version;                 // the release: "0.1.0"
  std::string commit;                  // of the source, "-dirty" behind it when there were changes; or "unknown"
  std::string compiler;                // "GCC 12.2.0"
  std::vector<std::string> libraries;  // "gRPC 1.51.1"
};

BuildInfo ThisBuild();

/// What --version prints.
std::string VersionText();

}  // namespace gdpcache::config

#endif  // GDPCACHE_SERVER_CONFIG_BUILD_INFO_H_
