#include "tests/support/half_sent_calls.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"

namespace gdpcache::test {
namespace {

constexpr std::size_t kFrameHeader = 9;
constexpr std::int64_t kMostInFrame = 16'384;

// Types and flags of HTTP/2's frames.
constexpr std::uint8_t kData = 0;
constexpr std::uint8_t kHeaders = 1;
constexpr std::uint8_t kResetStream = 3;
constexpr std::uint8_t kSettings = 4;
constexpr std::uint8_t kPing = 6;
constexpr std::uint8_t kGoAway = 7;
constexpr std::uint8_t kWindowUpdate = 8;
constexpr std::uint8_t kAck = 1;
constexpr std::uint8_t kEndStream = 1;
constexpr std::uint8_t kEndHeaders = 4;
constexpr std::uint16_t kInitialWindowSize = 4;

std::uint32_t Number(absl::string_view bytes) {
  std::uint32_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<unsigned char>(byte);
  return number;
}

void Append(std::uint32_t number, int bytes, std::string& to) {
  for (int n = bytes - 1; n >= 0; --n) to.push_back(static_cast<char>(number >> (8 * n)));
}

/// A header, literally; short names and values only.
void AppendHeader(absl::string_view name, absl::string_view value, std::string& block) {
  block.push_back('\0');
  for (const absl::string_view text : {name, value}) {
    block.push_back(static_cast<char>(text.size()));
    block.append(text.data(), text.size());
  }
}

}  // namespace

HalfSentCalls::HalfSentCalls(const std::string& address, Answers answers, const std::string& from)
    : descriptor_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in own = {};
  own.sin_family = AF_INET;
  EXPECT_EQ(inet_pton(AF_INET, from.c_str(), &own.sin_addr), 1);
  EXPECT_EQ(bind(descriptor_, reinterpret_cast<const sockaddr*>(&own), sizeof(own)), 0);
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  sockaddr_in peer = {};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<std::uint16_t>(port));
  peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(descriptor_, reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)), 0);
  Write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  std::string settings;
  if (answers == Answers::kRefused) {
    Append(kInitialWindowSize, 2, settings);
    Append(0, 4, settings);
  }
  WriteFrame(kSettings, 0, 0, settings);
}

HalfSentCalls::~HalfSentCalls() { close(descriptor_); }

void HalfSentCalls::Begin(absl::string_view method, std::int64_t announced, std::int64_t sent,
                          const std::vector<std::pair<std::string, std::string>>& metadata) {
  std::string block;
  AppendHeader(":method", "POST", block);
  AppendHeader(":scheme", "http", block);
  AppendHeader(":path", method, block);
  AppendHeader(":authority", "localhost", block);
  AppendHeader("te", "trailers", block);
  AppendHeader("content-type", "application/grpc", block);
  for (const auto& [name, value] : metadata) AppendHeader(name, value, block);
  WriteFrame(kHeaders, kEndHeaders, next_stream_, block);
  Call& call = calls_[next_stream_];
  call.left = sent;
  call.window = initial_window_;
  call.announcement = static_cast<std::uint32_t>(announced);
  next_stream_ += 2;
  ++begun_;
}

void HalfSentCalls::BeginWhole(absl::string_view method, const std::string& message,
                               const std::vector<std::pair<std::string, std::string>>& metadata) {
  const std::uint32_t stream = next_stream_;
  const auto size = static_cast<std::int64_t>(message.size());
  Begin(method, size, size, metadata);
  calls_[stream].whole = true;
  calls_[stream].message = message;
}

void HalfSentCalls::Send(absl::Duration idle) {
  while (connected_) {
    const bool sent = SendSome();
    const bool done = std::all_of(calls_.begin(), calls_.end(), [](const auto& entry) {
      const Call& call = entry.second;
      return call.left == 0 && (call.announced || !call.whole);
    });
    if (!Read(sent ? absl::ZeroDuration() : idle) && (done || !sent)) return;
  }
}

void HalfSentCalls::Reset() {
  constexpr std::uint32_t kCancel = 8;
  std::string payload;
  Append(kCancel, 4, payload);
  for (const auto& [stream, call] : calls_) WriteFrame(kResetStream, 0, stream, payload);
  calls_.clear();
}

std::int64_t HalfSentCalls::sent() const {
  std::int64_t sent = 0;
  for (const auto& [stream, call] : calls_) sent += call.sent;
  return sent;
}

bool HalfSentCalls::SendSome() {
  static const std::string& nothing = *new std::string(kMostInFrame, '\0');
  bool any = false;
  for (auto& [stream, call] : calls_) {
    const std::int64_t prefix = call.announced ? 0 : 5;
    const std::int64_t bytes = std::min({call.left, call.window - prefix, window_ - prefix, kMostInFrame - prefix});
    if (bytes < 0 || (call.whole && bytes < call.left) || (bytes == 0 && (call.announced || !call.whole))) continue;
    std::string payload;
    if (!call.announced) {
      payload.push_back('\0');  // not compressed
      Append(call.announcement, 4, payload);
      call.announced = true;
    }
    payload.append(call.whole ? call.message : nothing, 0, static_cast<std::size_t>(bytes));
    WriteFrame(kData, call.whole ? kEndStream : std::uint8_t{0}, stream, payload);
    call.left -= bytes;
    call.sent += bytes;
    call.window -= bytes + prefix;
    window_ -= bytes + prefix;
    any = true;
  }
  return any;
}

void HalfSentCalls::WriteFrame(std::uint8_t type, std::uint8_t flags, std::uint32_t stream, absl::string_view payload) {
  std::string frame;
  Append(static_cast<std::uint32_t>(payload.size()), 3, frame);
  frame.push_back(static_cast<char>(type));
  frame.push_back(static_cast<char>(flags));
  Append(stream, 4, frame);
  frame.append(payload.data(), payload.size());
  Write(frame);
}

void HalfSentCalls::Write(absl::string_view bytes) {
  while (connected_ && !bytes.empty()) {
    const ssize_t written = send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (written <= 0) {
      connected_ = false;
      return;
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

bool HalfSentCalls::Read(absl::Duration timeout) {
  bool any = false;
  while (connected_) {
    pollfd waiting = {descriptor_, POLLIN, 0};
    if (poll(&waiting, 1, any ? 0 : static_cast<int>(absl::ToInt64Milliseconds(timeout))) <= 0) break;
    std::array<char, 65'536> buffer;
    const ssize_t got = recv(descriptor_, buffer.data(), buffer.size(), 0);
    if (got <= 0) {
      connected_ = false;
      break;
    }
    any = true;
    unread_.append(buffer.data(), static_cast<std::size_t>(got));
    while (unread_.size() >= kFrameHeader) {
      const absl::string_view frame = unread_;
      const std::size_t size = Number(frame.substr(0, 3));
      if (frame.size() < kFrameHeader + size) break;
      TakeFrame(static_cast<std::uint8_t>(frame[3]), static_cast<std::uint8_t>(frame[4]),
                Number(frame.substr(5, 4)) & 0x7FFFFFFF, frame.substr(kFrameHeader, size));
      unread_.erase(0, kFrameHeader + size);
    }
  }
  return any;
}

void HalfSentCalls::TakeFrame(std::uint8_t type, std::uint8_t flags, std::uint32_t stream, absl::string_view payload) {
  switch (type) {
    case kData:
      if (!payload.empty()) ++answers_;
      break;
    case kHeaders:
      if ((flags & kEndStream) != 0) calls_.erase(stream);
      break;
    case kResetStream:
      calls_.erase(stream);
      break;
    case kSettings: {
      if ((flags & kAck) != 0) break;
      for (; payload.size() >= 6; payload.remove_prefix(6)) {
        if (Number(payload.substr(0, 2)) != kInitialWindowSize) continue;
        const std::int64_t size = Number(payload.substr(2, 4));
        for (auto& [id, call] : calls_) call.window += size - initial_window_;
        initial_window_ = size;
      }
      WriteFrame(kSettings, kAck, 0, "");
      break;
    }
    case kPing: {
      const std::string echo(payload);
      if ((flags & kAck) == 0) WriteFrame(kPing, kAck, 0, echo);
      break;
    }
    case kGoAway:
      break;  // calls go on
    case kWindowUpdate: {
      const std::int64_t more = Number(payload) & 0x7FFFFFFF;
      if (stream == 0) {
        window_ += more;
      } else if (const auto call = calls_.find(stream); call != calls_.end()) {
        call->second.window += more;
      }
      break;
    }
    default:
      break;
  }
}

}  // namespace gdpcache::test
