#include "tests/reference/numbers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace gdpcache::testing {
namespace {

using kernels::DataType;

/// A 16-bit format: one sign bit, then exponent and mantissa.
struct Half {
  int exponent_bits;
  int mantissa_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int max_exponent() const { return (1 << exponent_bits) - 1; }
};

constexpr Half kBFloat16{8, 7};
constexpr Half kFloat16{5, 10};

double DecodeHalf(const Half& format, std::uint16_t bits) {
  const int exponent = (bits >> format.mantissa_bits) & format.max_exponent();
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  double magnitude = 0;
  if (exponent == format.max_exponent()) {
    magnitude = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(mantissa, 1 - format.bias() - format.mantissa_bits);
  } else {
    magnitude = std::ldexp(mantissa + (1 << format.mantissa_bits), exponent - format.bias() - format.mantissa_bits);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

std::uint16_t EncodeHalf(const Half& format, double value) {
  const unsigned sign = std::signbit(value) ? 0x8000U : 0U;
  const unsigned infinity = static_cast<unsigned>(format.max_exponent()) << format.mantissa_bits;
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | infinity | (1U << (format.mantissa_bits - 1)));
  const double magnitude = std::fabs(value);
  if (std::isinf(magnitude)) return static_cast<std::uint16_t>(sign | infinity);
  // The spacing of numbers near `magnitude`; below the smallest normal number it stays what it is there.
  const int exponent = std::max(magnitude == 0 ? -2000 : std::ilogb(magnitude), 1 - format.bias());
  const auto units = static_cast<unsigned>(std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent)));
  // Units count from the start of the binade; a carry moves into the exponent by itself.
  const unsigned bits = units + (static_cast<unsigned>(exponent + format.bias() - 1) << format.mantissa_bits);
  return static_cast<std::uint16_t>(sign | std::min(bits, infinity));
}

}  // namespace

double Decode(DataType dtype, const void* element) {
  if (dtype == DataType::kFloat32) {
    float value = 0;
    std::memcpy(&value, element, sizeof(value));
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, element, sizeof(bits));
  return DecodeHalf(dtype == DataType::kBFloat16 ? kBFloat16 : kFloat16, bits);
}

void Encode(DataType dtype, double value, void* element) {
  if (dtype == DataType::kFloat32) {
    const auto narrow = static_cast<float>(value);
    std::memcpy(element, &narrow, sizeof(narrow));
    return;
  }
  const std::uint16_t bits = EncodeHalf(dtype == DataType::kBFloat16 ? kBFloat16 : kFloat16, value);
  std::memcpy(element, &bits, sizeof(bits));
}

std::vector<double> Decode(const HostTensor& tensor) {
  const auto size = static_cast<std::size_t>(ByteSize(tensor.dtype));
  std::vector<double> values(tensor.bytes.size() / size);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = Decode(tensor.dtype, tensor.bytes.data() + i * size);
  return values;
}

HostTensor Encode(DataType dtype, std::vector<std::int64_t> shape, absl::Span<const double> values) {
  HostTensor tensor = ZeroTensor(dtype, std::move(shape));
  const auto size = static_cast<std::size_t>(ByteSize(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) Encode(dtype, values[i], tensor.bytes.data() + i * size);
  return tensor;
}

double RelativeError(absl::Span<const double> actual, absl::Span<const double> expected) {
  if (actual.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  const double error = std::sqrt(norm > 0 ? difference / norm : difference);
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

}  // namespace gdpcache::testing
