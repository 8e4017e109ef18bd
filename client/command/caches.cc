#include <iostream>
#include <map>
#include <memory>

#include "client/command/describe.h"
#include "client/command/subcommand.h"
#include "client/command/text.h"

namespace gdpcache::command {
namespace {

struct CreateOptions {
  ServerOptions server;
  CacheSpec spec;
  std::string state_dtype = "float32";
};

struct DeleteOptions {
  ServerOptions server;
  std::string name;
  bool force = false;
};

const std::map<std::string, DataType>& StateTypes() {
  static const std::map<std::string, DataType> kTypes = {
      {"float32", DataType::kFloat32}, {"bfloat16", DataType::kBFloat16}, {"float16", DataType::kFloat16}};
  return kTypes;
}

absl::Status RunList(const ServerOptions& options) {
  const absl::StatusOr<Client> client = Connect(options);
  if (!client.ok()) return client.status();
  const absl::StatusOr<std::vector<CacheInfo>> caches = client->ListCaches();
  if (!caches.ok()) return caches.status();
  if (options.json) {
    PrintJson({{"caches", ToJson(absl::MakeConstSpan(*caches))}}, std::cout);
  } else if (caches->empty()) {
    std::cout << "no caches\n";
  } else {
    PrintCaches(*caches, std::cout);
  }
  return absl::OkStatus();
}

absl::Status RunCreate(const CreateOptions& options) {
  CacheSpec spec = options.spec;
  spec.geometry.state_dtype = StateTypes().at(options.state_dtype);
  const absl::StatusOr<Client> client = Connect(options.server);
  if (!client.ok()) return client.status();
  const absl::StatusOr<CreatedCache> result = client->CreateCache(spec);
  if (!result.ok()) return result.status();
  if (options.server.json) {
    PrintJson({{"cache", ToJson(result->cache)}, {"created", result->created}}, std::cout);
  } else {
    std::cout << (result->created ? "created" : "exists already") << "\n";
    PrintCaches({result->cache}, std::cout);
  }
  return absl::OkStatus();
}

absl::Status RunDelete(const DeleteOptions& options) {
  const absl::StatusOr<Client> client = Connect(options.server);
  if (!client.ok()) return client.status();
  const absl::Status status = client->DeleteCache(options.name, options.force);
  if (!status.ok()) return status;
  if (options.server.json) {
    PrintJson({{"deleted", options.name}}, std::cout);
  } else {
    std::cout << "deleted " << options.name << "\n";
  }
  return absl::OkStatus();
}

Subcommand AddList(CLI::App* caches) {
  auto options = std::make_shared<ServerOptions>();
  CLI::App* parser = caches->add_subcommand("list", "List the caches");
  AddServerOptions(parser, options.get());
  return {parser, [options] { return RunList(*options); }};
}

Subcommand AddCreate(CLI::App* caches) {
  auto options = std::make_shared<CreateOptions>();
  CacheGeometry& geometry = options->spec.geometry;
  CLI::App* parser = caches->add_subcommand(
      "create", "Create a cache. One that exists with the same geometry and fingerprint is left as it is.");
  parser->add_option("NAME", options->spec.name, "Letters, digits and . _ - /, at most 128 of them")->required();
  parser->add_option("--slots", geometry.slots, "Slots, one per request in flight")->required();
  parser->add_option("--heads", geometry.heads, "Heads")->required();
  parser->add_option("--key-dim", geometry.key_dim, "Key dimension K, 1 to 256")->required();
  parser->add_option("--value-dim", geometry.value_dim, "Value dimension V, 1 to 1024")->required();
  parser->add_option("--layers", geometry.layers, "Layers")->capture_default_str();
  parser->add_option("--num-householder", geometry.num_householder, "Expanded tokens per token, M")
      ->capture_default_str();
  parser->add_option("--state-dtype", options->state_dtype, "Element type: float32, bfloat16 or float16")
      ->type_name("DTYPE")
      ->check([](const std::string& name) {
        return StateTypes().count(name) != 0 ? "" : "'" + name + "' is none of float32, bfloat16, float16";
      })
      ->capture_default_str();
  parser->add_option("--auxiliary-bytes", geometry.auxiliary_bytes, "Opaque bytes kept per slot and layer")
      ->capture_default_str();
  parser->add_option("--fingerprint", options->spec.fingerprint,
                     "Model, revision and whatever else makes states incompatible");
  parser->add_flag("--ephemeral", options->spec.ephemeral, "Delete the cache when its last session ends");
  AddServerOptions(parser, &options->server);
  return {parser, [options] { return RunCreate(*options); }};
}

Subcommand AddDelete(CLI::App* caches) {
  auto options = std::make_shared<DeleteOptions>();
  CLI::App* parser = caches->add_subcommand("delete", "Delete a cache and the states in it");
  parser->add_option("NAME", options->name, "The cache")->required();
  parser->add_flag("--force", options->force, "End its sessions first, cancelling their calls");
  AddServerOptions(parser, &options->server);
  return {parser, [options] { return RunDelete(*options); }};
}

}  // namespace

std::vector<Subcommand> AddCaches(CLI::App* app) {
  auto options = std::make_shared<ServerOptions>();
  CLI::App* parser = app->add_subcommand("caches", "List, create and delete caches; lists them by default");
  AddServerOptions(parser, options.get());
  parser->require_subcommand(0, 1);
  return {{parser, [options] { return RunList(*options); }}, AddList(parser), AddCreate(parser), AddDelete(parser)};
}

}  // namespace gdpcache::command
