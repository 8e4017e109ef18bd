#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "client/command/bench/chart.h"
#include "client/command/bench/figure.h"
#include "client/command/bench/interruption.h"
#include "client/command/bench/measurements.h"
#include "client/command/bench/options.h"
#include "client/command/bench/report_text.h"
#include "client/command/bench/run.h"
#include "client/command/subcommand.h"
#include "client/command/text.h"

namespace gdpcache::command {
namespace {

using bench::BenchOptions;

/// What --quick takes where nothing else is said.
void MakeQuick(const CLI::App& parser, BenchOptions* options) {
  if (parser.count("--model") == 0) options->model = {.layers = 4, .heads = 8, .key_dim = 64, .value_dim = 64};
  if (parser.count("--tokens") == 0) options->tokens = {1, 256};
  if (parser.count("--clients") == 0) options->clients = {1, 8};
  if (parser.count("--seconds") == 0) options->seconds = 0.1;
}

/// What the caches take that are there at a time.
std::int64_t StateBytes(const BenchOptions& options) {
  const std::int64_t slot = bench::SlotBytes(options.model);
  std::int64_t slots_of_a_layer = 0;
  std::int64_t slots = 0;
  for (const std::string& name : bench::MeasurementNames(options)) {
    if (!bench::Picked(options, name)) continue;
    const std::string group = bench::Group(name);
    if (group == "decode") {
      slots_of_a_layer = *std::max_element(options.clients.begin(), options.clients.end());
    } else if (group == "slots" || group == "snapshots") {
      slots = 2;
    } else {
      slots_of_a_layer = std::max<std::int64_t>(slots_of_a_layer, 1);
    }
  }
  return std::max(slots_of_a_layer * (slot / options.model.layers), slots * slot);
}

absl::Status CheckMemory(const BenchOptions& options, const ServerInfo& server) {
  const std::int64_t needed = StateBytes(options);
  const std::int64_t left = server.limits.state_memory_bytes - server.state_memory_used_bytes;
  if (needed <= left) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the benchmark's states take ", FormatBytes(needed), "; the server has ", FormatBytes(left), " of ",
      FormatBytes(server.limits.state_memory_bytes), " left: give a smaller --model or fewer --clients, or --quick"));
}

/// Fails before the time is spent; leaves what is there as it is.
absl::Status CheckWritable(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  std::error_code ignored;
  const bool existed = std::filesystem::exists(path, ignored);
  if (!std::ofstream(path, std::ios::app)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " cannot be written"));
  }
  if (!existed) std::filesystem::remove(path, ignored);
  return absl::OkStatus();
}

absl::Status Write(const std::string& path, const std::string& text) {
  if (path.empty()) return absl::OkStatus();
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) return absl::DataLossError(absl::StrCat(path, " could not be written"));
  return absl::OkStatus();
}

/// UNIMPLEMENTED when nothing of what was asked for can be measured.
absl::Status Measure(bench::Run& run) {
  for (const auto measure :
       {bench::MeasurePrefills, bench::MeasureDecodes, bench::MeasureSlots, bench::MeasureSnapshots}) {
    if (absl::Status status = measure(run); !status.ok()) return status;
  }
  const bench::Report report = run.report();
  if (!report.figures.empty()) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrJoin(report.skipped, "; ", [](std::string* out, const bench::Skipped& skipped) {
        absl::StrAppend(out, skipped.name, ": ", skipped.reason);
      }));
}

absl::Status RunBench(const BenchOptions& options) {
  for (const std::string& path : {options.output, options.plot}) {
    if (absl::Status status = CheckWritable(path); !status.ok()) return status;
  }
  const absl::StatusOr<Client> client = Connect(options.server);
  if (!client.ok()) return client.status();
  absl::StatusOr<ServerInfo> server = client->GetServerInfo();
  if (!server.ok()) return server.status();
  if (absl::Status status = CheckMemory(options, *server); !status.ok()) return status;
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);  // as the server does: it costs every call
  const bench::Interruption interruption;
  bench::Report report;
  {
    bench::Run run(options, *client, *std::move(server));
    if (absl::Status status = Measure(run); !status.ok()) return status;
    report = run.report();
  }
  std::ostringstream json;
  PrintJson(bench::ToJson(report), json);
  if (options.server.json) {
    std::cout << json.str();
  } else {
    bench::PrintReport(report, std::cout);
  }
  absl::Status status = Write(options.output, json.str());
  status.Update(Write(options.plot, bench::Chart(report)));
  return status;
}

/// Whether a number is between 1 and `most`, as CLI11 has it.
std::function<std::string(const std::string&)> CheckNumber(std::int64_t most) {
  return [most](const std::string& text) {
    std::int64_t number = 0;
    if (absl::SimpleAtoi(text, &number) && number >= 1 && number <= most) return std::string();
    return absl::StrCat("'", text, "' is no number between 1 and ", most);
  };
}

/// --model's check and conversion in one.
CLI::Option* AddModel(CLI::App* parser, BenchOptions* options) {
  return parser
      ->add_option_function<std::string>(
          "--model",
          [options](const std::string& text) {
            const std::string mistake = bench::ParseModel(text, &options->model);
            if (!mistake.empty()) throw CLI::ValidationError("--model", mistake);
          },
          "Layers, heads, key and value dimension of the model to stand for")
      ->type_name("LxHxKxV")
      ->default_str("36x32x128x128");
}

}  // namespace

std::vector<Subcommand> AddBench(CLI::App* app) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* parser = app->add_subcommand(
      "bench",
      "Measure the server: prefills by transport, one-token calls of many clients, slots and snapshots; and in turn "
      "with each what it is measured against, on the same machine: an empty RPC, gRPC moving as many meaningless "
      "bytes, a copy in memory, the bare recurrence. Uses a temporary cache.");
  AddModel(parser, options.get());
  parser->add_option("--tokens", options->tokens, "Lengths of the prefills, one sequence in one layer each")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(CheckNumber(1 << 20))
      ->default_str("1,256,2048");
  parser->add_option("--clients", options->clients, "Numbers of clients that make one-token calls at once")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(CheckNumber(1024))
      ->default_str("1,8,64");
  parser->add_option("--seconds", options->seconds, "How long to measure each, beside warming up")
      ->type_name("SECONDS")
      ->check(CheckSeconds)
      ->capture_default_str();
  parser
      ->add_option("--only", options->only,
                   "Measure only what has this in its name, such as prefill/ or restore; may be given several times")
      ->type_name("TEXT");
  auto quick = std::make_shared<bool>(false);
  parser->add_flag("--quick", *quick, "A small model for a tenth of a second each: a try, not figures to keep");
  parser->add_option("--output", options->output, "Write the JSON of --json to this file, too")->type_name("FILE");
  parser->add_option("--plot", options->plot, "Write a chart of the ratios, an SVG image")->type_name("FILE");
  AddServerOptions(parser, &options->server);
  parser->final_callback([parser, options, quick] {
    if (*quick) MakeQuick(*parser, options.get());
    const std::vector<std::string> names = bench::MeasurementNames(*options);
    if (std::any_of(names.begin(), names.end(), [&](const std::string& name) { return Picked(*options, name); }))
      return;
    throw CLI::ValidationError("--only", absl::StrCat("'", absl::StrJoin(options->only, "', '"), "' is in none of ",
                                                      absl::StrJoin(names, ", ")));
  });
  return {{parser, [options] { return RunBench(*options); }}};
}

}  // namespace gdpcache::command
