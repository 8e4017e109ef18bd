#include "client/command/top/render.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/command/snapshot_text.h"
#include "client/command/text.h"
#include "client/command/top/figures.h"

namespace gdpcache::command::top {
namespace {

constexpr std::size_t kLabelWidth = 10;
constexpr std::size_t kNarrow = 80;  // what every screen has; tables show more from kWide on
constexpr std::size_t kWide = 100;
constexpr std::size_t kTall = 30;  // screens with rows to spare
constexpr char kOurService[] = "gdpcache.v1.StateCache";

std::size_t WidthOf(const Line& line) {
  std::size_t width = 0;
  for (const Run& run : line) width += run.text.size();
  return width;
}

/// Cuts the line off at `columns`.
Line Fit(Line line, std::size_t columns) {
  std::size_t left = columns;
  for (Run& run : line) {
    if (run.text.size() > left) run.text.resize(left);
    left -= run.text.size();
  }
  return line;
}

std::string Left(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

std::string Right(const std::string& text, std::size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

/// `left` and, at the right edge, `right`; what does not fit is cut off from the left one.
Line Between(Line left, const Run& right, std::size_t columns) {
  const std::size_t room = columns - std::min(columns, right.text.size() + 1);
  left = Fit(std::move(left), room);
  left.push_back({std::string(columns - std::min(columns, WidthOf(left) + right.text.size()), ' '), Style::kPlain});
  left.push_back(right);
  return left;
}

Style StyleOfUse(double share) {
  if (share < 0.75) return Style::kGood;
  return share < 0.95 ? Style::kWarning : Style::kBad;
}

std::vector<Run> Bar(std::int64_t used, std::int64_t limit, std::size_t width) {
  const double share = limit > 0 ? std::clamp(static_cast<double>(used) / static_cast<double>(limit), 0.0, 1.0) : 0;
  // Anything at all shows.
  const auto full = static_cast<std::size_t>(std::ceil(share * static_cast<double>(width)));
  return {{"["}, {std::string(full, '|'), StyleOfUse(share)}, {std::string(width - full, ' ')}, {"]"}};
}

Line Labelled(const std::string& label, std::vector<Run> runs) {
  runs.insert(runs.begin(), {Left(label, kLabelWidth), Style::kLabel});
  return runs;
}

Line Meter(const std::string& label, std::int64_t used, std::int64_t limit, const std::string& more,
           std::size_t columns) {
  Line line = Labelled(label, Bar(used, limit, 20 + (std::max(columns, kNarrow) - kNarrow) / 2));
  line.push_back({absl::StrCat(Right(Percent(static_cast<double>(used), static_cast<double>(limit)), 6), "  ",
                               Left(absl::StrCat(FormatBytes(used), " of ", FormatBytes(limit)), 24), more)});
  return line;
}

std::vector<Line> Header(const View& view, const Layout& layout) {
  std::vector<Line> lines;
  const std::string version = view.answer.has_value() ? " " + Printable(view.answer->info.version) : "";
  const Line title = {{absl::StrCat("gdpcache", version, " at ", Printable(view.address)), Style::kTitle}};
  if (view.outage.has_value()) {
    const std::string since = absl::FormatTime("%H:%M:%S", view.outage->since, layout.zone);
    lines.push_back(
        Between(title, {absl::StrCat("unreachable since ", since, ", reconnecting"), Style::kBad}, layout.columns));
    lines.push_back({{Printable(std::string(view.outage->error.message())), Style::kBad}});
    return lines;
  }
  const Answer& answer = *view.answer;
  const std::string uptime = ShortUptime(answer.stats.uptime);
  lines.push_back(Between(title,
                          answer.stats.draining ? Run{absl::StrCat("draining, up ", uptime), Style::kWarning}
                                                : Run{absl::StrCat("serving, up ", uptime), Style::kGood},
                          layout.columns));
  lines.push_back(Between({{Printable(absl::StrCat(answer.info.backend, ": ", answer.info.device))}},
                          {absl::StrCat(answer.stats.sessions, answer.stats.sessions == 1 ? " session" : " sessions")},
                          layout.columns));
  return lines;
}

std::vector<Line> Meters(const ServerInfo& info, std::size_t columns) {
  std::vector<Line> lines = {Meter("States", info.state_memory_used_bytes, info.limits.state_memory_bytes, "", columns),
                             Meter("Staging", info.staging_used_bytes, info.limits.staging_bytes, "", columns)};
  for (const SnapshotTierInfo& tier : info.snapshot_tiers) {
    const std::string snapshots =
        absl::StrCat(ShortCount(static_cast<double>(tier.snapshots)), tier.snapshots == 1 ? " snapshot" : " snapshots");
    std::string name = TierName(tier.tier);
    name[0] = absl::ascii_toupper(static_cast<unsigned char>(name[0]));
    lines.push_back(Meter(name, tier.used_bytes, tier.capacity_bytes, snapshots, columns));
  }
  return lines;
}

/// "1.2k tokens/s", or "- tokens/s" where nothing is known.
std::string Rate(const std::optional<Growth>& growth, std::int64_t count, const char* what) {
  return absl::StrCat(growth.has_value() ? ShortCount(growth->PerSecond(count)) : "-", " ", what, "/s");
}

Line PhasesOf(const std::optional<Growth>& growth) {
  const PrefillStats prefills = growth.has_value() ? growth->prefills : PrefillStats();
  const double whole =
      absl::ToDoubleSeconds(prefills.queue + prefills.stage_in + prefills.compute + prefills.stage_out);
  const auto share = [whole](absl::Duration phase) { return Percent(absl::ToDoubleSeconds(phase), whole); };
  return Labelled(
      "", {{absl::StrCat("time: queued ", share(prefills.queue), ", staging in ", share(prefills.stage_in),
                         ", computing ", share(prefills.compute), ", staging out ", share(prefills.stage_out))}});
}

std::vector<Line> Activity(const View& view) {
  const std::optional<Growth>& growth = view.growth;
  const Growth none;
  const Growth& grown = growth.has_value() ? *growth : none;
  const ServerStats& stats = view.answer->stats;
  const absl::Duration wait = view.answer->info.expected_wait;
  std::vector<Line> lines;
  lines.push_back(
      Labelled("Calls", {{absl::StrCat(stats.queue.running, " running  ", stats.queue.waiting, " waiting  ",
                                       Rate(growth, grown.calls, "RPCs"), "  ")},
                         {Rate(growth, grown.errors, "errors"), grown.errors > 0 ? Style::kBad : Style::kPlain},
                         {wait > absl::ZeroDuration() ? absl::StrCat("  wait ", ShortDuration(wait)) : ""}}));
  lines.push_back(Labelled(
      "Prefill", {{absl::StrCat(Rate(growth, grown.prefills.tokens, "tokens"), "  ",
                                Rate(growth, grown.prefills.sequences, "sequences"), "  ",
                                Rate(growth, grown.prefills.calls, "calls"), "  p50 ", ShortDuration(grown.prefill_p50),
                                "  p99 ", ShortDuration(grown.prefill_p99))}}));
  lines.push_back(PhasesOf(growth));
  const std::int64_t lookups = grown.snapshots.lookup_hits + grown.snapshots.lookup_misses;
  const auto hit = [](const SnapshotStats& snapshots) {
    return Percent(HitRate(snapshots).value_or(0), HitRate(snapshots).has_value() ? 1 : 0);
  };
  lines.push_back(Labelled("Lookups", {{absl::StrCat(Rate(growth, lookups, "lookups"), "  ", hit(grown.snapshots),
                                                     " found (", hit(stats.snapshots), " since the start)  ",
                                                     Rate(growth, grown.snapshots.hit_tokens, "tokens"), " found")}}));
  lines.push_back(Labelled(
      "Snapshots",
      {{absl::StrCat(
          Rate(growth, grown.snapshots.stored, "stored"), "  ", Rate(growth, grown.snapshots.evicted, "evicted"), "  ",
          Rate(growth, grown.snapshots.demotions, "down"), "  ", Rate(growth, grown.snapshots.promotions, "up"), "  ",
          ShortCount(static_cast<double>(stats.snapshots.evicted)), " evicted in all")}}));
  if (stats.snapshots.checksum_failures > 0 || stats.snapshots.tier_errors > 0) {
    lines.push_back(Labelled("Trouble", {{absl::StrCat(stats.snapshots.checksum_failures, " snapshots damaged, ",
                                                       stats.snapshots.tier_errors, " errors of tiers since the start"),
                                          Style::kBad}}));
  }
  return lines;
}

/// The heading and `rows`, of which `most` are shown.
std::vector<Line> Limited(const std::string& heading, std::vector<Line> rows, std::size_t most, std::size_t columns) {
  std::vector<Line> lines = {{{Left(heading, columns), Style::kHeading}}};
  if (rows.size() > most) {
    const std::size_t shown = most == 0 ? 0 : most - 1;
    const std::string more = absl::StrCat("... and ", rows.size() - shown, " more");
    rows.resize(shown);
    if (most > 0) rows.push_back({{more, Style::kDim}});
  }
  lines.insert(lines.end(), rows.begin(), rows.end());
  return lines;
}

/// Names take what the columns behind them leave.
std::size_t NameWidth(std::size_t columns, std::size_t behind) { return std::max<std::size_t>(columns, 60) - behind; }

std::vector<Line> Caches(const ServerInfo& info, std::size_t most, std::size_t columns) {
  const bool wide = columns >= kWide;
  const std::size_t bar = wide ? 20 : 10;
  const std::size_t name_width = NameWidth(columns, bar + 2 + 15 + 10 + 10 + 11 + (wide ? 20 : 0));
  std::vector<CacheInfo> caches = info.caches;  // fullest first
  std::stable_sort(caches.begin(), caches.end(), [](const CacheInfo& a, const CacheInfo& b) {
    return static_cast<double>(a.held_slots) * static_cast<double>(b.geometry.slots) >
           static_cast<double>(b.held_slots) * static_cast<double>(a.geometry.slots);
  });
  std::vector<Line> rows;
  for (const CacheInfo& cache : caches) {
    const CacheGeometry& geometry = cache.geometry;
    Line row = {{Left(Printable(cache.name).substr(0, name_width - 1), name_width)}};
    for (Run& run : Bar(cache.held_slots, geometry.slots, bar)) row.push_back(std::move(run));
    std::string text = absl::StrCat(Right(absl::StrCat(cache.held_slots, "/", geometry.slots), 15),
                                    Right(absl::StrCat(cache.sessions), 10));
    if (wide) {
      absl::StrAppend(&text, Right(absl::StrCat(geometry.layers, "x", geometry.heads, "x", geometry.key_dim, "x",
                                                geometry.value_dim),
                                   20));
    }
    absl::StrAppend(&text, Right(std::string(DataTypeName(geometry.state_dtype)), 10),
                    Right(FormatBytes(cache.memory_bytes), 11));
    row.push_back({std::move(text)});
    rows.push_back(std::move(row));
  }
  std::string heading =
      absl::StrCat(Left("CACHE", name_width), Left("SLOTS", bar + 2), Right("HELD/ALL", 15), Right("SESSIONS", 10));
  if (wide) absl::StrAppend(&heading, Right("LAYERSxHxKxV", 20));
  absl::StrAppend(&heading, Right("STATE", 10), Right("MEMORY", 11));
  return Limited(heading, std::move(rows), most, columns);
}

std::string MethodName(const RpcGrowth& rpc) {
  return Printable(rpc.service == kOurService ? rpc.method : absl::StrCat(rpc.service, "/", rpc.method));
}

std::vector<Line> Rpcs(const View& view, std::size_t most, std::size_t columns) {
  const bool wide = columns >= kWide;
  const std::size_t name_width = NameWidth(columns, 5 * 10 + (wide ? 22 : 0));
  const std::optional<Growth>& growth = view.growth;
  std::vector<Line> rows;
  for (const RpcGrowth& rpc : growth.has_value() ? growth->rpcs : view.totals) {
    const auto rate = [&growth](std::int64_t count) {
      return Right(growth.has_value() ? ShortCount(growth->PerSecond(count)) : "-", 10);
    };
    const auto duration = [&growth](std::optional<absl::Duration> value) {
      return Right(growth.has_value() ? ShortDuration(value) : "-", 10);
    };
    Line row = {{absl::StrCat(Left(MethodName(rpc).substr(0, name_width - 1), name_width), rate(rpc.calls))},
                {rate(rpc.errors), growth.has_value() && rpc.errors > 0 ? Style::kBad : Style::kPlain},
                {absl::StrCat(Right(absl::StrCat(rpc.active), 10), duration(rpc.p50), duration(rpc.p99))}};
    if (wide) {
      const auto total = std::find_if(view.totals.begin(), view.totals.end(), [&rpc](const RpcGrowth& other) {
        return other.service == rpc.service && other.method == rpc.method;
      });
      row.push_back({absl::StrCat(Right(ShortCount(static_cast<double>(total->calls)), 11),
                                  Right(ShortCount(static_cast<double>(total->errors)), 11))});
    }
    rows.push_back(std::move(row));
  }
  std::string heading = absl::StrCat(Left("RPC", name_width), Right("CALLS/S", 10), Right("ERRORS/S", 10),
                                     Right("ACTIVE", 10), Right("P50", 10), Right("P99", 10));
  if (wide) absl::StrAppend(&heading, Right("CALLS", 11), Right("ERRORS", 11));
  return Limited(heading, std::move(rows), most, columns);
}

void Append(std::vector<Line> more, std::vector<Line>& lines) {
  for (Line& line : more) lines.push_back(std::move(line));
}

}  // namespace

std::vector<Line> Render(const View& view, const Layout& layout) {
  std::vector<Line> lines = Header(view, layout);
  const bool is_stale = view.outage.has_value();
  if (view.answer.has_value() && !(is_stale && layout.rows == 0)) {  // a screen keeps what was there
    const std::size_t caches = view.answer->info.caches.size();
    const std::size_t rpcs = view.totals.size();
    std::size_t cache_rows = caches;
    std::size_t rpc_rows = rpcs;
    if (layout.rows == 0 || layout.rows >= kTall) lines.push_back({});
    Append(Meters(view.answer->info, layout.columns), lines);
    lines.push_back({});
    Append(Activity(view), lines);
    if (layout.rows > 0) {
      const std::size_t taken = lines.size() + 2 + 2 + 1;  // empty lines and headings of the tables, the footer
      const std::size_t room = layout.rows - std::min(layout.rows, taken);
      // Either table takes what the other leaves of its half.
      cache_rows = std::min(caches, std::max(room / 2, room - std::min(room, rpcs)));
      rpc_rows = room - cache_rows;
    }
    lines.push_back({});
    Append(Caches(view.answer->info, cache_rows, layout.columns), lines);
    lines.push_back({});
    Append(Rpcs(view, rpc_rows, layout.columns), lines);
  }
  if (layout.rows > 0) {
    lines.resize(std::max<std::size_t>(layout.rows, 1) - 1);
    lines.push_back({{layout.footer, Style::kDim}});
  }
  for (Line& line : lines) line = Fit(std::move(line), layout.columns);
  return lines;
}

std::string PlainText(absl::Span<const Line> lines) {
  std::string text;
  for (const Line& line : lines) {
    std::string row;
    for (const Run& run : line) row += run.text;
    row.erase(row.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, row, "\n");
  }
  return text;
}

}  // namespace gdpcache::command::top
