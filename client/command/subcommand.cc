#include "client/command/subcommand.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/time/time.h"

namespace gdpcache::command {
namespace {

/// Long enough for a server that is starting to accept; one that is absent refuses at once.
constexpr absl::Duration kConnectTimeout = absl::Seconds(5);

}  // namespace

std::string CheckSeconds(const std::string& text) {
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds) && seconds > 0) return "";
  return "'" + text + "' is not a positive number of seconds";
}

void AddServerOptions(CLI::App* parser, ServerOptions* options) {
  parser->add_option("--server", options->address, "Server to talk to: host:port or unix:PATH")
      ->type_name("ADDR")
      ->envname("GDPCACHE_SERVER")
      ->check([](const std::string& address) { return std::string(CheckAddress(address).message()); })
      ->capture_default_str();
  parser->add_option("--timeout", options->timeout_seconds, "Give up a call to the server after this time")
      ->type_name("SECONDS")
      ->check(CheckSeconds)
      ->capture_default_str();
  parser->add_flag("--json", options->json, "Print JSON instead of text");
}

ClientOptions ToClientOptions(const ServerOptions& options) {
  ClientOptions result;
  result.timeout = absl::Seconds(options.timeout_seconds);
  result.connect_timeout = std::min(result.timeout, kConnectTimeout);
  return result;
}

absl::StatusOr<Client> Connect(const ServerOptions& options) {
  return Client::Connect(options.address, ToClientOptions(options));
}

}  // namespace gdpcache::command
