#ifndef GDPCACHE_TESTS_INTEGRATION_COMMAND_SUPPORT_H_
#define GDPCACHE_TESTS_INTEGRATION_COMMAND_SUPPORT_H_

#include <filesystem>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/support/process.h"

namespace gdpcache::test {

inline std::string GoldenFile(const std::string& name) {
  return std::string(GDPCACHE_GOLDEN_DIRECTORY) + "/" + name + ".safetensors";
}

inline std::vector<std::string> GoldenFiles() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(GDPCACHE_GOLDEN_DIRECTORY)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  return files;
}

/// `gdpcache ARGUMENTS --server ADDRESS`.
inline ProgramResult RunClient(const std::string& address, std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--server", address});
  return RunProgram(GDPCACHE_COMMAND, arguments);
}

/// The same with --json, parsed; null when it fails or prints something else.
inline nlohmann::json RunJson(const std::string& address, std::vector<std::string> arguments) {
  arguments.emplace_back("--json");
  const ProgramResult result = RunClient(address, arguments);
  if (result.exit_code != 0) return nullptr;
  return nlohmann::json::parse(result.output, nullptr, /*allow_exceptions=*/false);
}

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_INTEGRATION_COMMAND_SUPPORT_H_
