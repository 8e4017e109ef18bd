#include "server/config/byte_size.h"

#include <array>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace gdpcache::config {
namespace {

struct Unit {
  absl::string_view suffix;
  std::int64_t bytes;
};

constexpr std::array<Unit, 4> kUnits = {{
    {"TiB", std::int64_t{1} << 40},
    {"GiB", std::int64_t{1} << 30},
    {"MiB", std::int64_t{1} << 20},
    {"KiB", std::int64_t{1} << 10},
}};

}  // namespace

bool AbslParseFlag(absl::string_view text, ByteSize* size, std::string* /*error*/) {
  std::int64_t factor = 1;
  for (const Unit& unit : kUnits) {
    if (absl::ConsumeSuffix(&text, unit.suffix)) {
      factor = unit.bytes;
      break;
    }
  }
  text = absl::StripAsciiWhitespace(text);
  std::int64_t number = 0;
  if (!absl::SimpleAtoi(text, &number) || number < 0 || number > std::numeric_limits<std::int64_t>::max() / factor) {
    return false;
  }
  size->bytes = number * factor;
  return true;
}

std::string AbslUnparseFlag(const ByteSize& size) {
  for (const Unit& unit : kUnits) {
    if (size.bytes > 0 && size.bytes % unit.bytes == 0) return absl::StrCat(size.bytes / unit.bytes, unit.suffix);
  }
  return absl::StrCat(size.bytes);
}

bool AbslParseFlag(absl::string_view text, AutoByteSize* size, std::string* error) {
  size->bytes.reset();
  if (text == "auto") return true;
  ByteSize given;
  if (!AbslParseFlag(text, &given, error)) return false;
  size->bytes = given.bytes;
  return true;
}

std::string AbslUnparseFlag(const AutoByteSize& size) {
  return size.bytes.has_value() ? AbslUnparseFlag(ByteSize{*size.bytes}) : "auto";
}

}  // namespace gdpcache::config
