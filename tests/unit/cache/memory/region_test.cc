#include "server/cache/memory/region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cache/memory/session_regions.h"
#include "tests/support/noting_sharing.h"

namespace gdpcache::cache {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
constexpr int kGood = F_SEAL_SHRINK;
constexpr std::int64_t kPage = 4096;

/// A memfd of a client.
class File {
 public:
  explicit File(std::int64_t size, int seals = kGood, unsigned flags = MFD_ALLOW_SEALING)
      : descriptor_(memfd_create("test", MFD_CLOEXEC | flags)) {
    EXPECT_GE(descriptor_, 0);
    EXPECT_EQ(ftruncate(descriptor_, size), 0);
    if (seals != 0) {
      EXPECT_EQ(fcntl(descriptor_, F_ADD_SEALS, seals), 0);
    }
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { close(descriptor_); }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

std::shared_ptr<RegionBudget> Budget(std::int64_t bytes = 1 << 20, std::int64_t count = 100) {
  return std::make_shared<RegionBudget>(bytes, count);
}

TEST(MemfdTest, OneThatCannotShrinkIsGood) { EXPECT_EQ(CheckMemfd(File(4096).get()), absl::OkStatus()); }

TEST(MemfdTest, WhatItsOwnerCouldTakeAwayIsRefused) {
  EXPECT_THAT(CheckMemfd(File(4096, 0).get()).message(), HasSubstr("not sealed with F_SEAL_SHRINK"));
  EXPECT_THAT(CheckMemfd(File(4096, F_SEAL_GROW).get()).message(), HasSubstr("not sealed with F_SEAL_SHRINK"));
  EXPECT_THAT(CheckMemfd(File(4096, 0, 0).get()).message(), HasSubstr("not sealed with F_SEAL_SHRINK"));
}

TEST(MemfdTest, WhatTheServerCannotWriteIsRefused) {
  EXPECT_THAT(CheckMemfd(File(4096, kGood | F_SEAL_WRITE).get()).message(), HasSubstr("sealed against writing"));
  const File file(4096);
  const int read_only = open(("/proc/self/fd/" + std::to_string(file.get())).c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(read_only, 0);
  EXPECT_THAT(CheckMemfd(read_only).message(), HasSubstr("not open for reading and writing"));
  close(read_only);
}

TEST(MemfdTest, OtherFilesAreRefused) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  const int named = shm_open("/gdpcache-region-test", O_RDWR | O_CREAT | O_EXCL, 0600);
  ASSERT_GE(named, 0);
  shm_unlink("/gdpcache-region-test");
  for (const int descriptor : {ends[0], null, named, -1}) {
    EXPECT_EQ(CheckMemfd(descriptor).code(), absl::StatusCode::kInvalidArgument) << descriptor;
  }
  for (const int descriptor : {ends[0], ends[1], null, named}) close(descriptor);
}

TEST(RegionTest, IsTheClientsMemoryAndOutlivesItsDescriptor) {
  std::shared_ptr<Region> region;
  void* client = nullptr;
  {
    const File file(3 * kPage);
    client = mmap(nullptr, 3 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    region = MapMemfd(file.get(), 4096, 5000, nullptr, Budget()).value();
  }
  EXPECT_EQ(region->size(), 5000);
  std::memcpy(region->At(4), "hello", 5);
  EXPECT_EQ(std::memcmp(static_cast<char*>(client) + 4096 + 4, "hello", 5), 0);
  munmap(client, 3 * kPage);
  EXPECT_EQ(std::memcmp(region->At(4), "hello", 5), 0);
}

TEST(RegionTest, StaysReadableAndWritableWhateverTheClientDoesToTheFile) {
  const File file(2 * kPage);
  const std::shared_ptr<Region> region = MapMemfd(file.get(), 0, 2 * kPage, nullptr, Budget()).value();
  std::memset(region->At(0), 1, 2 * kPage);
  EXPECT_EQ(ftruncate(file.get(), 0), -1);
  EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE), -1) << "the server has it mapped for writing";
  EXPECT_EQ(fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 2 * kPage), 0);
  std::memset(region->At(0), 2, 2 * kPage);
  EXPECT_EQ(*region->At(4096), std::byte{2});
}

TEST(RegionTest, PlacesOutsideTheFileAreRefused) {
  const File file(2 * kPage);
  struct Case {
    std::uint64_t offset;
    std::uint64_t size;
  };
  for (const auto& [offset, size] : {Case{0, 8193}, Case{4096, 4097}, Case{8192, 1}, Case{kMax - 4095, 4096},
                                     Case{4096, kMax}, Case{0, 0}, Case{1, 1}, Case{kMax, kMax}, Case{0, kMax}}) {
    const absl::Status status = MapMemfd(file.get(), offset, size, nullptr, Budget()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << offset << " " << size;
  }
  EXPECT_TRUE(MapMemfd(file.get(), 4096, 4096, nullptr, Budget()).ok());
}

TEST(RegionTest, ContainsOnlyWhatLiesInside) {
  const File file(4096);
  const std::shared_ptr<Region> region = MapMemfd(file.get(), 0, 100, nullptr, Budget()).value();
  EXPECT_TRUE(region->Contains(0, 100));
  EXPECT_TRUE(region->Contains(100, 0));
  EXPECT_TRUE(region->Contains(99, 1));
  EXPECT_FALSE(region->Contains(99, 2));
  EXPECT_FALSE(region->Contains(101, 0));
  EXPECT_FALSE(region->Contains(kMax, 2)) << "the sum overflows";
  EXPECT_FALSE(region->Contains(2, kMax));
}

TEST(RegionTest, BudgetsAreKeptAndGivenBack) {
  const File file(4 * kPage);
  const std::shared_ptr<RegionBudget> budget = Budget(3 * kPage, 2);
  auto first = MapMemfd(file.get(), 0, 2 * kPage, nullptr, budget);
  ASSERT_TRUE(first.ok());
  const absl::Status bytes = MapMemfd(file.get(), 0, 2 * kPage, nullptr, budget).status();
  EXPECT_EQ(bytes.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(bytes.message(), HasSubstr("size is 8192; of the server's 12288 bytes of shared memory 8192"));
  auto second = MapMemfd(file.get(), 0, 4096, nullptr, budget);
  ASSERT_TRUE(second.ok()) << "the refused one took nothing: " << second.status();
  EXPECT_THAT(MapMemfd(file.get(), 0, 1, nullptr, budget).status().message(), HasSubstr("at most 2"));
  *first = nullptr;
  *second = nullptr;
  EXPECT_EQ(budget->bytes.used(), 0);
  EXPECT_EQ(budget->count.used(), 0);
}

TEST(RegionTest, ATenantsShareIsAPartOfTheWhole) {
  const File file(4 * kPage);
  const std::shared_ptr<RegionBudget> whole = Budget(4 * kPage, 3);
  const auto share = [&whole] { return std::make_shared<RegionBudget>(2 * kPage, 2, whole); };
  const std::shared_ptr<RegionBudget> one = share();
  auto first = MapMemfd(file.get(), 0, kPage, nullptr, one);
  ASSERT_TRUE(first.ok());
  EXPECT_THAT(MapMemfd(file.get(), 0, 2 * kPage, nullptr, one).status().message(),
              HasSubstr("of the tenant's 8192 bytes of shared memory 4096"));
  EXPECT_EQ(whole->bytes.used(), kPage) << "the refused one took nothing";
  EXPECT_EQ(whole->count.used(), 1);
  auto second = MapMemfd(file.get(), 0, 1, nullptr, one);
  ASSERT_TRUE(second.ok());
  EXPECT_THAT(MapMemfd(file.get(), 0, 1, nullptr, one).status().message(), HasSubstr("the tenant has 2 regions"));
  auto others = MapMemfd(file.get(), 0, kPage, nullptr, share());
  ASSERT_TRUE(others.ok());
  EXPECT_THAT(MapMemfd(file.get(), 0, 1, nullptr, share()).status().message(), HasSubstr("the server has 3 regions"));
  *first = nullptr;
  *second = nullptr;
  *others = nullptr;
  EXPECT_EQ(whole->bytes.used(), 0);
  EXPECT_EQ(whole->count.used(), 0);
  EXPECT_EQ(one->count.used(), 0);
}

TEST(RegionTest, MemoryOfADeviceStaysInsideItsAllocation) {
  test::NotingSharing sharing;
  const std::string handle(64, 'h');
  {
    const auto region = OpenCudaMemory(handle, 16, 240, sharing, Budget());
    ASSERT_TRUE(region.ok()) << region.status();
    EXPECT_EQ((*region)->At(0), reinterpret_cast<std::byte*>(sharing.memory) + 16);
    EXPECT_EQ(sharing.open, 1);
  }
  EXPECT_EQ(OpenCudaMemory(handle, 16, 241, sharing, Budget()).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenCudaMemory(handle, 8, 8, sharing, Budget()).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenCudaMemory(handle, kMax - 15, 16, sharing, Budget()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(OpenCudaMemory("short", 0, 8, sharing, Budget()).status().message(), HasSubstr("has 5 bytes"));
  EXPECT_EQ(sharing.open, 0);
}

TEST(RegionTest, PinsWhereThereIsADeviceAndLetsGoAfterARefusal) {
  test::NotingSharing sharing;
  const File file(4096);
  const std::shared_ptr<RegionBudget> budget = Budget();
  {
    const auto region = MapMemfd(file.get(), 0, 4096, &sharing, budget);
    EXPECT_EQ(sharing.open, 1);
  }
  EXPECT_EQ(sharing.open, 0);
  sharing.refuse = true;
  EXPECT_EQ(MapMemfd(file.get(), 0, 4096, &sharing, budget).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(budget->bytes.used(), 0);
}

TEST(RegionTest, AnEventContainsNothing) {
  test::NotingSharing sharing;
  const auto event = OpenCudaEvent(std::string(64, 'e'), sharing, Budget()).value();
  EXPECT_FALSE(event->Contains(0, 0));
}

class SessionRegionsTest : public ::testing::Test {
 protected:
  std::shared_ptr<Region> NewRegion() {
    return std::make_shared<Region>(RegionKind::kSystem, nullptr, 10, [this] { ++released_; });
  }

  SessionRegions regions_;
  int released_ = 0;
};

TEST_F(SessionRegionsTest, NamesAreUniqueAndBounded) {
  EXPECT_TRUE(regions_.Add("a", NewRegion()).ok());
  EXPECT_EQ(regions_.Add("a", NewRegion()).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(released_, 1) << "the refused one";
  EXPECT_EQ(regions_.Add("", NewRegion()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(regions_.Add(std::string(129, 'a'), NewRegion()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(regions_.Add(std::string(128, '\0'), NewRegion()).ok());
  EXPECT_EQ(regions_.Find("b").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SessionRegionsTest, ARemovedRegionStaysUntilItsLastUseAndItsNameIsFreeAtOnce) {
  ASSERT_TRUE(regions_.Add("a", NewRegion()).ok());
  std::shared_ptr<Region> use = regions_.Find("a").value();
  EXPECT_EQ(regions_.List()[0].uses, 1);
  bool told = false;
  ASSERT_TRUE(regions_.Remove("a", [&told] { told = true; }).ok());
  EXPECT_EQ(regions_.Find("a").status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(told);
  EXPECT_EQ(released_, 0);
  EXPECT_TRUE(regions_.Add("a", NewRegion()).ok());
  use = nullptr;
  EXPECT_TRUE(told);
  EXPECT_EQ(released_, 1);
  EXPECT_EQ(regions_.Remove("b", [] {}).code(), absl::StatusCode::kNotFound);
}

TEST_F(SessionRegionsTest, TenThousandRoundsLeaveNothingBehind) {
  const File file(4096);
  const std::shared_ptr<RegionBudget> budget = Budget(8192, 2);
  for (int round = 0; round < 10'000; ++round) {
    ASSERT_TRUE(regions_.Add("a", MapMemfd(file.get(), 0, 4096, nullptr, budget).value()).ok()) << round;
    ASSERT_TRUE(regions_.Remove("a", [this] { ++released_; }).ok());
  }
  EXPECT_EQ(released_, 10'000);
  EXPECT_EQ(budget->bytes.used(), 0);
  EXPECT_EQ(budget->count.used(), 0);
}

TEST_F(SessionRegionsTest, NothingIsLeftOfAClosedSession) {
  ASSERT_TRUE(regions_.Add("a", NewRegion()).ok());
  const std::shared_ptr<Region> use = regions_.Find("a").value();
  ASSERT_TRUE(regions_.Add("b", NewRegion()).ok());
  regions_.Close();
  EXPECT_EQ(released_, 1) << "the other one is in use";
  EXPECT_EQ(regions_.Add("c", NewRegion()).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(regions_.List().empty());
}

}  // namespace
}  // namespace gdpcache::cache
