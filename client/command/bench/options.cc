#include "client/command/bench/options.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gdpcache::bench {

std::vector<std::string> MeasurementNames(const BenchOptions& options) {
  std::vector<std::string> names;
  for (const std::int64_t tokens : options.tokens) names.push_back(absl::StrCat("kernel/", tokens));
  for (const std::int64_t tokens : options.tokens) {
    for (const char* transport : {"unary", "stream", "shared"}) {
      names.push_back(absl::StrCat("prefill/", tokens, "/", transport));
    }
  }
  for (const std::int64_t clients : options.clients) names.push_back(absl::StrCat("decode/", clients));
  for (const char* name : {"slots/copy", "slots/read", "slots/write", "snapshots/save", "snapshots/lookup",
                           "snapshots/restore/device", "snapshots/restore/host"}) {
    names.emplace_back(name);
  }
  return names;
}

bool Picked(const BenchOptions& options, const std::string& name) {
  return options.only.empty() ||
         std::any_of(options.only.begin(), options.only.end(),
                     [&name](const std::string& part) { return absl::StrContains(name, part); });
}

std::string ParseModel(const std::string& text, CacheGeometry* model) {
  const std::vector<std::string> parts = absl::StrSplit(text, 'x');
  struct Part {
    const char* name;
    std::int64_t most;
    std::int64_t* value;
  };
  const Part limits[] = {{"layers", 65'536, &model->layers},
                         {"heads", 1'024, &model->heads},
                         {"key dim", 256, &model->key_dim},
                         {"value dim", 1'024, &model->value_dim}};
  if (parts.size() != std::size(limits)) return absl::StrCat("'", text, "' is not LAYERSxHEADSxKxV");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Part& part = limits[i];
    if (!absl::SimpleAtoi(parts[i], part.value) || *part.value < 1 || *part.value > part.most) {
      return absl::StrCat("'", text, "': the ", part.name, " must be between 1 and ", part.most);
    }
  }
  return "";
}

}  // namespace gdpcache::bench
