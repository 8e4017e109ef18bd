#include <iostream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/command/subcommand.h"
#include "client/command/text.h"

namespace gdpcache::command {
namespace {

const char* Name(ServingStatus status) {
  switch (status) {
    case ServingStatus::kServing:
      return "serving";
    case ServingStatus::kNotServing:
      return "not serving";
    case ServingStatus::kUnknown:
      return "unknown";
  }
  return "unknown";
}

absl::Status RunHealth(const ServerOptions& options, HealthQuestion question) {
  const absl::StatusOr<ServingStatus> health = CheckHealth(options.address, ToClientOptions(options), question);
  const char* name = health.ok() ? Name(*health) : "unreachable";
  if (options.json) {
    PrintJson({{"server", options.address}, {"status", name}}, std::cout);
  } else if (health.ok()) {
    std::cout << name << "\n";
  }
  if (!health.ok()) return health.status();
  if (*health != ServingStatus::kServing) {
    return absl::UnavailableError(absl::StrCat("server ", options.address, ": ", name));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<Subcommand> AddHealth(CLI::App* app) {
  auto options = std::make_shared<ServerOptions>();
  auto alive = std::make_shared<bool>(false);
  CLI::App* parser = app->add_subcommand(
      "health", "Ask whether the server takes calls: exit status 0 when it does, 1 when not, as while it drains");
  parser->add_flag("--alive", *alive,
                   "Ask whether its process works instead, which it does also while it drains: 1 when it is to be "
                   "restarted");
  AddServerOptions(parser, options.get());
  return {{parser,
           [options, alive] { return RunHealth(*options, *alive ? HealthQuestion::kAlive : HealthQuestion::kReady); }}};
}

}  // namespace gdpcache::command
