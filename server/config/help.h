#ifndef GDPCACHE_SERVER_CONFIG_HELP_H_
#define GDPCACHE_SERVER_CONFIG_HELP_H_

#include <string>

namespace gdpcache::config {

/// What --help prints: every flag with its meaning and default.
std::string HelpText();

}  // namespace gdpcache::config

#endif  // GDPCACHE_SERVER_CONFIG_HELP_H_
