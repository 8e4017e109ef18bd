#include "server/rpc/snapshot_uploads.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cache/errors.h"
#include "tests/support/heap_backend.h"
#include "tests/support/manual_clock.h"
#include "tests/support/sample_snapshot.h"

namespace gdpcache::rpc {
namespace {

using ::testing::HasSubstr;

absl::Span<const std::byte> Bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

class SnapshotUploadsTest : public ::testing::Test {
 protected:
  static constexpr std::int64_t kMaxBytes = 100'000;

  v1::WriteSnapshotHeader Header(std::int64_t offset = 0, const std::string& name = "upload") const {
    v1::WriteSnapshotHeader header;
    header.set_cache("model");
    header.set_upload(name);
    header.set_size(static_cast<std::int64_t>(file_.size()));
    header.set_offset(offset);
    return header;
  }

  absl::StatusOr<SnapshotUploads::Transfer> Begin(const v1::WriteSnapshotHeader& header) {
    return uploads_.Begin(space_, header);
  }

  std::string FieldOf(const v1::WriteSnapshotHeader& header) {
    const absl::Status status = Begin(header).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    const auto violation = cache::FieldViolationOf(status);
    return violation.has_value() ? violation->field : "";
  }

  void ExpectWhole(absl::StatusOr<SnapshotUploads::Transfer::Complete> complete) const {
    ASSERT_TRUE(complete.ok()) << complete.status();
    EXPECT_EQ(complete->contents.position, snapshot_.record().position);
    ASSERT_EQ(complete->contents.parts.size(), snapshot_.parts().size());
    for (std::size_t layer = 0; layer < snapshot_.parts().size(); ++layer) {
      for (const auto& [got, wanted] :
           {std::pair(complete->contents.parts[layer].state, snapshot_.parts()[layer].state),
            std::pair(complete->contents.parts[layer].auxiliary, snapshot_.parts()[layer].auxiliary)}) {
        EXPECT_EQ(std::string(static_cast<const char*>(got.data), got.size),
                  std::string(static_cast<const char*>(wanted.data), wanted.size));
      }
    }
  }

  test::ManualClock clock_;
  test::HeapBackend backend_;
  engine::StagingPool staging_{backend_, kernels::MemoryKind::kHost, 1 << 20};
  const test::SampleSnapshot snapshot_{7};
  const cache::SnapshotSpace space_ = snapshot_.record().space;
  const std::string file_ = snapshot_.File();
  SnapshotUploads uploads_{
      clock_,
      absl::Seconds(10),
      kMaxBytes,
      /*share=*/{},
      [this](std::int64_t bytes, const std::string&) -> absl::StatusOr<std::shared_ptr<engine::StagingBuffer>> {
        auto account = staging_.Open(0);
        if (!account.ok()) return account.status();
        auto buffer = (*account)->Acquire(bytes);
        if (!buffer.ok()) return buffer.status();
        return std::make_shared<engine::StagingBuffer>(*std::move(buffer));
      },
      [](absl::Time) {}};
};

TEST_F(SnapshotUploadsTest, AFileIsTakenApartHoweverItIsCut) {
  for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, std::size_t{100}, file_.size()}) {
    absl::StatusOr<SnapshotUploads::Transfer> transfer = Begin(Header());
    ASSERT_TRUE(transfer.ok()) << transfer.status();
    for (std::size_t n = 0; n < file_.size(); n += piece) {
      ASSERT_TRUE(transfer->Take(Bytes(file_.substr(n, piece))).ok());
    }
    absl::StatusOr<SnapshotUploads::Transfer::Complete> complete = transfer->Finish();
    EXPECT_EQ(complete->key, snapshot_.record().key);
    ExpectWhole(std::move(complete));
    EXPECT_EQ(uploads_.count(), 0u);
    EXPECT_EQ(uploads_.bytes(), 0);
  }
  EXPECT_EQ(staging_.used(), 0);
}

TEST_F(SnapshotUploadsTest, ABrokenOneGoesOnWhereTheQuerySays) {
  const std::size_t half = file_.size() / 2;
  {
    absl::StatusOr<SnapshotUploads::Transfer> first = Begin(Header());
    ASSERT_TRUE(first->Take(Bytes(file_.substr(0, half))).ok());
  }
  const absl::StatusOr<v1::QueryWriteStatusResponse> status = uploads_.Query(space_, "upload");
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->received(), static_cast<std::int64_t>(half));
  EXPECT_EQ(status->size(), static_cast<std::int64_t>(file_.size()));
  absl::StatusOr<SnapshotUploads::Transfer> second = Begin(Header(status->received()));
  ASSERT_TRUE(second.ok()) << second.status();
  ASSERT_TRUE(second->Take(Bytes(file_.substr(half))).ok());
  ExpectWhole(second->Finish());
  EXPECT_EQ(uploads_.Query(space_, "upload").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SnapshotUploadsTest, ANewCallTakesTheUploadFromOneThatHangs) {
  const std::size_t half = file_.size() / 2;
  absl::StatusOr<SnapshotUploads::Transfer> hanging = Begin(Header());
  ASSERT_TRUE(hanging->Take(Bytes(file_.substr(0, half))).ok());
  absl::StatusOr<SnapshotUploads::Transfer> next = Begin(Header(static_cast<std::int64_t>(half)));
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(hanging->Take(Bytes(file_.substr(half))).code(), absl::StatusCode::kAborted);
  hanging = SnapshotUploads::Transfer();
  ASSERT_TRUE(next->Take(Bytes(file_.substr(half))).ok());
  ExpectWhole(next->Finish());
}

TEST_F(SnapshotUploadsTest, OffsetZeroBeginsAnew) {
  absl::StatusOr<SnapshotUploads::Transfer> first = Begin(Header());
  ASSERT_TRUE(first->Take(Bytes(file_.substr(0, 500))).ok());
  absl::StatusOr<SnapshotUploads::Transfer> second = Begin(Header());
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(first->Take(Bytes(file_.substr(500))).code(), absl::StatusCode::kAborted);
  ASSERT_TRUE(second->Take(Bytes(file_)).ok());
  ExpectWhole(second->Finish());
}

TEST_F(SnapshotUploadsTest, NamesAreOfOneTenantAndSpace) {
  absl::StatusOr<SnapshotUploads::Transfer> mine = Begin(Header());
  ASSERT_TRUE(mine->Take(Bytes(file_.substr(0, 100))).ok());
  cache::SnapshotSpace other = space_;
  other.tenant = "another";
  EXPECT_EQ(uploads_.Query(other, "upload").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(uploads_.Begin(other, Header(100)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(uploads_.Begin(other, Header()).ok());
  EXPECT_TRUE(mine->Take(Bytes(file_.substr(100))).ok());
}

TEST_F(SnapshotUploadsTest, OneWithoutANameGoesWithItsCall) {
  {
    absl::StatusOr<SnapshotUploads::Transfer> unnamed = Begin(Header(0, ""));
    ASSERT_TRUE(unnamed->Take(Bytes(file_.substr(0, file_.size() - 1))).ok());
    EXPECT_GT(staging_.used(), 0);
  }
  EXPECT_EQ(uploads_.count(), 0u);
  EXPECT_EQ(staging_.used(), 0);
  EXPECT_EQ(Begin(Header(10, "")).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SnapshotUploadsTest, OnesThatNothingComesOfAreForgotten) {
  {
    absl::StatusOr<SnapshotUploads::Transfer> broken = Begin(Header());
    ASSERT_TRUE(broken->Take(Bytes(file_.substr(0, file_.size() - 1))).ok());
  }
  clock_.Advance(absl::Seconds(9));
  EXPECT_EQ(uploads_.ExpireIdle(), clock_.Now() + absl::Seconds(1));
  EXPECT_TRUE(uploads_.Query(space_, "upload").ok());
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(uploads_.ExpireIdle(), absl::InfiniteFuture());
  EXPECT_EQ(uploads_.Query(space_, "upload").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(staging_.used(), 0);
  EXPECT_EQ(uploads_.bytes(), 0);
}

TEST_F(SnapshotUploadsTest, DamagedFilesAreDataLossAndForgotten) {
  std::string damaged = file_;
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  absl::StatusOr<SnapshotUploads::Transfer> transfer = Begin(Header());
  ASSERT_TRUE(transfer->Take(Bytes(damaged)).ok());
  EXPECT_EQ(transfer->Finish().status().code(), absl::StatusCode::kDataLoss);
  *transfer = SnapshotUploads::Transfer();
  EXPECT_EQ(uploads_.count(), 0u);

  transfer = Begin(Header());
  EXPECT_FALSE(transfer->Take(Bytes(std::string(100, '\xff'))).ok());
  EXPECT_EQ(uploads_.count(), 0u) << "wrong from the first byte on";
  EXPECT_EQ(staging_.used(), 0);
}

TEST_F(SnapshotUploadsTest, AFileThatIsTooShortCanGoOn) {
  absl::StatusOr<SnapshotUploads::Transfer> transfer = Begin(Header());
  ASSERT_TRUE(transfer->Take(Bytes(file_.substr(0, 10))).ok());
  const absl::Status status = transfer->Finish().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("after 10 of the file's"));
  EXPECT_EQ(uploads_.Query(space_, "upload")->received(), 10);
}

TEST_F(SnapshotUploadsTest, AnotherSpacesFileIsRefusedWithTheDifference) {
  cache::SnapshotSpace other = space_;
  other.heads = 5;
  absl::StatusOr<SnapshotUploads::Transfer> transfer = uploads_.Begin(other, Header());
  ASSERT_TRUE(transfer.ok());
  const absl::Status status = transfer->Take(Bytes(file_));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("heads is 2, not 5"));
  EXPECT_EQ(staging_.used(), 0);
}

TEST_F(SnapshotUploadsTest, AHeaderLongerThanAnyOfTheSpaceIsNotGathered) {
  v1::WriteSnapshotHeader header = Header();
  header.set_size(std::int64_t{1} << 40);
  absl::StatusOr<SnapshotUploads::Transfer> transfer = Begin(header);
  ASSERT_TRUE(transfer.ok()) << transfer.status();
  ASSERT_TRUE(transfer->Take(Bytes(std::string("\xF0\xFF\xFF\0\0\0\0\0", 8))).ok());  // almost 16 MiB
  const std::string piece(64 << 10, ' ');
  absl::Status status;
  std::int64_t pieces = 0;
  for (; status.ok() && pieces < 255; ++pieces) status = transfer->Take(Bytes(piece));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_LT(pieces, 20);
  EXPECT_EQ(uploads_.count(), 0u);
}

TEST_F(SnapshotUploadsTest, AnotherKeyCanBeGiven) {
  v1::WriteSnapshotHeader header = Header();
  header.set_key(std::string(20, 'k'));
  absl::StatusOr<SnapshotUploads::Transfer> transfer = Begin(header);
  ASSERT_TRUE(transfer->Take(Bytes(file_)).ok());
  EXPECT_EQ(transfer->Finish()->key, std::string(20, 'k'));
}

TEST_F(SnapshotUploadsTest, WrongFieldsAreNamed) {
  v1::WriteSnapshotHeader header = Header();
  header.set_key("short");
  EXPECT_EQ(FieldOf(header), "header.key");
  EXPECT_EQ(FieldOf(Header(0, std::string(129, 'n'))), "header.upload");
  EXPECT_EQ(FieldOf(Header(-1)), "header.offset");
  EXPECT_EQ(FieldOf(Header(static_cast<std::int64_t>(file_.size()) + 1)), "header.offset");
  header = Header();
  header.set_size(0);
  EXPECT_EQ(FieldOf(header), "header.size");
  header.set_size(-5);
  EXPECT_EQ(FieldOf(header), "header.size");

  { ASSERT_TRUE(Begin(Header())->Take(Bytes(file_.substr(0, 10))).ok()); }
  EXPECT_EQ(FieldOf(Header(9)), "header.offset");
  header = Header(10);
  header.set_size(header.size() + 1);
  EXPECT_EQ(FieldOf(header), "header.size");
  header = Header(10);
  header.set_key(std::string(16, 'k'));
  EXPECT_EQ(FieldOf(header), "header.key");
  EXPECT_EQ(uploads_.Query(space_, "").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SnapshotUploadsTest, OneOfSeveralTenantsTakesNoMoreThanItsShare) {
  const auto stage = [this](std::int64_t bytes,
                            const std::string&) -> absl::StatusOr<std::shared_ptr<engine::StagingBuffer>> {
    auto account = staging_.Open(0);
    if (!account.ok()) return account.status();
    auto buffer = (*account)->Acquire(bytes);
    if (!buffer.ok()) return buffer.status();
    return std::make_shared<engine::StagingBuffer>(*std::move(buffer));
  };
  cache::SnapshotSpace other = space_;
  other.tenant = "other";
  SnapshotUploads uploads(clock_, absl::Seconds(10), kMaxBytes, cache::TenantShare{50}, stage, [](absl::Time) {});
  std::vector<absl::StatusOr<SnapshotUploads::Transfer>> transfers;
  for (std::size_t n = 0; n < SnapshotUploads::kMaxUploads / 2; ++n) {
    transfers.push_back(uploads.Begin(space_, Header(0, "upload" + std::to_string(n))));
    ASSERT_TRUE(transfers.back().ok());
  }
  const absl::Status status = uploads.Begin(space_, Header()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(cache::RetryAfterOf(status).has_value());
  transfers.push_back(uploads.Begin(other, Header()));
  EXPECT_TRUE(transfers.back().ok()) << "the others have theirs";

  // Memory for two and a half of them: a tenant's second one waits, although there is room.
  SnapshotUploads small(clock_, absl::Seconds(10), 5 * space_.snapshot_bytes() / 2, cache::TenantShare{50}, stage,
                        [](absl::Time) {});
  absl::StatusOr<SnapshotUploads::Transfer> first = small.Begin(space_, Header(0, "a"));
  ASSERT_TRUE(first->Take(Bytes(file_).first(file_.size() - 1)).ok());
  absl::StatusOr<SnapshotUploads::Transfer> second = small.Begin(space_, Header(0, "b"));
  EXPECT_EQ(second->Take(Bytes(file_)).code(), absl::StatusCode::kResourceExhausted);

  // One of any size is let through.
  SnapshotUploads tight(clock_, absl::Seconds(10), space_.snapshot_bytes(), cache::TenantShare{50}, stage,
                        [](absl::Time) {});
  absl::StatusOr<SnapshotUploads::Transfer> only = tight.Begin(space_, Header(0, "a"));
  EXPECT_TRUE(only->Take(Bytes(file_)).ok());
}

TEST_F(SnapshotUploadsTest, NumberAndBytesAreBounded) {
  for (std::size_t n = 0; n < SnapshotUploads::kMaxUploads; ++n) {
    ASSERT_TRUE(Begin(Header(0, "upload" + std::to_string(n))).ok());
  }
  const absl::Status status = Begin(Header()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(cache::RetryAfterOf(status).has_value());
  EXPECT_TRUE(Begin(Header(0, "upload0")).ok()) << "it takes the place of the one before";

  SnapshotUploads small(
      clock_, absl::Seconds(10), space_.snapshot_bytes() + 1, /*share=*/{},
      [](std::int64_t, const std::string&) { return absl::InternalError("not asked for"); }, [](absl::Time) {});
  absl::StatusOr<SnapshotUploads::Transfer> first = small.Begin(space_, Header(0, "a"));
  EXPECT_EQ(first->Take(Bytes(file_)).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(small.bytes(), 0);
}

TEST_F(SnapshotUploadsTest, SnapshotsBeyondTheShareOfTheMemoryAreRefused) {
  SnapshotUploads small(
      clock_, absl::Seconds(10), space_.snapshot_bytes() - 1, /*share=*/{},
      [](std::int64_t, const std::string&) { return absl::InternalError("not asked for"); }, [](absl::Time) {});
  absl::StatusOr<SnapshotUploads::Transfer> transfer = small.Begin(space_, Header());
  EXPECT_EQ(transfer->Take(Bytes(file_)).code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace gdpcache::rpc
