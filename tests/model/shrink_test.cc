#include "tests/model/shrink.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/model/operation.h"

namespace gdpcache::test {
namespace {

TEST(ShrinkTest, WhatMattersStaysInItsPlainestForm) {
  // Fails when a save with a first choice above 100 comes before a kill.
  const auto fails = [](absl::Span<const Operation> operations) {
    const auto save = std::find_if(operations.begin(), operations.end(), [](const Operation& operation) {
      return operation.kind == OperationKind::kSave && !operation.choices.empty() && operation.choices[0] > 100;
    });
    return std::any_of(save, operations.end(),
                       [](const Operation& operation) { return operation.kind == OperationKind::kKill; });
  };
  std::vector<Operation> operations = RandomOperations(1, 200);
  const std::vector<Operation> end = ParseOperations("save 900 3; copy 1 2 3; kill 1").value();
  operations.insert(operations.end(), end.begin(), end.end());
  ASSERT_TRUE(fails(operations));
  const std::vector<Operation> small = Shrink(operations, fails, [] { return true; });
  ASSERT_EQ(small.size(), 2) << ToText(small);
  EXPECT_EQ(small[0].kind, OperationKind::kSave);
  EXPECT_LT(small[0].choices[0], 204) << "halving it again would go below what fails";
  EXPECT_EQ(ToText({&small[1], 1}), "kill");
}

TEST(ShrinkTest, GivesUpWhenItHasBeenLongEnough) {
  int left = 5;
  const std::vector<Operation> operations = RandomOperations(2, 50);
  const std::vector<Operation> small = Shrink(
      operations, [](auto) { return true; }, [&left] { return --left > 0; });
  EXPECT_FALSE(small.empty());
  EXPECT_LE(left, 0);
}

TEST(OperationTest, TextAndOperationsAreEachOthersInverse) {
  const std::vector<Operation> operations = RandomOperations(3, 300);
  const std::string text = ToText(operations);
  EXPECT_EQ(ToText(ParseOperations(text).value()), text);
  EXPECT_EQ(ParseOperations("open 0 1; dance").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseOperations("open x").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(OperationTest, ASeedGivesTheSameOperationsEverywhere) {
  EXPECT_EQ(ToText(RandomOperations(7, 3)).substr(0, 6), "server");
  EXPECT_EQ(ToText(RandomOperations(7, 40)), ToText(RandomOperations(7, 40)));
  EXPECT_NE(ToText(RandomOperations(7, 40)), ToText(RandomOperations(8, 40)));
}

}  // namespace
}  // namespace gdpcache::test
