#ifndef GDPCACHE_CLIENT_COMMAND_TOP_FIGURES_H_
#define GDPCACHE_CLIENT_COMMAND_TOP_FIGURES_H_

#include <optional>
#include <string>

#include "absl/time/time.h"

/// Figures in few characters.
namespace gdpcache::command::top {

/// "0", "0.25", "12", "1.2k", "123k", "4.5M".
std::string ShortCount(double count);

/// "120 us", "1.2 ms", "3.4 s"; "-" for none.
std::string ShortDuration(std::optional<absl::Duration> duration);

/// "42s", "5m 3s", "2h 13m", "3d 4h".
std::string ShortUptime(absl::Duration uptime);

/// "51 %"; "-" of nothing.
std::string Percent(double share, double whole);

}  // namespace gdpcache::command::top

#endif  // GDPCACHE_CLIENT_COMMAND_TOP_FIGURES_H_
