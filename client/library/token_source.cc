#include "client/library/token_source.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace gdpcache::client {
namespace {

constexpr std::chrono::seconds kLookPeriod{1};

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile("the token file", path);
  if (!text.ok()) return text.status();
  std::string token(absl::StripAsciiWhitespace(*text));
  if (absl::Status status = CheckToken(token); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("the token file '", path, "': ", status.message()));
  }
  return token;
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const char* what, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.is_open() && !file.bad()) return text;
  return absl::InvalidArgumentError(absl::StrCat(what, " '", path, "' cannot be read: ", std::strerror(errno)));
}

absl::Status CheckToken(const std::string& token) {
  const auto is_allowed = [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); };
  if (!token.empty() && std::all_of(token.begin(), token.end(), is_allowed)) return absl::OkStatus();
  return absl::InvalidArgumentError(token.empty() ? "the token is empty" : "the token has white space or worse in it");
}

TokenSource::TokenSource(std::string token, std::string path) {
  const std::lock_guard lock(mutex_);  // what has been set up is visible to whoever takes it next
  path_ = std::move(path);
  token_ = std::move(token);
  looked_ = Clock::now();
}

TokenSource::~TokenSource() {
  const std::lock_guard lock(mutex_);  // behind whoever has used it
}

absl::StatusOr<std::unique_ptr<TokenSource>> TokenSource::FromFile(std::string path) {
  absl::StatusOr<std::string> token = ReadToken(path);
  if (!token.ok()) return token.status();
  return std::unique_ptr<TokenSource>(new TokenSource(*std::move(token), std::move(path)));
}

std::string TokenSource::Token() {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (!path_.empty() && now - looked_ >= kLookPeriod) {
    looked_ = now;
    if (absl::StatusOr<std::string> token = ReadToken(path_); token.ok()) token_ = *std::move(token);
  }
  return token_;
}

grpc::Status TokenSource::GetMetadata(grpc::string_ref /*service*/, grpc::string_ref /*method*/,
                                      const grpc::AuthContext& /*channel*/,
                                      std::multimap<std::string, std::string>* metadata) {
  metadata->emplace("authorization", absl::StrCat("Bearer ", Token()));
  return grpc::Status::OK;
}

}  // namespace gdpcache::client
