#include "tests/model/operation.h"

#include <algorithm>
#include <random>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gdpcache::test {
namespace {

struct Form {
  OperationKind kind;
  absl::string_view name;
  std::size_t choices;
  unsigned weight;  // in random lists
};

constexpr Form kForms[] = {
    {OperationKind::kServer, "server", 10, 0},
    {OperationKind::kCreateCache, "create", 2, 3},
    {OperationKind::kDeleteCache, "drop", 2, 1},
    {OperationKind::kOpenSession, "open", 3, 8},
    {OperationKind::kCloseSession, "close", 1, 2},
    {OperationKind::kExpireSession, "expire", 2, 1},
    {OperationKind::kAcquire, "acquire", 2, 10},
    {OperationKind::kRelease, "release", 3, 3},
    {OperationKind::kReset, "reset", 3, 2},
    {OperationKind::kCopy, "copy", 11, 5},
    {OperationKind::kRead, "read", 5, 2},
    {OperationKind::kWrite, "write", 7, 4},
    {OperationKind::kPrefill, "prefill", 25, 26},
    {OperationKind::kStorm, "storm", 12, 4},
    {OperationKind::kHasty, "hasty", 4, 2},
    {OperationKind::kSave, "save", 5, 8},
    {OperationKind::kLookup, "lookup", 5, 6},
    {OperationKind::kRestore, "restore", 7, 10},
    {OperationKind::kPin, "pin", 4, 2},
    {OperationKind::kUnpin, "unpin", 3, 2},
    {OperationKind::kDelete, "delete", 5, 3},
    {OperationKind::kExport, "export", 3, 2},
    {OperationKind::kImport, "import", 5, 2},
    {OperationKind::kWatch, "watch", 4, 3},
    {OperationKind::kRestart, "restart", 1, 1},
    {OperationKind::kKill, "kill", 1, 1},
};

const Form& FormOf(OperationKind kind) {
  return *std::find_if(std::begin(kForms), std::end(kForms), [kind](const Form& form) { return form.kind == kind; });
}

}  // namespace

std::string ToText(absl::Span<const Operation> operations) {
  std::string text;
  for (const Operation& operation : operations) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", FormOf(operation.kind).name);
    std::size_t count = operation.choices.size();
    while (count > 0 && operation.choices[count - 1] == 0) --count;
    for (std::size_t i = 0; i < count; ++i) absl::StrAppend(&text, " ", operation.choices[i]);
  }
  return text;
}

absl::StatusOr<std::vector<Operation>> ParseOperations(absl::string_view text) {
  std::vector<Operation> operations;
  for (const absl::string_view part : absl::StrSplit(text, ';', absl::SkipWhitespace())) {
    const std::vector<absl::string_view> words = absl::StrSplit(part, absl::ByAnyChar(" \n\t"), absl::SkipEmpty());
    const Form* const form =
        std::find_if(std::begin(kForms), std::end(kForms), [&](const Form& known) { return known.name == words[0]; });
    if (form == std::end(kForms)) return absl::InvalidArgumentError(absl::StrCat("there is no operation ", words[0]));
    Operation& operation = operations.emplace_back();
    operation.kind = form->kind;
    for (std::size_t i = 1; i < words.size(); ++i) {
      if (!absl::SimpleAtoi(words[i], &operation.choices.emplace_back())) {
        return absl::InvalidArgumentError(absl::StrCat(words[i], " is no number"));
      }
    }
  }
  return operations;
}

std::vector<Operation> RandomOperations(std::uint64_t seed, std::size_t count) {
  // No distribution of the library: what those give differs between implementations.
  std::mt19937_64 random(seed);
  const auto fill = [&random](const Form& form) {
    Operation operation{form.kind, {}};
    for (std::size_t i = 0; i < form.choices; ++i) {
      operation.choices.push_back(random() % 3 == 0 ? 0 : static_cast<std::uint32_t>(random() % 1'000));
    }
    return operation;
  };
  unsigned total = 0;
  for (const Form& form : kForms) total += form.weight;
  // Without caches, sessions and slots little can happen.
  std::vector<Operation> operations = {fill(kForms[0]),
                                       {OperationKind::kCreateCache, {}},
                                       {OperationKind::kCreateCache, {1 + static_cast<std::uint32_t>(random() % 3)}},
                                       {OperationKind::kOpenSession, {}},
                                       {OperationKind::kAcquire, {0, 2}},
                                       {OperationKind::kOpenSession, {1, static_cast<std::uint32_t>(random() % 4), 1}},
                                       {OperationKind::kAcquire, {1, 1}}};
  while (operations.size() < count) {
    auto drawn = static_cast<unsigned>(random() % total);
    const Form* form = std::begin(kForms);
    for (; drawn >= form->weight; ++form) drawn -= form->weight;
    operations.push_back(fill(*form));
  }
  return operations;
}

}  // namespace gdpcache::test
