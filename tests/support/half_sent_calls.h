#ifndef GDPCACHE_TESTS_SUPPORT_HALF_SENT_CALLS_H_
#define GDPCACHE_TESTS_SUPPORT_HALF_SENT_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace gdpcache::test {

/// A connection to a gRPC server, in HTTP/2 without TLS and without gRPC, for calls that announce a message and send a
/// part of it. Not thread-safe.
class HalfSentCalls {
 public:
  enum class Answers { kTaken, kRefused };

  /// `address` is "127.0.0.1:PORT"; the connection comes from the loopback address `from`. Refused answers find no
  /// window: they stay with the server.
  explicit HalfSentCalls(const std::string& address, Answers answers = Answers::kTaken,
                         const std::string& from = "127.0.0.1");
  HalfSentCalls(const HalfSentCalls&) = delete;
  HalfSentCalls& operator=(const HalfSentCalls&) = delete;
  ~HalfSentCalls();

  /// Begins a call to `method` ("/package.Service/Method") whose message has `announced` bytes, of which `sent` are to
  /// be sent.
  void Begin(absl::string_view method, std::int64_t announced, std::int64_t sent,
             const std::vector<std::pair<std::string, std::string>>& metadata = {});

  /// The same with a short message that is whole, and the end behind it.
  void BeginWhole(absl::string_view method, const std::string& message = "",
                  const std::vector<std::pair<std::string, std::string>>& metadata = {});

  /// Sends what is to be sent, as the server's windows allow, and heeds what it says, until all has been sent or
  /// nothing has moved for `idle`.
  void Send(absl::Duration idle = absl::Seconds(1));

  /// Gives up those that the server has not ended.
  void Reset();

  std::size_t begun() const { return begun_; }
  /// Those that the server has not ended.
  std::size_t open() const { return connected_ ? calls_.size() : 0; }
  /// Messages that have come, where none is longer than a frame.
  std::size_t answers() const { return answers_; }
  /// Bytes of their messages that have been sent.
  std::int64_t sent() const;
  bool connected() const { return connected_; }

 private:
  struct Call {
    std::int64_t left = 0;  // to be sent
    std::int64_t sent = 0;
    std::int64_t window = 0;
    bool announced = false;
    bool whole = false;
    std::string message = {};  // of one that is whole
    std::uint32_t announcement = 0;
  };

  void WriteFrame(std::uint8_t type, std::uint8_t flags, std::uint32_t stream, absl::string_view payload);
  void Write(absl::string_view bytes);
  /// Reads what has come; false if nothing did within `timeout`.
  bool Read(absl::Duration timeout);
  void TakeFrame(std::uint8_t type, std::uint8_t flags, std::uint32_t stream, absl::string_view payload);
  bool SendSome();

  int descriptor_ = -1;
  bool connected_ = true;
  std::string unread_;
  std::uint32_t next_stream_ = 1;
  std::size_t begun_ = 0;
  std::size_t answers_ = 0;
  std::int64_t window_ = 65'535;          // of the connection
  std::int64_t initial_window_ = 65'535;  // of a call
  std::map<std::uint32_t, Call> calls_;
};

}  // namespace gdpcache::test

#endif  // GDPCACHE_TESTS_SUPPORT_HALF_SENT_CALLS_H_
