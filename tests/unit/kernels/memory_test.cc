// What a backend does besides the recurrence: memory, copies of bytes and states, the search for non-finite values.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/reference/numbers.h"
#include "tests/unit/kernels/backend_test.h"
#include "tests/unit/kernels/problem_runner.h"

namespace gdpcache::testing {
namespace {

using kernels::DataType;
using kernels::MemoryKind;

class MemoryTest : public BackendTest {
 protected:
  kernels::Buffer Allocate(std::size_t size, MemoryKind kind = MemoryKind::kDevice) {
    auto buffer = backend().Allocate(size, kind);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return *std::move(buffer);
  }

  std::unique_ptr<GuardedMemory> Place(const std::vector<std::byte>& bytes, std::size_t offset = 0) {
    auto memory = std::make_unique<GuardedMemory>(backend(), stream(), bytes.size(), offset);
    memory->Upload(bytes);
    return memory;
  }

  /// `source`, [heads, 1, elements], copied into memory of another dtype.
  HostTensor Converted(const HostTensor& source, DataType dtype, std::size_t misalign = 0) {
    const kernels::RecurrenceShape shape{
        .heads = source.shape[0], .key_dim = source.shape[1], .value_dim = source.shape[2]};
    const std::int64_t head = shape.key_dim * shape.value_dim;
    HostTensor result{dtype, source.shape, {}};
    const auto from = Place(source.bytes, misalign * static_cast<std::size_t>(ByteSize(source.dtype)));
    GuardedMemory to(backend(), stream(), static_cast<std::size_t>(result.elements() * ByteSize(dtype)),
                     misalign * static_cast<std::size_t>(ByteSize(dtype)));
    EXPECT_TRUE(
        backend().CopyStates(shape, {{{to.data(), dtype, head}, {from->data(), source.dtype, head}}}, stream()).ok());
    result.bytes = to.Download();
    to.ExpectGuardsIntact();
    return result;
  }
};
GDPCACHE_INSTANTIATE_BACKEND_TESTS(MemoryTest);

TEST_P(MemoryTest, AllocationsAreAlignedAndWritable) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{65}, std::size_t{1} << 20,
                                 (std::size_t{3} << 20) + 5}) {
    for (const auto kind : {MemoryKind::kDevice, MemoryKind::kHost}) {
      const kernels::Buffer buffer = Allocate(size, kind);
      EXPECT_EQ(buffer.size(), size);
      EXPECT_EQ(buffer.kind(), kind);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0U);
      EXPECT_TRUE(backend().ZeroBytes({{buffer.data(), size}}, stream()).ok());
      EXPECT_TRUE(backend().Synchronize(stream()).ok());
    }
  }
}

TEST_P(MemoryTest, TooLargeAnAllocationIsRefusedNamingItsSize) {
  const auto refused = backend().Allocate(std::size_t{1} << 50, MemoryKind::kDevice);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), ::testing::HasSubstr("1125899906842624"));
}

TEST_P(MemoryTest, DeviceInfoIsFilledIn) {
  const kernels::DeviceInfo info = backend().device_info();
  EXPECT_EQ(info.backend, is_cpu() ? "cpu" : "cuda");
  EXPECT_FALSE(info.device.empty());
  EXPECT_GT(info.memory_bytes, std::int64_t{1} << 20);
}

TEST_P(MemoryTest, CopiedBytesArriveWhateverTheirSizesAndKinds) {
  std::mt19937 random(1);
  std::vector<std::vector<std::byte>> sources;
  for (const std::size_t size : {0, 1, 2, 3, 7, 64, 100, 4097, 300000, 5000001, 3}) {
    sources.emplace_back(size);
    for (std::byte& byte : sources.back()) byte = std::byte(random());
  }
  for (const auto kind : {MemoryKind::kDevice, MemoryKind::kHost}) {
    std::vector<kernels::Buffer> buffers;
    std::vector<std::vector<std::byte>> copies;
    std::vector<kernels::ByteCopy> in;
    std::vector<kernels::ByteCopy> out;
    for (const auto& source : sources) {
      buffers.push_back(Allocate(source.size() + 1, kind));
      copies.emplace_back(source.size());
      in.push_back({buffers.back().bytes() + 1, source.data(), source.size()});
      out.push_back({copies.back().data(), buffers.back().bytes() + 1, source.size()});
    }
    ASSERT_TRUE(backend().CopyBytes(in, stream()).ok());
    ASSERT_TRUE(backend().CopyBytes(out, stream()).ok());
    ASSERT_TRUE(backend().Synchronize(stream()).ok());
    EXPECT_TRUE(copies == sources);
  }
}

TEST_P(MemoryTest, ZeroedBytesAreZeroAndNoOthers) {
  const std::vector<std::byte> pattern(3000000, std::byte{0x5A});
  const auto memory = Place(pattern);
  ASSERT_TRUE(
      backend()
          .ZeroBytes({{memory->data() + 1, 5}, {memory->data() + 10, 0}, {memory->data() + 1000, 2500000}}, stream())
          .ok());
  std::vector<std::byte> expected = pattern;
  std::fill_n(expected.begin() + 1, 5, std::byte{0});
  std::fill_n(expected.begin() + 1000, 2500000, std::byte{0});
  EXPECT_TRUE(memory->Download() == expected);
}

TEST_P(MemoryTest, EveryHalfConvertsExactlyBothWays) {
  for (const auto dtype : {DataType::kBFloat16, DataType::kFloat16}) {
    HostTensor all{dtype, {1, 64, 1024}, {}};
    for (unsigned bits = 0; bits < 65536; ++bits) {
      all.bytes.push_back(std::byte(bits & 0xFF));
      all.bytes.push_back(std::byte(bits >> 8));
    }
    const HostTensor wide = Converted(all, DataType::kFloat32);
    const HostTensor back = Converted(wide, dtype);
    const std::vector<double> values = Decode(all);
    const std::vector<double> wide_values = Decode(wide);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool nan = std::isnan(values[i]);
      ASSERT_TRUE(nan ? std::isnan(wide_values[i]) : wide_values[i] == values[i]) << i;
      ASSERT_EQ(std::signbit(values[i]), std::signbit(wide_values[i])) << i;
      ASSERT_TRUE(nan ? std::isnan(Decode(dtype, &back.bytes[2 * i]))
                      : std::equal(&all.bytes[2 * i], &all.bytes[2 * i] + 2, &back.bytes[2 * i]))
          << i;
    }
  }
}

TEST_P(MemoryTest, FloatsRoundToTheNearestHalfTiesToEven) {
  std::mt19937 random(2);
  HostTensor floats = ZeroTensor(DataType::kFloat32, {2, 128, 1000});
  for (std::size_t i = 0; i < floats.bytes.size() / 4; ++i) {
    std::uint32_t bits = random();
    // Every third is a tie or next to one, in both formats; every fifth lies in float16's range and below it.
    if (i % 3 == 0)
      bits = (bits & (i % 2 == 0 ? 0xFFFF0000U : 0xFFFFE000U)) + (i % 2 == 0 ? 0x8000U : 0x1000U) + random() % 3 - 1;
    if (i % 5 == 0) bits = (bits & 0x87FFFFFFU) | 0x30000000U;
    std::copy_n(reinterpret_cast<const std::byte*>(&bits), 4, &floats.bytes[4 * i]);
  }
  const double special[] = {0.0,
                            -0.0,
                            65504,
                            65519.996,
                            65520,
                            65536,
                            1e30,
                            0x1p-24,
                            0x1p-25,
                            0x1.000002p-25,
                            0x1p-26,
                            0x1.8p-24,
                            0x1.ffcp-15,
                            0x1.ffep-15,
                            0x1.fffp-15,
                            3.4e38,
                            std::numeric_limits<double>::infinity(),
                            std::numeric_limits<double>::quiet_NaN()};
  std::size_t at = 0;
  for (const double value : special) {
    Encode(DataType::kFloat32, value, &floats.bytes[4 * at++]);
    Encode(DataType::kFloat32, -value, &floats.bytes[4 * at++]);
  }
  const std::vector<double> values = Decode(floats);
  for (const auto dtype : {DataType::kBFloat16, DataType::kFloat16}) {
    const HostTensor expected = Encode(dtype, floats.shape, values);
    const HostTensor actual = Converted(floats, dtype);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        ASSERT_TRUE(std::isnan(Decode(dtype, &actual.bytes[2 * i]))) << i;
      } else {
        ASSERT_TRUE(std::equal(&actual.bytes[2 * i], &actual.bytes[2 * i] + 2, &expected.bytes[2 * i]))
            << Name(dtype) << " of " << values[i];
      }
    }
  }
}

TEST_P(MemoryTest, StatesOfEveryDtypePairAndOddSizeConvert) {
  std::mt19937 random(3);
  const std::vector<DataType> dtypes = {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16};
  for (const auto from : dtypes) {
    for (const auto to : dtypes) {
      for (const std::int64_t elements : {1, 3, 17, 100}) {
        HostTensor source = ZeroTensor(from, {3, 1, elements});
        std::vector<double> values(static_cast<std::size_t>(source.elements()));
        for (double& value : values) value = static_cast<double>(random()) * 0x1p-30 - 2;
        source = Encode(from, source.shape, values);
        const HostTensor expected = Encode(to, source.shape, Decode(source));
        EXPECT_TRUE(Converted(source, to).bytes == expected.bytes);
        EXPECT_TRUE(Converted(source, to, 1).bytes == expected.bytes);
      }
    }
  }
}

TEST_P(MemoryTest, StateCopiesHonourHeadStridesAndFillWithZeros) {
  const kernels::RecurrenceShape shape{.heads = 2, .key_dim = 3, .value_dim = 5};
  std::vector<std::byte> bytes(160);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i % 100);
  const auto source = Place(bytes);  // heads 20 elements apart
  const std::vector<std::byte> pattern(136, std::byte{0x77});
  const auto copy = Place(pattern);  // heads 17 elements apart
  const auto zeroed = Place(pattern);
  ASSERT_TRUE(backend()
                  .CopyStates(shape,
                              {{{copy->data(), DataType::kFloat32, 17}, {source->data(), DataType::kFloat32, 20}},
                               {{zeroed->data(), DataType::kFloat32, 17}, {}},
                               {{source->data(), DataType::kFloat32, 20}, {source->data(), DataType::kFloat32, 20}}},
                              stream())
                  .ok());
  std::vector<std::byte> expected_copy = pattern;
  std::vector<std::byte> expected_zeroed = pattern;
  for (const std::ptrdiff_t head : {0, 1}) {
    std::copy_n(bytes.begin() + head * 80, 60, expected_copy.begin() + head * 68);
    std::fill_n(expected_zeroed.begin() + head * 68, 60, std::byte{0});
  }
  EXPECT_TRUE(copy->Download() == expected_copy);
  EXPECT_TRUE(zeroed->Download() == expected_zeroed);
  EXPECT_TRUE(source->Download() == bytes);
}

TEST_P(MemoryTest, StateCopiesOfWrongFormAreRefused) {
  const kernels::RecurrenceShape shape{.heads = 2, .key_dim = 3, .value_dim = 5};
  const auto memory = Place(std::vector<std::byte>(120));
  const kernels::StateView good{memory->data(), DataType::kFloat32, 15};
  EXPECT_EQ(backend().CopyStates(shape, {{{}, good}}, stream()).code(), absl::StatusCode::kInvalidArgument);
  const kernels::StateView overlapping{memory->data(), DataType::kFloat32, 14};
  EXPECT_EQ(backend().CopyStates(shape, {{overlapping, {}}}, stream()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(backend().CopyStates({.heads = 0, .key_dim = 3, .value_dim = 5}, {{good, {}}}, stream()).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(MemoryTest, FirstRangeWithANonFiniteValueIsFound) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto dtype : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}) {
    const auto size = static_cast<std::size_t>(ByteSize(dtype));
    const std::int64_t counts[] = {0, 5, 1000003, 64};
    std::vector<std::vector<std::byte>> clean;
    for (const std::int64_t count : counts) {
      // The largest finite value of every dtype that looks most like an infinity.
      clean.push_back(Encode(dtype, {count}, std::vector<double>(static_cast<std::size_t>(count), -65504.0)).bytes);
    }
    const auto find = [&](const std::vector<std::vector<std::byte>>& contents) {
      std::vector<std::unique_ptr<GuardedMemory>> memory;
      std::vector<kernels::FiniteCheck> checks;
      for (const auto& bytes : contents) {
        memory.push_back(Place(bytes, size));
        checks.push_back({memory.back()->data(), static_cast<std::int64_t>(bytes.size() / size), dtype});
      }
      const auto found = backend().FindNonFinite(checks, stream());
      EXPECT_TRUE(found.ok()) << found.status();
      return *found;
    };
    EXPECT_EQ(find(clean), -1);
    for (const double bad : {infinity, -infinity, nan}) {
      for (const std::size_t range : {1, 2, 3}) {
        for (const bool at_end : {false, true}) {
          auto contents = clean;
          Encode(dtype, bad, at_end ? &contents[range].back() + 1 - size : contents[range].data());
          Encode(dtype, bad, contents[3].data());  // a later one does not matter
          EXPECT_EQ(find(contents), static_cast<std::int64_t>(range));
        }
      }
    }
  }
}

}  // namespace
}  // namespace gdpcache::testing
