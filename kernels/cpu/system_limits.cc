#include "kernels/cpu/system_limits.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"

namespace gdpcache::kernels::cpu {
namespace {

/// Calls `visit` with the folder of this process's version 2 control group and of every group around it: a limit of any
/// of them binds.
template <class Visit>
void ForEachControlGroup(const Visit& visit) {
  std::ifstream groups("/proc/self/cgroup");
  std::string path;
  for (std::string line; std::getline(groups, line);) {
    if (absl::StartsWith(line, "0::/")) path = line.substr(3);
  }
  const std::string root = "/sys/fs/cgroup";
  while (path.size() > 1) {
    visit(root + path);
    path.resize(path.rfind('/'));
  }
  visit(root);
}

/// The next word of a file; empty at its end and when it is missing.
std::string NextWord(std::ifstream& file) {
  std::string word;
  file >> word;
  return word;
}

}  // namespace

std::int64_t AvailableMemoryBytes() {
  std::int64_t bytes = std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  const auto apply = [&](const std::string& path) {
    std::ifstream file(path);
    std::int64_t limit = 0;
    if (absl::SimpleAtoi(NextWord(file), &limit)) bytes = std::min(bytes, limit);  // "max" is no number
  };
  ForEachControlGroup([&](const std::string& group) { apply(group + "/memory.max"); });
  apply("/sys/fs/cgroup/memory/memory.limit_in_bytes");  // version 1
  return bytes;
}

int AvailableProcessors() {
  int processors = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const auto apply = [&](const std::string& quota_text, const std::string& period_text) {
    std::int64_t quota = 0;
    std::int64_t period = 0;
    if (absl::SimpleAtoi(quota_text, &quota) && absl::SimpleAtoi(period_text, &period) && quota > 0 && period > 0) {
      processors = static_cast<int>(std::min<std::int64_t>(processors, (quota - 1) / period + 1));
    }
  };
  ForEachControlGroup([&](const std::string& group) {
    std::ifstream file(group + "/cpu.max");
    const std::string quota = NextWord(file);
    apply(quota, NextWord(file));
  });
  std::ifstream quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");  // version 1; -1 is no limit
  std::ifstream period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  apply(NextWord(quota), NextWord(period));
  return processors;
}

}  // namespace gdpcache::kernels::cpu
