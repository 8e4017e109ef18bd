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

/// The number behind a word of a file; 0 where there is none.
std::int64_t NumberBehind(const std::string& word, const std::string& path) {
  std::ifstream file(path);
  for (std::string next = NextWord(file); !next.empty(); next = NextWord(file)) {
    if (next != word) continue;
    std::int64_t number = 0;
    return absl::SimpleAtoi(NextWord(file), &number) ? number : 0;
  }
  return 0;
}

}  // namespace

HostMemory ReadHostMemory() {
  HostMemory memory;
  memory.total_bytes = std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  memory.used_bytes = memory.total_bytes - (NumberBehind("MemAvailable:", "/proc/meminfo") << 10);  // there in kB
  const auto apply = [&memory](const std::string& limit_path, const std::string& usage_path,
                               const std::string& statistics_path, const char* reclaimable) {
    std::int64_t limit = 0;
    std::ifstream limit_file(limit_path);
    if (!absl::SimpleAtoi(NextWord(limit_file), &limit) || limit >= memory.total_bytes) return;  // "max" is no number
    std::int64_t usage = 0;
    std::ifstream usage_file(usage_path);
    if (!absl::SimpleAtoi(NextWord(usage_file), &usage)) usage = 0;
    memory = {usage - NumberBehind(reclaimable, statistics_path), limit};
  };
  ForEachControlGroup([&](const std::string& group) {
    apply(group + "/memory.max", group + "/memory.current", group + "/memory.stat", "inactive_file");
  });
  const std::string version_1 = "/sys/fs/cgroup/memory/memory";
  apply(version_1 + ".limit_in_bytes", version_1 + ".usage_in_bytes", version_1 + ".stat", "total_inactive_file");
  memory.used_bytes = std::clamp<std::int64_t>(memory.used_bytes, 0, memory.total_bytes);
  return memory;
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
