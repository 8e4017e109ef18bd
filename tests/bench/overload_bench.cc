// Overloads a server: see README.md.

#include <CLI/CLI.hpp>
#include <exception>
#include <fstream>
#include <iostream>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/bench/overload.h"

namespace {

int Main(int argc, char** argv) {
  gdpcache::bench::OverloadOptions options;
  double seconds = 10;
  std::string json;
  CLI::App app("Overloads a gdpcached and tells what becomes of those it admits.");
  app.add_option("--clients", options.clients, "Connections, each with one call at a time")->capture_default_str();
  app.add_option("--load", options.load, "What they offer, in terms of what is admitted at the limit")
      ->capture_default_str();
  app.add_option("--seconds", seconds, "How long the overload lasts")->capture_default_str();
  app.add_option("--sequences", options.shape.sequences, "Of one call")->capture_default_str();
  app.add_option("--tokens", options.shape.tokens, "Of one sequence")->capture_default_str();
  app.add_option("--heads", options.shape.heads)->capture_default_str();
  app.add_option("--key-dim", options.shape.key_dim)->capture_default_str();
  app.add_option("--value-dim", options.shape.value_dim)->capture_default_str();
  app.add_option("--server-flag", options.server_flags, "A flag for the server, such as --max-queue-wait=50ms")
      ->allow_extra_args(false);
  app.add_option("--json", json, "A file for the figures");
  CLI11_PARSE(app, argc, argv);
  options.duration = absl::Seconds(seconds);
  const absl::StatusOr<gdpcache::bench::OverloadReport> report = gdpcache::bench::RunOverload(options);
  if (!report.ok()) {
    std::cerr << report.status() << "\n";
    return 1;
  }
  std::cout << gdpcache::bench::ToTable(*report);
  if (!json.empty()) std::ofstream(json) << gdpcache::bench::ToJson(*report) << "\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Main(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "gdpcache_overload_bench: " << error.what() << "\n";
    return 1;
  }
}
