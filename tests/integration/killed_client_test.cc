// What the death of a client in the middle of a 300 MB stream leaves behind: nothing.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/control_client.h"
#include "tests/support/eventually.h"
#include "tests/support/server_process.h"

namespace gdpcache::test {
namespace {

constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kDim = 64;

class KilledClientTest : public ::testing::Test {
 protected:
  KilledClientTest() {
    v1::CreateCacheRequest request = ControlClient::SmallCache("model", 2);
    request.mutable_geometry()->set_heads(kHeads);
    request.mutable_geometry()->set_key_dim(kDim);
    request.mutable_geometry()->set_value_dim(kDim);
    control_.CreateCache(request);
    session_ = control_.OpenSession("model");
    control_.AcquireSlots(session_, 2);
  }

  // 16 tokens onto slot 0, which must be at `position`.
  grpc::Status Prefill(std::int64_t position) {
    constexpr std::int64_t kTokens = 16;
    v1::PrefillRequest request;
    request.set_session(session_);
    for (v1::Tensor* tensor : {request.mutable_k(), request.mutable_w(), request.mutable_u()}) {
      tensor->set_dtype(v1::DATA_TYPE_BFLOAT16);
      for (const std::int64_t size : {kTokens, kHeads, kDim}) tensor->add_shape(size);
      tensor->set_inline_(std::string(static_cast<std::size_t>(kTokens * kHeads * kDim * 2), '\x3d'));
    }
    request.add_state_indices(0);
    request.add_expected_positions(position);
    return control_.Call(&v1::StateCache::Stub::Prefill, request);
  }

  // Everything of both slots.
  std::string Contents() {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::ReadSlotsRequest request;
    request.set_session(session_);
    for (const std::int64_t slot : {0, 1}) request.add_slots(slot);
    const auto stream = control_.stub().ReadSlots(&context, request);
    std::string contents;
    v1::ReadSlotsFrame frame;
    while (stream->Read(&frame)) {
      for (const std::int64_t position : frame.contents().positions()) absl::StrAppend(&contents, position, " ");
      contents += frame.data().payload();
    }
    EXPECT_TRUE(stream->Finish().ok());
    return contents;
  }

  std::int64_t ServerMemory() {
    std::int64_t total = 0;
    std::int64_t resident = 0;
    std::ifstream(absl::StrCat("/proc/", server_.process().pid(), "/statm")) >> total >> resident;
    return resident * sysconf(_SC_PAGESIZE);
  }

  ServerProcess server_;
  ControlClient control_{Connect(server_.tcp_address())};
  std::string session_;
};

TEST_F(KilledClientTest, ChangesNoByteReturnsItsMemoryAndLeavesTheSlotUsable) {
  ASSERT_TRUE(Prefill(0).ok());
  const std::string before = Contents();
  ASSERT_GT(std::count_if(before.begin(), before.end(), [](char c) { return c != 0; }), kDim * kDim);
  const std::int64_t memory = ServerMemory();
  for (const std::string& address : {server_.tcp_address(), server_.unix_address(), server_.unix_address()}) {
    Process client(GDPCACHE_ENDLESS_CLIENT, {address, session_, "0"});
    ASSERT_EQ(client.ReadLine(), "half");
    EXPECT_GT(control_.GetServerInfo().staging_used_bytes(), 0);
    client.Signal(SIGKILL);
    EXPECT_EQ(client.Wait(), -SIGKILL);
    EXPECT_TRUE(Contents() == before) << "and it waits for nobody";
    EXPECT_TRUE(Eventually([this] { return control_.GetServerInfo().staging_used_bytes() == 0; }));
  }
  EXPECT_TRUE(Prefill(16).ok());
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep what has been freed
  constexpr std::int64_t kKept = std::int64_t{100}
                                 << 20;  // staging blocks and the allocator's; the streams take 900 MB
  EXPECT_LT(ServerMemory(), memory + kKept);
#else
  static_cast<void>(memory);
#endif
}

}  // namespace
}  // namespace gdpcache::test
