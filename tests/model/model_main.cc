// Plays random operations on a server and on the model of the contract until they differ, or time is up.

#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/model/operation.h"
#include "tests/model/player.h"
#include "tests/model/shrink.h"

namespace gdpcache::test {
namespace {

std::optional<std::string> PlayAll(absl::Span<const Operation> operations, Player::Counts* counts = nullptr) {
  Player player;
  std::optional<std::string> difference = player.Play(operations);
  if (counts != nullptr) {
    for (const auto& [call, count] : player.counts()) (*counts)[call] += count;
  }
  return difference;
}

/// Shrinks what has failed and says how to play it again.
void Report(std::vector<Operation> operations, absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  std::optional<std::string> difference;
  for (int attempt = 0; attempt < 3 && !difference; ++attempt) difference = PlayAll(operations);
  if (!difference) {
    std::printf("played again it does not fail; the operations were:\n  --replay '%s'\n", ToText(operations).c_str());
    return;
  }
  std::printf("making it smaller ...\n");
  operations = Shrink(
      std::move(operations), [](absl::Span<const Operation> candidate) { return PlayAll(candidate).has_value(); },
      [deadline] { return absl::Now() < deadline; });
  difference = PlayAll(operations);
  std::printf("%zu operations are enough:\n  --replay '%s'\n%s\n", operations.size(), ToText(operations).c_str(),
              difference.value_or("(this time it did not fail)").c_str());
}

int Main(int argc, char** argv) {
  CLI::App app("Plays random operations on a gdpcached and on a model of its contract, and compares.");
  auto seed = static_cast<std::uint64_t>(absl::ToUnixMicros(absl::Now()));
  std::int64_t rounds = 0;
  double seconds = 0;
  std::size_t length = 120;
  double patience = 300;
  std::string replay;
  bool count = false;
  app.add_option("--seed", seed, "of the first round, by default the time; each round after takes the next");
  app.add_option("--rounds", rounds, "how many; 0: as many as there is time for");
  app.add_option("--seconds", seconds, "to begin rounds for; 0: as long as there are rounds");
  app.add_option("--operations", length, "of a round")->capture_default_str();
  app.add_option("--shrink-seconds", patience, "to look for a smaller failure")->capture_default_str();
  app.add_flag("--count", count, "print at the end how often which call came to which status");
  app.add_option("--replay", replay, "operations to play, as a failure prints them");
  CLI11_PARSE(app, argc, argv);

  if (!replay.empty()) {
    const absl::StatusOr<std::vector<Operation>> operations = ParseOperations(replay);
    if (!operations.ok()) {
      std::fprintf(stderr, "%s\n", operations.status().ToString().c_str());
      return 2;
    }
    const std::optional<std::string> difference = PlayAll(*operations);
    std::printf("%s\n", difference.value_or("no difference").c_str());
    return difference ? 1 : 0;
  }

  const absl::Time started = absl::Now();
  const auto elapsed = [started] { return absl::ToDoubleSeconds(absl::Now() - started); };
  Player::Counts counts;
  std::int64_t played = 0;
  for (; (rounds == 0 || played < rounds) && (seconds == 0 || elapsed() < seconds); ++played) {
    const std::uint64_t of_round = seed + static_cast<std::uint64_t>(played);
    const std::vector<Operation> operations = RandomOperations(of_round, length);
    const std::optional<std::string> difference = PlayAll(operations, &counts);
    if (!difference) continue;
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(of_round), difference->c_str());
    std::fflush(stdout);
    Report(operations, absl::Seconds(patience));
    return 1;
  }
  for (const auto& [call, times] : counts) {
    if (count) std::printf("%8lld  %s\n", static_cast<long long>(times), call.c_str());
  }
  std::printf("%lld rounds of %zu operations in %.0f s, no difference\n", static_cast<long long>(played), length,
              elapsed());
  return 0;
}

}  // namespace
}  // namespace gdpcache::test

int main(int argc, char** argv) {
  try {
    return gdpcache::test::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gdpcache_model: %s\n", error.what());
    return 1;
  }
}
