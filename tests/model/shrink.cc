#include "tests/model/shrink.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace gdpcache::test {
namespace {

class Shrinker {
 public:
  Shrinker(std::vector<Operation> operations, absl::FunctionRef<bool(absl::Span<const Operation>)> fails,
           absl::FunctionRef<bool()> more)
      : operations_(std::move(operations)), fails_(fails), more_(more) {}

  std::vector<Operation> Run() {
    bool smaller = true;
    while (smaller && more_()) {
      smaller = false;
      for (std::size_t chunk = std::max<std::size_t>(operations_.size() / 2, 1);; chunk /= 2) {
        smaller = RemoveChunks(chunk) || smaller;
        if (chunk <= 1) break;
      }
      smaller = SimplifyChoices() || smaller;
    }
    return std::move(operations_);
  }

 private:
  bool Try(std::vector<Operation> candidate) {
    if (!more_() || !fails_(candidate)) return false;
    operations_ = std::move(candidate);
    return true;
  }

  bool RemoveChunks(std::size_t chunk) {
    bool removed = false;
    // From the back: what comes late depends on what comes early.
    for (std::size_t end = operations_.size(); end > 0;) {
      const std::size_t begin = end > chunk ? end - chunk : 0;
      std::vector<Operation> candidate = operations_;
      candidate.erase(candidate.begin() + static_cast<std::ptrdiff_t>(begin),
                      candidate.begin() + static_cast<std::ptrdiff_t>(end));
      if (!candidate.empty() && Try(std::move(candidate))) removed = true;
      end = std::min(begin, operations_.size());
    }
    return removed;
  }

  bool SimplifyChoices() {
    bool simplified = false;
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      for (std::size_t choice = 0; choice < operations_[i].choices.size(); ++choice) {
        const std::uint32_t value = operations_[i].choices[choice];
        for (const std::uint32_t plainer : {0U, 1U, value / 10, value % 10, value / 2}) {
          if (plainer >= value) continue;
          std::vector<Operation> candidate = operations_;
          candidate[i].choices[choice] = plainer;
          if (!Try(std::move(candidate))) continue;
          simplified = true;
          break;
        }
      }
    }
    return simplified;
  }

  std::vector<Operation> operations_;
  const absl::FunctionRef<bool(absl::Span<const Operation>)> fails_;
  const absl::FunctionRef<bool()> more_;
};

}  // namespace

std::vector<Operation> Shrink(std::vector<Operation> operations,
                              absl::FunctionRef<bool(absl::Span<const Operation>)> fails,
                              absl::FunctionRef<bool()> more) {
  return Shrinker(std::move(operations), fails, more).Run();
}

}  // namespace gdpcache::test
