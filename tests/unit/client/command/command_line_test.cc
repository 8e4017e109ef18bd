#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/process.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::command {
namespace {

using ::gdpcache::test::ProgramResult;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// The real command with these arguments, split at spaces, and `NAME=value` pairs in its environment.
ProgramResult RunClient(const std::string& arguments, const std::string& environment = "") {
  return test::RunProgram("/usr/bin/env",
                          absl::StrSplit(environment + " " GDPCACHE_COMMAND " " + arguments, ' ', absl::SkipEmpty()));
}

/// Where nobody listens.
class NoServer {
 public:
  std::string option() const { return " --server unix:" + directory_.path() + "/nobody.sock"; }

 private:
  test::TemporaryDirectory directory_;
};

TEST(CommandLineTest, HelpIsCompleteAndSucceeds) {
  const ProgramResult main = RunClient("--help");
  EXPECT_EQ(main.exit_code, 0);
  for (const std::string subcommand : {"replay", "info", "caches", "slots", "health", "bench"}) {
    EXPECT_THAT(main.output, HasSubstr("\n  " + subcommand));
    const ProgramResult help = RunClient(subcommand + " --help");
    EXPECT_EQ(help.exit_code, 0);
    for (const std::string option : {"--server", "--timeout", "--json", "GDPCACHE_SERVER", "Exit status"}) {
      EXPECT_THAT(help.output, HasSubstr(option)) << subcommand;
    }
  }
  const ProgramResult replay = RunClient("replay --help");
  for (const std::string option : {"--input", "--output", "--check", "--transport"}) {
    EXPECT_THAT(replay.output, HasSubstr(option));
  }
  const ProgramResult bench = RunClient("bench --help");
  for (const std::string option :
       {"--model", "--tokens", "--clients", "--seconds", "--only", "--quick", "--output", "--plot"}) {
    EXPECT_THAT(bench.output, HasSubstr(option));
  }
  for (const std::string subcommand : {"list", "create", "delete"}) {
    EXPECT_EQ(RunClient("caches " + subcommand + " --help").exit_code, 0);
  }
  EXPECT_THAT(main.output, HasSubstr("\n  snapshots"));
  const ProgramResult snapshots = RunClient("snapshots --help");
  EXPECT_EQ(snapshots.exit_code, 0);
  for (const std::string subcommand : {"list", "show", "export", "import", "delete", "pin", "unpin"}) {
    EXPECT_THAT(snapshots.output, HasSubstr("\n  " + subcommand));
    const ProgramResult help = RunClient("snapshots " + subcommand + " --help");
    EXPECT_EQ(help.exit_code, 0);
    for (const std::string option : {"CACHE", "--server", "--timeout", "--json", "Exit status"}) {
      EXPECT_THAT(help.output, HasSubstr(option)) << subcommand;
    }
  }
}

TEST(CommandLineTest, TellsItsVersion) {
  const ProgramResult outcome = RunClient("--version");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.output, ::testing::MatchesRegex("gdpcache [0-9.]+\n"));
}

TEST(CommandLineTest, WrongUsageIsTwoAndSaysWhy) {
  const std::string cases[][2] = {
      {"", "A subcommand is required"},
      {"nonsense", "nonsense"},
      {"info extra", "extra"},
      {"info --server localhost", "the port is missing"},
      {"info --server unix:", "the path is missing"},
      {"info --timeout 0", "'0' is not a positive number of seconds"},
      {"info --timeout nan", "'nan' is not a positive number of seconds"},
      {"replay", "--input is required"},
      {"replay --input x --transport pigeon", "'pigeon' is none of inline, unary, stream, shm"},
      {"bench --only nonsense", "'nonsense' is in none of kernel/1, "},
      {"bench --model 1x2", "'1x2' is not LAYERSxHEADSxKxV"},
      {"bench --clients 1,0", "'0' is no number between 1 and 1024"},
      {"bench --seconds 0", "'0' is not a positive number of seconds"},
      {"caches create", "NAME is required"},
      {"caches create m --slots 1 --heads 1 --key-dim 1 --value-dim 1 --state-dtype int8", "'int8' is none of"},
      {"caches create m --slots many --heads 1 --key-dim 1 --value-dim 1", "--slots"},
      {"caches delete", "NAME is required"},
      {"snapshots", "A subcommand of 'gdpcache snapshots' is required"},
      {"snapshots nonsense", "nonsense"},
      {"snapshots list", "CACHE is required"},
      {"snapshots show m", "KEY is required"},
      {"snapshots show m 00112233", "'00112233' is no key: 32 to 128 hexadecimal digits"},
      {"snapshots show m 0011223344556677889900112233445g", "is no key"},
      {"snapshots delete m", "KEY is required"},
      {"snapshots export m 00112233445566778899001122334455", "FILE is required"},
      {"snapshots import m", "FILE is required"},
      {"snapshots import m f --key 12", "'12' is no key"},
      {"snapshots pin m 00112233445566778899001122334455 --ttl 0", "'0' is not a positive number of seconds"},
      {"snapshots unpin m", "PIN is required"},
  };
  for (const auto& [arguments, message] : cases) {
    const ProgramResult outcome = RunClient(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_THAT(outcome.errors, HasSubstr(message));
    EXPECT_THAT(outcome.output, IsEmpty());
  }
  EXPECT_EQ(RunClient("info", "GDPCACHE_SERVER=nonsense").exit_code, 2);
}

TEST(CommandLineTest, AnAbsentServerIsOneAndIsNamed) {
  const NoServer nobody;
  const std::string replay = std::string("replay --input ") + GDPCACHE_GOLDEN_DIRECTORY + "/chunk16.safetensors";
  for (const std::string& subcommand : std::vector<std::string>{
           "info", "caches", "caches list", "slots", "slots model", "health", "bench", "caches delete m",
           "snapshots list m", "snapshots delete m 00112233445566778899001122334455",
           "caches create m --slots 1 --heads 1 --key-dim 1 --value-dim 1", replay}) {
    const ProgramResult outcome = RunClient(subcommand + nobody.option());
    EXPECT_EQ(outcome.exit_code, 1) << subcommand;
    EXPECT_THAT(outcome.errors, HasSubstr("UNAVAILABLE: server unix:")) << subcommand;
  }
  EXPECT_THAT(RunClient("info", "GDPCACHE_SERVER=unix:/nobody").errors, HasSubstr("server unix:/nobody"));
}

TEST(CommandLineTest, HealthTellsAnAbsentServerInJsonToo) {
  const ProgramResult outcome = RunClient("health --json" + NoServer().option());
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(nlohmann::json::parse(outcome.output)["status"], "unreachable");
}

TEST(CommandLineTest, UnreadableRecordingsAreOneAndAreNamed) {
  const test::TemporaryDirectory directory;
  const std::string damaged = directory.path() + "/damaged.safetensors";
  std::ofstream(damaged) << "not a recording";
  for (const std::string& path : {std::string("/nonexistent.safetensors"), damaged, directory.path()}) {
    const ProgramResult outcome = RunClient("replay --input " + path + NoServer().option());
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.errors, HasSubstr(path));
    EXPECT_THAT(outcome.errors, Not(HasSubstr("UNAVAILABLE")));
  }
}

}  // namespace
}  // namespace gdpcache::command
