#include <iostream>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/command/recorded_batch.h"
#include "client/command/replay_check.h"
#include "client/command/replay_run.h"
#include "client/command/subcommand.h"
#include "client/command/text.h"

namespace gdpcache::command {
namespace {

struct ReplayOptions {
  ServerOptions server;
  std::string input;
  std::string output;
  bool check = false;
  std::string transport = "inline";
};

/// "inline" leaves the choice to the library.
const std::map<std::string, Transport>& Transports() {
  static const std::map<std::string, Transport> kTransports = {{"inline", Transport::kAuto},
                                                               {"unary", Transport::kUnary},
                                                               {"stream", Transport::kStream},
                                                               {"shm", Transport::kSharedMemory}};
  return kTransports;
}

std::string CheckTransport(const std::string& name) {
  if (Transports().count(name) == 0) return "'" + name + "' is none of inline, unary, stream, shm";
  return "";
}

const char* Name(Transport transport) {
  switch (transport) {
    case Transport::kAuto:
    case Transport::kUnary:
      return "unary";
    case Transport::kStream:
      return "stream";
    case Transport::kSharedMemory:
      return "shm";
  }
  return "";
}

nlohmann::json ToJson(const RecordedBatch& batch, const ReplayResults& results) {
  const PrefillTiming& timing = results.prefill.timing;
  return {{"file", batch.path},
          {"name", batch.name},
          {"transport", Name(results.prefill.transport)},
          {"tokens", batch.tokens},
          {"sequences", batch.sequences},
          {"heads", batch.heads},
          {"key_dim", batch.key_dim},
          {"value_dim", batch.value_dim},
          {"num_householder", batch.num_householder},
          {"chunk_size", batch.chunk_size},
          {"timing_us",
           {{"queue", absl::ToInt64Microseconds(timing.queue)},
            {"stage_in", absl::ToInt64Microseconds(timing.stage_in)},
            {"compute", absl::ToInt64Microseconds(timing.compute)},
            {"stage_out", absl::ToInt64Microseconds(timing.stage_out)},
            {"total", absl::ToInt64Microseconds(timing.total)}}}};
}

void Print(const RecordedBatch& batch, const ReplayResults& results, std::ostream& out) {
  const PrefillTiming& timing = results.prefill.timing;
  Table table({"batch", batch.name});
  table.Add({"expanded tokens", absl::StrCat(batch.tokens, " in ", batch.sequences, " sequences")});
  table.Add({"heads x K x V", absl::StrCat(batch.heads, " x ", batch.key_dim, " x ", batch.value_dim)});
  table.Add({"M, chunk size", absl::StrCat(batch.num_householder, ", ", batch.chunk_size)});
  table.Add({"types", absl::StrCat("inputs ", DataTypeName(batch.k.dtype), ", h ", DataTypeName(batch.states_dtype),
                                   ", slots ", batch.state_before ? DataTypeName(batch.state_before->dtype) : "none")});
  table.Add({"transport", Name(results.prefill.transport)});
  table.Add({"time in the server",
             absl::StrCat(absl::FormatDuration(timing.total), ", computing ", absl::FormatDuration(timing.compute))});
  table.Print(out);
}

absl::Status RunReplay(const ReplayOptions& options) {
  const absl::StatusOr<RecordedBatch> batch = LoadRecordedBatch(options.input);
  if (!batch.ok()) return batch.status();
  const absl::StatusOr<Client> client = Connect(options.server);
  if (!client.ok()) return client.status();
  const absl::StatusOr<ReplayResults> results = RunRecordedBatch(*client, *batch, Transports().at(options.transport));
  if (!results.ok()) return results.status();
  if (!options.output.empty()) {
    const absl::Status written = WriteResults(options.output, *batch, *results);
    if (!written.ok()) return written;
  }
  nlohmann::json json = ToJson(*batch, *results);
  if (!options.server.json) Print(*batch, *results, std::cout);
  absl::Status status;
  if (options.check) {
    const absl::StatusOr<CheckReport> report = CheckResults(*batch, *results);
    if (!report.ok()) return report.status();
    json["check"] = ToJson(*report);
    if (!options.server.json) {
      std::cout << "\n";
      PrintReport(*report, std::cout);
    }
    if (!report->pass) {
      status = absl::DataLossError(absl::StrCat(options.input, ": the server's results are beyond the limits"));
    }
  }
  if (options.server.json) PrintJson(json, std::cout);
  return status;
}

}  // namespace

std::vector<Subcommand> AddReplay(CLI::App* app) {
  auto options = std::make_shared<ReplayOptions>();
  CLI::App* parser = app->add_subcommand("replay",
                                         "Run one recorded batch through the server: in a temporary cache of the "
                                         "file's geometry, with the file's states and options");
  parser->add_option("--input", options->input, "The recording, a safetensors file")->type_name("FILE")->required();
  parser
      ->add_option("--output", options->output,
                   "Store h, v_new (when asked for), state and final_state as a safetensors file")
      ->type_name("FILE");
  parser->add_flag("--check", options->check,
                   "Compare with the recorded results and with an exact float64 recurrence, print a table of relative "
                   "errors, and exit with 1 beyond the limits: the larger of 1.1 times the recorded kernel's error and "
                   "1e-5; slots that no sequence names must not change");
  parser
      ->add_option(
          "--transport", options->transport,
          "How the tensors travel: inline (unary or stream, by size), unary, stream, or shm (shared memory, with "
          "a server on this host)")
      ->type_name("TRANSPORT")
      ->check(CheckTransport)
      ->capture_default_str();
  AddServerOptions(parser, &options->server);
  return {{parser, [options] { return RunReplay(*options); }}};
}

}  // namespace gdpcache::command
