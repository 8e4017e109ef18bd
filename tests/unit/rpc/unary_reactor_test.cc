#include "server/rpc/unary_reactor.h"

#include <functional>
#include <latch>
#include <thread>
#include <utility>

#include "gtest/gtest.h"

namespace gdpcache::rpc {
namespace {

/// What gRPC is to a reactor.
class FakeCall final : public grpc::ServerCallbackUnary {
 public:
  explicit FakeCall(std::function<void()> on_finish) : on_finish_(std::move(on_finish)) {}

  void Bind(grpc::ServerUnaryReactor& reactor) { BindReactor(&reactor); }

  void Finish(grpc::Status status) override {
    status_ = std::move(status);
    on_finish_();
  }
  void SendInitialMetadata() override {}

  const grpc::Status& status() const { return status_; }

 private:
  grpc::internal::ServerReactor* reactor() override { return nullptr; }
  void CallOnDone() override {}

  const std::function<void()> on_finish_;
  grpc::Status status_;
};

class Reactor final : public UnaryReactor {
 public:
  Reactor(int& cancelled, int& ended, int& alive) : cancelled_(cancelled), ended_(ended), alive_(alive) { ++alive_; }
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;
  ~Reactor() override { --alive_; }

  using UnaryReactor::Answer;

 private:
  void Cancelled() override {
    const std::lock_guard lock(mutex());
    ++cancelled_;
  }
  void Ended() override { ++ended_; }

  int& cancelled_;
  int& ended_;
  int& alive_;
};

class UnaryReactorTest : public ::testing::Test {
 protected:
  ~UnaryReactorTest() override { EXPECT_EQ(alive_, 0); }

  int cancelled_ = 0;
  int ended_ = 0;
  int alive_ = 0;
};

TEST_F(UnaryReactorTest, ItGoesWhenTheCallIsDone) {
  auto* const reactor = new Reactor(cancelled_, ended_, alive_);
  FakeCall call([] {});
  call.Bind(*reactor);
  reactor->Answer(grpc::Status(grpc::StatusCode::NOT_FOUND, "no"));
  EXPECT_EQ(call.status().error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(alive_, 1);
  reactor->OnDone();
}

TEST_F(UnaryReactorTest, ACallMayBeCancelledAndDoneBelowItsAnswer) {
  auto* const reactor = new Reactor(cancelled_, ended_, alive_);
  FakeCall call([this, reactor] {
    reactor->OnCancel();
    reactor->OnDone();
    EXPECT_EQ(alive_, 1);
  });
  call.Bind(*reactor);
  reactor->Answer(grpc::Status::OK);
  EXPECT_EQ(cancelled_, 1);
}

// When OnDone has returned, gRPC frees the context, and the end of a session must not cancel it any more.
TEST_F(UnaryReactorTest, ItLetsGoOfTheCallBelowOnDoneEvenIfItOutlivesIt) {
  auto* const reactor = new Reactor(cancelled_, ended_, alive_);
  FakeCall call([this, reactor] {
    EXPECT_EQ(ended_, 0);
    reactor->OnDone();
    EXPECT_EQ(ended_, 1);
    EXPECT_EQ(alive_, 1) << "its answer has not returned";
  });
  call.Bind(*reactor);
  reactor->Answer(grpc::Status::OK);
}

TEST_F(UnaryReactorTest, ACancellationIsPassedOn) {
  auto* const reactor = new Reactor(cancelled_, ended_, alive_);
  FakeCall call([] {});
  call.Bind(*reactor);
  reactor->OnCancel();
  EXPECT_EQ(cancelled_, 1);
  reactor->Answer(grpc::Status::CANCELLED);
  reactor->OnDone();
}

TEST_F(UnaryReactorTest, ACallThatIsDoneOnAnotherThreadWaitsForItsAnswer) {
  for (int round = 0; round < 100; ++round) {
    auto* const reactor = new Reactor(cancelled_, ended_, alive_);
    std::latch answering(1);
    FakeCall call([&answering] { answering.count_down(); });
    call.Bind(*reactor);
    std::thread done([&] {
      answering.wait();
      reactor->OnDone();
    });
    reactor->Answer(grpc::Status::OK);
    done.join();
  }
}

}  // namespace
}  // namespace gdpcache::rpc
