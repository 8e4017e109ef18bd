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
  // Not by check(): newer CLI11 passes over a value of the environment that fails it.
  const auto set_address = [options](const std::string& address) {
    const absl::Status status = CheckAddress(address);
    if (!status.ok()) throw CLI::ValidationError("--server", std::string(status.message()));
    options->address = address;
  };
  parser->add_option_function<std::string>("--server", set_address, "Server to talk to: host:port or unix:PATH")
      ->type_name("ADDR")
      ->envname("GDPCACHE_SERVER")
      ->default_str(options->address);
  parser->add_option("--timeout", options->timeout_seconds, "Give up a call to the server after this time")
      ->type_name("SECONDS")
      ->check(CheckSeconds)
      ->capture_default_str();
  parser->add_flag("--json", options->json, "Print JSON instead of text");
  parser->add_flag("--tls", options->tls, "Connect with TLS; implied by the --tls-... below. Not used on a Unix socket")
      ->envname("GDPCACHE_TLS");
  const auto add = [parser](const char* name, std::string& value, const char* description, const char* type,
                            const char* environment) {
    parser->add_option(name, value, description)->type_name(type)->envname(environment);
  };
  TlsOptions& tls = options->tls_files;
  add("--tls-ca", tls.ca_file, "Authorities that the server's certificate may be of (PEM); else the system's", "FILE",
      "GDPCACHE_TLS_CA");
  add("--tls-certificate", tls.certificate_file, "The client's own certificate (PEM)", "FILE",
      "GDPCACHE_TLS_CERTIFICATE");
  add("--tls-key", tls.key_file, "Its private key (PEM)", "FILE", "GDPCACHE_TLS_KEY");
  add("--tls-server-name", tls.server_name, "What the server's certificate must name, if not the address's host",
      "NAME", "GDPCACHE_TLS_SERVER_NAME");
  add("--token-file", options->token_file, "A file that holds the bearer token to present", "FILE",
      "GDPCACHE_TOKEN_FILE");
}

ClientOptions ToClientOptions(const ServerOptions& options) {
  ClientOptions result;
  result.timeout = absl::Seconds(options.timeout_seconds);
  result.connect_timeout = std::min(result.timeout, kConnectTimeout);
  const TlsOptions& tls = options.tls_files;
  if (options.tls || !tls.ca_file.empty() || !tls.certificate_file.empty() || !tls.key_file.empty() ||
      !tls.server_name.empty()) {
    result.tls = tls;
  }
  result.token_file = options.token_file;
  return result;
}

absl::StatusOr<Client> Connect(const ServerOptions& options) {
  return Client::Connect(options.address, ToClientOptions(options));
}

}  // namespace gdpcache::command
