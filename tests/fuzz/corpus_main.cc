// Runs a fuzz target over files, and for a second over random changes of them, for builds without libFuzzer: a
// test of every build.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

constexpr char kFailed[] = "failed_input";
std::string g_input;  // the one that runs

extern "C" void KeepInput(int signal_number) {
  const int file = open(kFailed, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (write(file, g_input.data(), g_input.size()) >= 0) {
    constexpr char kLine[] = "the input is in ./failed_input\n";
    static_cast<void>(!write(STDERR_FILENO, kLine, sizeof(kLine) - 1));
  }
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

void Run(std::string input) {
  g_input = std::move(input);
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(g_input.data()), g_input.size());
}

/// One to four changes: a bit, a byte, an end that is missing, a piece twice, a piece of another input.
std::string Change(const std::vector<std::string>& inputs, std::mt19937_64& random) {
  std::string changed = inputs[random() % inputs.size()];
  for (std::uint64_t left = 1 + random() % 4; left > 0; --left) {
    const std::size_t at = changed.empty() ? 0 : random() % changed.size();
    const std::string& other = random() % 2 == 0 ? changed : inputs[random() % inputs.size()];
    const std::size_t from = other.empty() ? 0 : random() % other.size();
    const std::string piece = other.substr(from, random() % 32);
    switch (random() % 4) {
      case 0:
        if (!changed.empty()) changed[at] = static_cast<char>(changed[at] ^ (1 << random() % 8));
        break;
      case 1:
        if (!changed.empty()) changed[at] = static_cast<char>(random() % 2 == 0 ? 0xFF : random());
        break;
      case 2:
        changed.resize(at);
        break;
      default:
        changed.insert(at, piece);
    }
  }
  return changed;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> inputs;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      std::ifstream file(entry.path(), std::ios::binary);
      inputs.emplace_back((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    }
  }
  std::sort(inputs.begin(), inputs.end());  // directories have no order
  for (const int signal_number : {SIGABRT, SIGSEGV}) std::signal(signal_number, KeepInput);
  for (const std::string& input : inputs) Run(input);
  constexpr int kMostChanges = 20'000;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  std::mt19937_64 random(1);
  int changes = 0;
  while (!inputs.empty() && changes < kMostChanges && std::chrono::steady_clock::now() < end) {
    Run(Change(inputs, random));
    ++changes;
  }
  std::printf("%zu inputs, %d changes of them\n", inputs.size(), changes);
  return inputs.empty() ? 1 : 0;
}
