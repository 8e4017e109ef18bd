#include "client/command/top/figures.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace gdpcache::command::top {
namespace {

/// Two figures at least, none behind the point from 10 on.
std::string TwoFigures(double value) {
  return value < 9.95 ? absl::StrFormat("%.1f", value) : absl::StrFormat("%.0f", value);
}

}  // namespace

std::string ShortCount(double count) {
  if (count < 0.995) return count < 0.005 ? "0" : absl::StrFormat("%.2f", count);
  if (count < 999.5) return count == std::floor(count) ? absl::StrFormat("%.0f", count) : TwoFigures(count);
  static constexpr const char* kUnits[] = {"k", "M", "G", "T", "P", "E"};
  std::size_t unit = 0;
  for (count /= 1000; count >= 999.5 && unit + 1 < std::size(kUnits); ++unit) count /= 1000;
  return absl::StrCat(TwoFigures(count), kUnits[unit]);
}

std::string ShortDuration(std::optional<absl::Duration> duration) {
  if (!duration.has_value()) return "-";
  const double us = absl::ToDoubleMicroseconds(*duration);
  if (us < 999.5) return absl::StrFormat("%.0f us", us);
  if (us < 999.5e3) return absl::StrCat(TwoFigures(us / 1e3), " ms");
  return absl::StrCat(TwoFigures(us / 1e6), " s");
}

std::string ShortUptime(absl::Duration uptime) {
  const std::int64_t seconds = absl::ToInt64Seconds(uptime);
  if (seconds < 60) return absl::StrCat(seconds, "s");
  if (seconds < 3600) return absl::StrCat(seconds / 60, "m ", seconds % 60, "s");
  if (seconds < 86400) return absl::StrCat(seconds / 3600, "h ", seconds / 60 % 60, "m");
  return absl::StrCat(seconds / 86400, "d ", seconds / 3600 % 24, "h");
}

std::string Percent(double share, double whole) {
  return whole > 0 ? absl::StrFormat("%.0f %%", 100 * share / whole) : "-";
}

}  // namespace gdpcache::command::top
