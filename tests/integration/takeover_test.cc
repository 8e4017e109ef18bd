// One server after another: what a stop under load does to clients and to snapshots, and what the next server finds.

#include <signal.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/prefill_load.h"
#include "tests/integration/snapshot_support.h"
#include "tests/support/eventually.h"
#include "tests/support/file_content.h"
#include "tests/support/server_process.h"
#include "tests/support/temporary_directory.h"

namespace gdpcache::test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// Some milliseconds of work, and more than a message's worth as a stream.
SamePrefill LargePrefill() { return SamePrefill(64, 600); }

class TakeoverTest : public ::testing::Test {
 protected:
  std::string Directory() const { return directory_.path() + "/snapshots"; }
  std::string DirectoryFlag() const { return "--snapshot-directory=" + Directory(); }

  /// What a server says that is to use the directory, too.
  ProgramResult RunSecond() const {
    return RunProgram(ServerProgram(),
                      {"--backend=cpu", "--listen=", "--unix=" + directory_.path() + "/second", DirectoryFlag()});
  }

  TemporaryDirectory directory_;
};

/// Prefills that always begin at zero and so always come to the same, and now and then a snapshot of them. Until the
/// server refuses.
class Load {
 public:
  Load(const std::string& address, int number, Transport transport)
      : number_(number), transport_(transport), client_(Client::Connect(address)) {
    thread_ = std::thread([this] { Run(); });
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;
  ~Load() { Join(); }

  void Join() {
    if (thread_.joinable()) thread_.join();
  }

  int answers() const { return answers_; }
  // After Join.
  const std::string& results() const { return results_; }
  const std::vector<std::string>& kept() const { return kept_; }
  const absl::Status& end() const { return end_; }

 private:
  void Run() {
    absl::StatusOr<Session> session = client_->OpenSession("load");
    if (!session.ok()) {
      end_ = session.status();
      return;
    }
    const std::vector<std::int64_t> slots = session->AcquireSlots(1).value();
    const SamePrefill call = LargePrefill();
    while (true) {
      const absl::StatusOr<std::string> results = call.Run(*session, slots, transport_);
      end_ = results.status();
      if (!end_.ok()) return;
      if (results_.empty()) results_ = *results;
      EXPECT_TRUE(*results == results_) << "answer " << answers_ << " of client " << number_ << " differs";
      ++answers_;
      if (answers_ % 4 != 0) continue;
      const std::string key = Key(1'000 * number_ + answers_);
      const absl::StatusOr<std::vector<SnapshotOutcome>> saved = session->SaveSnapshots({{slots[0], key}});
      end_ = saved.status();
      if (!end_.ok()) return;
      EXPECT_EQ(saved->front().result, SnapshotResult::kStored) << saved->front().message;
      kept_.push_back(key);
    }
  }

  const int number_;
  const Transport transport_;
  absl::StatusOr<Client> client_;
  std::atomic<int> answers_ = 0;
  std::string results_;
  std::vector<std::string> kept_;
  absl::Status end_;
  std::thread thread_;
};

TEST_F(TakeoverTest, AStopUnderLoadAnswersNothingWronglyAndTheNextServerGoesOn) {
  auto server = std::make_unique<ServerProcess>(
      std::vector<std::string>{DirectoryFlag(), "--snapshot-write=back", "--drain-timeout=20s"});
  const std::string address = server->unix_address();
  const Client observer = Client::Connect(address).value();
  ASSERT_TRUE(observer.CreateCache(LargePrefill().Cache()).ok());
  std::vector<std::unique_ptr<Load>> loads;
  for (int number = 1; number <= 6; ++number) {
    loads.push_back(std::make_unique<Load>(number % 2 == 0 ? address : server->tcp_address(), number,
                                           number % 3 == 0 ? Transport::kUnary : Transport::kStream));
  }
  for (const auto& load : loads) ASSERT_TRUE(Eventually([&] { return load->answers() >= 8; }));
  EXPECT_THAT(RunSecond().errors, HasSubstr(Directory() + " is used by another server"));

  const absl::Time stopped = absl::Now();
  server->process().Signal(SIGTERM);
  // New work is refused, and so is the health check answered, from now on until it has gone.
  EXPECT_TRUE(Eventually([&] {
    const absl::StatusOr<ServingStatus> health = CheckHealth(address, {.connect_timeout = absl::Seconds(1)});
    return !health.ok() || *health == ServingStatus::kNotServing;
  }));
  EXPECT_EQ(observer.OpenSession("load").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server->process().Wait(), 0) << server->process().Errors();
  const absl::Duration took = absl::Now() - stopped;
  RecordProperty("drain_ms", static_cast<int>(absl::ToInt64Milliseconds(took)));
  EXPECT_LT(took, absl::Seconds(20));

  std::vector<std::string> kept;
  for (const auto& load : loads) {
    load->Join();
    EXPECT_EQ(load->end().code(), absl::StatusCode::kUnavailable) << load->end();
    EXPECT_TRUE(load->results() == loads[0]->results()) << "whoever sent it, and however";
    kept.insert(kept.end(), load->kept().begin(), load->kept().end());
  }
  ASSERT_GE(kept.size(), loads.size());

  const ServerProcess next({DirectoryFlag()});
  const Client client = Client::Connect(next.tcp_address()).value();
  ASSERT_TRUE(client.CreateCache(LargePrefill().Cache()).ok());
  Session session = client.OpenSession("load").value();
  const std::vector<std::int64_t> slots = session.AcquireSlots(1).value();
  const std::string& results = loads[0]->results();
  for (const std::string& key : kept) {
    const absl::StatusOr<std::optional<PrefixMatch>> match = client.LookupPrefix("load", {key, Key(999'999)});
    ASSERT_TRUE(match.ok() && match->has_value()) << key;
    EXPECT_EQ((*match)->snapshot.position, LargePrefill().tokens());
    ASSERT_TRUE(session.RestoreSnapshots({{key, slots}}).ok()) << key;
    const SlotContents contents = session.ReadSlots(slots).value();
    const absl::string_view state(reinterpret_cast<const char*>(contents.state.data()),
                                  static_cast<std::size_t>(contents.state.byte_size()));
    ASSERT_TRUE(state == absl::string_view(results).substr(results.size() - state.size())) << key;
  }
}

TEST_F(TakeoverTest, FilesOfANewerFormatAreNamedAndLeftAlone) {
  {
    ServerProcess server({DirectoryFlag()});
    SnapshotModel model(server.tcp_address());
    const std::int64_t slot = model.AcquireSlot();
    for (const int number : {1, 2}) {
      model.Fill(slot, number);
      ASSERT_EQ(model.Save(slot, Key(number)).result, SnapshotResult::kStored);
    }
    server.process().Signal(SIGTERM);
    ASSERT_EQ(server.process().Wait(), 0);
  }
  // As if a newer server had written one of them and then been replaced by this one.
  std::string newer;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(Directory())) {
    if (entry.path().extension() == ".safetensors" && newer.empty()) newer = entry.path();
  }
  const std::string content =
      absl::StrReplaceAll(FileContent(newer), {{R"("format_version":"1")", R"("format_version":"2")"}});
  std::ofstream(newer, std::ios::binary) << content;

  ServerProcess server({DirectoryFlag()});
  EXPECT_THAT(server.process().Errors(), AllOf(HasSubstr("format_version is 2; only 1 can be read"), HasSubstr(newer)));
  SnapshotModel model(server.tcp_address());
  ASSERT_EQ(model.List().size(), 1);
  const std::int64_t slot = model.AcquireSlot();
  const Snapshot other = model.List()[0];
  ASSERT_TRUE(model.Restore(other.key, {slot}).ok());
  EXPECT_TRUE(model.IsFilled(slot, static_cast<int>(other.position)));
  // The same prefix can be kept anew, beside it.
  const int lost = other.position == 1 ? 2 : 1;
  model.Fill(slot, lost);
  EXPECT_EQ(model.Save(slot, Key(lost)).result, SnapshotResult::kStored);
  EXPECT_EQ(model.client().ImportSnapshot("model", newer).status().code(), absl::StatusCode::kFailedPrecondition);
  server.process().Signal(SIGTERM);
  ASSERT_EQ(server.process().Wait(), 0);
  EXPECT_EQ(FileContent(newer), content);
}

TEST_F(TakeoverTest, ASnapshotOfTheFirstFormatIsImportedAndRestored) {
  const ServerProcess server;
  const Client client = Client::Connect(server.tcp_address()).value();
  CacheSpec spec;
  spec.name = "golden";
  spec.fingerprint = "model@1";
  spec.geometry = {.layers = 2, .slots = 1, .heads = 1, .key_dim = 8, .value_dim = 8};
  spec.geometry.num_householder = 2;
  spec.geometry.auxiliary_bytes = 3;
  ASSERT_TRUE(client.CreateCache(spec).ok());
  const absl::StatusOr<SnapshotOutcome> imported =
      client.ImportSnapshot("golden", GDPCACHE_SNAPSHOT_GOLDEN_DIRECTORY "/format_1.safetensors");
  ASSERT_TRUE(imported.ok()) << imported.status();
  Session session = client.OpenSession("golden").value();
  const std::vector<std::int64_t> slots = session.AcquireSlots(1).value();
  ASSERT_EQ(session.RestoreSnapshots({{"0123456789abcdef", slots}}).value(), std::vector<std::int64_t>{1'234});
  const SlotContents contents = session.ReadSlots(slots).value();
  for (std::size_t i = 0; i < 128; ++i) ASSERT_EQ(contents.state.As<float>()[i], static_cast<float>(i) / 4);
  for (std::size_t i = 0; i < 6; ++i) ASSERT_EQ(contents.auxiliary.data()[i], std::byte(i + 1));
  // What goes out again is the same file, byte for byte.
  const std::string exported = directory_.path() + "/exported";
  ASSERT_TRUE(client.ExportSnapshot("golden", "0123456789abcdef", exported).ok());
  EXPECT_EQ(FileContent(exported), FileContent(GDPCACHE_SNAPSHOT_GOLDEN_DIRECTORY "/format_1.safetensors"));
}

}  // namespace
}  // namespace gdpcache::test
