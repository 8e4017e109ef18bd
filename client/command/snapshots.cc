#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/command/snapshot_text.h"
#include "client/command/subcommand.h"
#include "client/command/text.h"

namespace gdpcache::command {
namespace {

struct SnapshotsOptions {
  ServerOptions server;
  std::string cache;
  std::string key;                // in hexadecimal, as are
  std::vector<std::string> keys;  // those where there may be several
  std::string file;
  std::string pin;
  double ttl_seconds = 0;
  bool force = false;
};

std::vector<std::string> Keys(const SnapshotsOptions& options) {
  std::vector<std::string> keys;
  for (const std::string& key : options.keys) keys.push_back(KeyFromHex(key));
  return keys;
}

absl::StatusOr<std::vector<Snapshot>> AskSnapshots(const Client& client, const std::string& cache) {
  std::vector<Snapshot> snapshots;
  std::string page_token;
  do {
    absl::StatusOr<SnapshotPage> page = client.ListSnapshots(cache, 0, page_token);
    if (!page.ok()) return page.status();
    for (Snapshot& snapshot : page->snapshots) snapshots.push_back(std::move(snapshot));
    page_token = page->next_page_token;
  } while (!page_token.empty());
  return snapshots;
}

absl::Status RunList(const SnapshotsOptions& options) {
  const absl::StatusOr<Client> client = Connect(options.server);
  if (!client.ok()) return client.status();
  const absl::StatusOr<std::vector<Snapshot>> snapshots = AskSnapshots(*client, options.cache);
  if (!snapshots.ok()) return snapshots.status();
  if (options.server.json) {
    PrintJson({{"snapshots", ToJson(absl::MakeConstSpan(*snapshots))}}, std::cout);
  } else if (snapshots->empty()) {
    std::cout << "no snapshots\n";
  } else {
    PrintSnapshots(*snapshots, std::cout);
  }
  return absl::OkStatus();
}

absl::Status RunShow(const SnapshotsOptions& options) {
  const absl::StatusOr<Client> client = Connect(options.server);
  if (!client.ok()) return client.status();
  const absl::StatusOr<std::optional<PrefixMatch>> match =
      client->LookupPrefix(options.cache, {KeyFromHex(options.key)});
  if (!match.ok()) return match.status();
  if (!match->has_value()) return absl::NotFoundError(absl::StrCat("there is no snapshot ", options.key));
  if (options.server.json) {
    PrintJson({{"snapshot", ToJson((*match)->snapshot)}}, std::cout);
  } else {
    PrintSnapshots({(*match)->snapshot}, std::cout);
  }
  return absl::OkStatus();
}

absl::Status RunExport(const SnapshotsOptions& options) {
  const absl::StatusOr<Client> client = Connect(options.server);
  if (!client.ok()) return client.status();
  const absl::StatusOr<ExportedSnapshot> exported =
      client->ExportSnapshot(options.cache, KeyFromHex(options.key), options.file);
  if (!exported.ok()) return exported.status();
  if (options.server.json) {
    PrintJson({{"file", options.file}, {"file_bytes", exported->file_bytes}, {"position", exported->position}},
              std::cout);
  } else {
    std::cout << "wrote " << options.file << ": " << FormatBytes(exported->file_bytes) << ", position "
              << exported->position << "\n";
  }
  return absl::OkStatus();
}

absl::Status RunImport(const SnapshotsOptions& options) {
  const absl::StatusOr<Client> client = Connect(options.server);
  if (!client.ok()) return client.status();
  const absl::StatusOr<SnapshotOutcome> outcome =
      client->ImportSnapshot(options.cache, options.file, KeyFromHex(options.key));
  if (!outcome.ok()) return outcome.status();
  const bool stored = outcome->result == SnapshotResult::kStored;
  if (options.server.json) {
    PrintJson({{"stored", stored}, {"position", outcome->position}}, std::cout);
  } else {
    std::cout << (stored ? "stored" : "was there already") << ", position " << outcome->position << "\n";
  }
  return absl::OkStatus();
}

absl::Status RunDelete(const SnapshotsOptions& options) {
  const absl::StatusOr<Client> client = Connect(options.server);
  if (!client.ok()) return client.status();
  const absl::StatusOr<std::int64_t> deleted = client->DeleteSnapshots(options.cache, Keys(options), options.force);
  if (!deleted.ok()) return deleted.status();
  if (options.server.json) {
    PrintJson({{"deleted", *deleted}}, std::cout);
  } else {
    std::cout << "deleted " << *deleted << " of " << options.keys.size() << "\n";
  }
  return absl::OkStatus();
}

absl::Status RunPin(const SnapshotsOptions& options) {
  const absl::StatusOr<Client> client = Connect(options.server);
  if (!client.ok()) return client.status();
  const absl::StatusOr<SnapshotPin> pin =
      client->PinSnapshots(options.cache, Keys(options), absl::Seconds(options.ttl_seconds));
  if (!pin.ok()) return pin.status();
  if (options.server.json) {
    PrintJson({{"pin", pin->pin}, {"ttl_ms", absl::ToInt64Milliseconds(pin->ttl)}}, std::cout);
  } else {
    std::cout << pin->pin << "\n";
  }
  return absl::OkStatus();
}

absl::Status RunUnpin(const SnapshotsOptions& options) {
  const absl::StatusOr<Client> client = Connect(options.server);
  if (!client.ok()) return client.status();
  const absl::Status status = client->UnpinSnapshots(options.cache, options.pin);
  if (!status.ok()) return status;
  if (options.server.json) {
    PrintJson({{"unpinned", options.pin}}, std::cout);
  } else {
    std::cout << "unpinned\n";
  }
  return absl::OkStatus();
}

/// A subcommand NAME CACHE, to which the caller adds what else it takes.
std::pair<CLI::App*, std::shared_ptr<SnapshotsOptions>> Add(CLI::App* snapshots, const std::string& name,
                                                            const std::string& description) {
  auto options = std::make_shared<SnapshotsOptions>();
  CLI::App* parser = snapshots->add_subcommand(name, description);
  parser->add_option("CACHE", options->cache, "A cache whose space the snapshots are in")->required();
  return {parser, options};
}

CLI::Option* AddKey(CLI::App* parser, SnapshotsOptions* options) {
  return parser->add_option("KEY", options->key, "The key, in hexadecimal")->required()->check(CheckKey);
}

CLI::Option* AddKeys(CLI::App* parser, SnapshotsOptions* options) {
  return parser->add_option("KEY", options->keys, "Keys, in hexadecimal")->required()->check(CheckKey);
}

Subcommand Finish(CLI::App* parser, const std::shared_ptr<SnapshotsOptions>& options,
                  absl::Status (*run)(const SnapshotsOptions&)) {
  AddServerOptions(parser, &options->server);
  return {parser, [options, run] { return run(*options); }};
}

}  // namespace

std::vector<Subcommand> AddSnapshots(CLI::App* app) {
  CLI::App* snapshots =
      app->add_subcommand("snapshots", "List, show, export, import, delete, pin and unpin snapshots of prefixes");
  snapshots->require_subcommand(0, 1);
  std::vector<Subcommand> subcommands = {{snapshots, nullptr}};
  {
    const auto [parser, options] = Add(snapshots, "list", "List the snapshots in a cache's space, by key");
    subcommands.push_back(Finish(parser, options, RunList));
  }
  {
    const auto [parser, options] = Add(snapshots, "show", "Show one snapshot; counts as a use of it");
    AddKey(parser, options.get());
    subcommands.push_back(Finish(parser, options, RunShow));
  }
  {
    const auto [parser, options] =
        Add(snapshots, "export",
            "Write a snapshot to a safetensors file. --timeout is that of the whole transfer, which goes on by itself "
            "when the connection breaks.");
    AddKey(parser, options.get());
    parser->add_option("FILE", options->file, "Written whole or not at all")->required();
    subcommands.push_back(Finish(parser, options, RunExport));
  }
  {
    const auto [parser, options] =
        Add(snapshots, "import",
            "Store a snapshot from a file that export has written; it must be of the cache's space. --timeout is that "
            "of the whole transfer, which goes on by itself when the connection breaks.");
    parser->add_option("FILE", options->file, "The file")->required();
    parser->add_option("--key", options->key, "Store it under this key, in hexadecimal, not under the file's own")
        ->type_name("KEY")
        ->check(CheckKey);
    subcommands.push_back(Finish(parser, options, RunImport));
  }
  {
    const auto [parser, options] = Add(snapshots, "delete", "Delete snapshots; those not there are passed over");
    AddKeys(parser, options.get());
    parser->add_flag("--force", options->force, "Pinned ones, too; without it one of them keeps all");
    subcommands.push_back(Finish(parser, options, RunDelete));
  }
  {
    const auto [parser, options] =
        Add(snapshots, "pin", "Keep snapshots from being evicted and deleted for a time; prints the pin");
    AddKeys(parser, options.get());
    parser->add_option("--ttl", options->ttl_seconds, "For how long; as long as the server allows by default")
        ->type_name("SECONDS")
        ->check(CheckSeconds);
    subcommands.push_back(Finish(parser, options, RunPin));
  }
  {
    const auto [parser, options] = Add(snapshots, "unpin", "Release a pin");
    parser->add_option("PIN", options->pin, "What pin printed")->required();
    subcommands.push_back(Finish(parser, options, RunUnpin));
  }
  return subcommands;
}

}  // namespace gdpcache::command
