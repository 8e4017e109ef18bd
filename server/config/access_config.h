#ifndef GDPCACHE_SERVER_CONFIG_ACCESS_CONFIG_H_
#define GDPCACHE_SERVER_CONFIG_ACCESS_CONFIG_H_

#include <string>
#include <vector>

#include "server/config/config.h"

namespace gdpcache::config {

/// Appends what is wrong with the addresses to listen on and with who may use the server.
void CheckAccess(const Config& config, bool allow_insecure, std::vector<std::string>& errors);

}  // namespace gdpcache::config

#endif  // GDPCACHE_SERVER_CONFIG_ACCESS_CONFIG_H_
