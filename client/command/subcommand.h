#ifndef GDPCACHE_CLIENT_COMMAND_SUBCOMMAND_H_
#define GDPCACHE_CLIENT_COMMAND_SUBCOMMAND_H_

#include <functional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gdpcache/client.h"

namespace gdpcache::command {

/// A subcommand on the parser and what it does. An error of `run` becomes a message on stderr and exit code 1.
struct Subcommand {
  CLI::App* parser = nullptr;
  std::function<absl::Status()> run;  // empty: one of its own subcommands must be named
};

/// What every subcommand takes.
struct ServerOptions {
  std::string address = "127.0.0.1:7411";
  double timeout_seconds = 60;
  bool json = false;
  bool tls = false;
  TlsOptions tls_files;  // one of them given: tls
  std::string token_file;
};

/// Empty when `text` is a positive number of seconds, as CLI11 has it.
std::string CheckSeconds(const std::string& text);

/// Adds --server, --timeout, --json, and those about TLS and tokens.
void AddServerOptions(CLI::App* parser, ServerOptions* options);

ClientOptions ToClientOptions(const ServerOptions& options);
absl::StatusOr<Client> Connect(const ServerOptions& options);

// Each adds itself, and its own subcommands, to `app`.
std::vector<Subcommand> AddReplay(CLI::App* app);
std::vector<Subcommand> AddInfo(CLI::App* app);
std::vector<Subcommand> AddCaches(CLI::App* app);
std::vector<Subcommand> AddSlots(CLI::App* app);
std::vector<Subcommand> AddHealth(CLI::App* app);
std::vector<Subcommand> AddSnapshots(CLI::App* app);
std::vector<Subcommand> AddTop(CLI::App* app);
std::vector<Subcommand> AddBench(CLI::App* app);

}  // namespace gdpcache::command

#endif  // GDPCACHE_CLIENT_COMMAND_SUBCOMMAND_H_
