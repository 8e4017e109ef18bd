// gdpcached's command line: exit codes and what is printed where.

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/process.h"
#include "tests/support/server_process.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache {
namespace {

using test::ProgramResult;
using test::RunProgram;
using test::ServerProgram;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

TEST(CommandLineTest, HelpAndVersionGoToStdoutAndExitWithZero) {
  const ProgramResult help = RunProgram(ServerProgram(), {"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_EQ(help.errors, "");
  EXPECT_THAT(help.output, HasSubstr("--listen"));
  const ProgramResult version = RunProgram(ServerProgram(), {"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.output, MatchesRegex("gdpcached [0-9.]+\n(.*\n)+"));
}

TEST(CommandLineTest, MistakesGoToStderrAllAtOnceAndExitWithTwo) {
  const ProgramResult result =
      RunProgram(ServerProgram(), {"--nonsense", "--threads=many", "--listen=0.0.0.0:0", "--backend=tpu"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.output, "");
  EXPECT_THAT(result.errors, HasSubstr("there is no flag '--nonsense'"));
  EXPECT_THAT(result.errors, HasSubstr("--threads is 'many'; it must be a whole number"));
  EXPECT_THAT(result.errors, HasSubstr("--allow-insecure"));
  EXPECT_THAT(result.errors, HasSubstr("--backend is 'tpu'"));
}

TEST(CommandLineTest, MistakesInTheConfigurationFileExitWithTwo) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/config";
  std::ofstream(path) << "threads: -5\nstate_memory: \"much\"\nlog_level: \"loud\"\n";
  const ProgramResult result = RunProgram(ServerProgram(), {"--config=" + path});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.errors, HasSubstr("gdpcached: threads in " + path + " is -5; it must be from 0 to "));
  EXPECT_THAT(result.errors, HasSubstr("state_memory in " + path + " is 'much'"));
  EXPECT_THAT(result.errors, HasSubstr("log_level in " + path + " is 'loud'"));
}

TEST(CommandLineTest, WhatFailsAtStartSaysWhyAndExitsWithOne) {
  const test::TemporaryDirectory directory;
  const std::string no_tcp = "--listen=";
  ProgramResult result =
      RunProgram(ServerProgram(), {no_tcp, "--backend=cpu", "--unix=" + directory.path() + "/absent/too/socket"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.output, "");
  EXPECT_THAT(result.errors, HasSubstr("cannot make the directory " + directory.path() + "/absent/too: No such file"));

  const std::string path = directory.path() + "/config";
  std::ofstream(path) << "caches { name: \"model\" geometry { layers: 0 } }\n";
  result =
      RunProgram(ServerProgram(), {no_tcp, "--backend=cpu", "--unix=" + directory.path() + "/s", "--config=" + path});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, HasSubstr("configured cache 'model': geometry.layers is 0"));
}

TEST(CommandLineTest, TheSocketIsInADirectoryOfTheUsersOwn) {
  const test::TemporaryDirectory runtime;
  const auto help = [&](const std::string& setting) {
    return RunProgram("/usr/bin/env", {"-u", "XDG_RUNTIME_DIR", setting, ServerProgram(), "--help"}).output;
  };
  const std::string setting = "XDG_RUNTIME_DIR=" + runtime.path();
  EXPECT_THAT(help(setting), HasSubstr(runtime.path() + "/gdpcache.sock)"));
  const auto own = HasSubstr(absl::StrCat("/tmp/gdpcache-", geteuid(), "/gdpcache.sock)"));
  EXPECT_THAT(help("NOTHING="), own);
  EXPECT_THAT(help("XDG_RUNTIME_DIR="), own);
  EXPECT_THAT(help(setting + "/absent"), own);
  ASSERT_EQ(chmod(runtime.path().c_str(), 0770), 0);
  EXPECT_THAT(help(setting), own) << "not this user's alone";
}

TEST(CommandLineTest, WhereAnotherUserCouldHavePutTheSocketNothingIsServed) {
  const test::TemporaryDirectory shared;  // like /tmp
  ASSERT_EQ(chmod(shared.path().c_str(), 01777), 0);
  const std::string squatted = shared.path() + "/gdpcache-0";
  std::filesystem::create_directory(squatted);
  ASSERT_EQ(chmod(squatted.c_str(), 0777), 0);
  const std::string socket = squatted + "/gdpcache.sock";
  const ProgramResult server = RunProgram(ServerProgram(), {"--listen=", "--backend=cpu", "--unix=" + socket});
  EXPECT_EQ(server.exit_code, 1);
  EXPECT_EQ(server.output, "");
  EXPECT_THAT(server.errors, HasSubstr("everybody may write in " + squatted));
}

}  // namespace
}  // namespace gdpcache
