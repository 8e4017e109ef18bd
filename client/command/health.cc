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

absl::Status RunHealth(const ServerOptions& options) {
  const absl::StatusOr<ServingStatus> health = CheckHealth(options.address, ToClientOptions(options));
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
  CLI::App* parser =
      app->add_subcommand("health", "Ask whether the server is serving: exit status 0 when it is, 1 when not");
  AddServerOptions(parser, options.get());
  return {{parser, [options] { return RunHealth(*options); }}};
}

}  // namespace gdpcache::command
