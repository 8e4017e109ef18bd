// Vectors of float32, and the conversions between them and stored elements. Compiled once per SIMD target; every
// function gives the same bits on all of them.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/data_type.h"

// The include guard of a file that is compiled once per target.
#if defined(GDPCACHE_KERNELS_CPU_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GDPCACHE_KERNELS_CPU_VECTOR_INL_H_
#undef GDPCACHE_KERNELS_CPU_VECTOR_INL_H_
#else
#define GDPCACHE_KERNELS_CPU_VECTOR_INL_H_
#endif

// Loops over arrays of vectors must vanish, or the arrays live in memory instead of registers.
#ifdef __clang__
#define GDPCACHE_UNROLL _Pragma("unroll")
#else
#define GDPCACHE_UNROLL _Pragma("GCC unroll 32")
#endif

HWY_BEFORE_NAMESPACE();
namespace gdpcache::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using BitsTag = hn::RebindToUnsigned<FloatTag>;
using Floats = hn::Vec<FloatTag>;
using Bits = hn::Vec<BitsTag>;

inline constexpr std::size_t kLanes = hn::MaxLanes(FloatTag());

/// What an element of that dtype is stored as.
template <DataType kType>
using Stored = std::conditional_t<kType == DataType::kFloat32, float, std::uint16_t>;

/// a * b + c, rounded once. Targets without the instruction (before AVX2) compute it lane by lane: slow, but equal.
HWY_INLINE Floats Fma(Floats a, Floats b, Floats c) {
#if HWY_NATIVE_FMA
  return hn::MulAdd(a, b, c);
#else
  const FloatTag d;
  HWY_ALIGN float a_lanes[kLanes];
  HWY_ALIGN float b_lanes[kLanes];
  HWY_ALIGN float c_lanes[kLanes];
  hn::Store(a, d, a_lanes);
  hn::Store(b, d, b_lanes);
  hn::Store(c, d, c_lanes);
  for (std::size_t i = 0; i < kLanes; ++i) c_lanes[i] = std::fma(a_lanes[i], b_lanes[i], c_lanes[i]);
  return hn::Load(d, c_lanes);
#endif
}

/// c - a * b, rounded once.
HWY_INLINE Floats NegFma(Floats a, Floats b, Floats c) {
#if HWY_NATIVE_FMA
  return hn::NegMulAdd(a, b, c);
#else
  return Fma(hn::Neg(a), b, c);
#endif
}

/// The value of a bfloat16 in the low half of each lane.
HWY_INLINE Floats FromBFloat16(Bits half) { return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(half)); }

/// The value of a float16 in the low half of each lane, subnormals and non-finite values included.
HWY_INLINE Floats FromFloat16(Bits half) {
  const BitsTag du;
  const FloatTag d;
  const Bits exponent_mask = hn::Set(du, 0x7C00U << 13);
  const Bits magnitude = hn::ShiftLeft<13>(hn::And(half, hn::Set(du, 0x7FFFU)));
  const Bits exponent = hn::And(magnitude, exponent_mask);
  const Bits rebased = hn::Add(magnitude, hn::Set(du, (127U - 15U) << 23));
  const Bits non_finite = hn::Add(rebased, hn::Set(du, (128U - 16U) << 23));
  // A subnormal is its mantissa times 2^-24: put it behind a leading one worth 2^-14 and take that one away.
  const Bits subnormal = hn::BitCast(
      du, hn::Sub(hn::BitCast(d, hn::Add(rebased, hn::Set(du, 1U << 23))), hn::BitCast(d, hn::Set(du, 113U << 23))));
  Bits result = hn::IfThenElse(hn::Eq(exponent, exponent_mask), non_finite, rebased);
  result = hn::IfThenElse(hn::Eq(exponent, hn::Zero(du)), subnormal, result);
  return hn::BitCast(d, hn::Or(result, hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000U)))));
}

/// Rounds to the nearest bfloat16, ties to even, into the low half of each lane. NaN stays NaN.
HWY_INLINE Bits ToBFloat16(Floats value) {
  const BitsTag du;
  const Bits bits = hn::BitCast(du, value);
  const Bits odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const Bits rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFF))));
  const Bits quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), quiet, rounded);
}

/// Rounds to the nearest float16, ties to even, into the low half of each lane. Too large becomes infinity, small
/// values become subnormals, NaN stays NaN.
HWY_INLINE Bits ToFloat16(Floats value) {
  const BitsTag du;
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;  // magnitudes are below 2^31: signed comparisons, which every target has
  const Bits bits = hn::BitCast(du, value);
  const Bits magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFFU));
  const auto below = [&](std::uint32_t limit) HWY_ATTR {
    return hn::RebindMask(du, hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, static_cast<std::int32_t>(limit))));
  };
  const Bits odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1));
  const Bits normal = hn::ShiftRight<13>(
      hn::Add(hn::Sub(magnitude, hn::Set(du, (127U - 15U) << 23)), hn::Add(odd, hn::Set(du, 0xFFFU))));
  // Adding 1/2 makes the hardware round at the last place of a subnormal, 2^-24.
  const Bits half = hn::Set(du, 126U << 23);
  const Bits subnormal = hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), hn::BitCast(d, half))), half);
  const Bits non_finite =
      hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), hn::Set(du, 0x7E00U), hn::Set(du, 0x7C00U));
  Bits result = hn::IfThenElse(below(113U << 23), subnormal, normal);
  result = hn::IfThenElse(below((127U + 16U) << 23), result, non_finite);
  return hn::Or(result, hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000U)));
}

/// kLanes elements at `from`, which needs only element alignment.
template <DataType kType>
HWY_INLINE Floats LoadFloats(const Stored<kType>* from) {
  if constexpr (kType == DataType::kFloat32) {
    return hn::LoadU(FloatTag(), from);
  } else {
    const hn::Rebind<std::uint16_t, FloatTag> narrow;
    const Bits half = hn::PromoteTo(BitsTag(), hn::LoadU(narrow, from));
    return kType == DataType::kBFloat16 ? FromBFloat16(half) : FromFloat16(half);
  }
}

/// The first `count` < kLanes elements, zeros after them. Touches no byte beyond them; a masked load might.
template <DataType kType>
HWY_INLINE Floats LoadFloats(const Stored<kType>* from, std::size_t count) {
  HWY_ALIGN Stored<kType> lanes[kLanes] = {};
  for (std::size_t i = 0; i < count; ++i) lanes[i] = from[i];
  return LoadFloats<kType>(lanes);
}

/// Rounds to nearest even and stores kLanes elements.
template <DataType kType>
HWY_INLINE void StoreFloats(Floats value, Stored<kType>* to) {
  if constexpr (kType == DataType::kFloat32) {
    hn::StoreU(value, FloatTag(), to);
  } else {
    const hn::Rebind<std::uint16_t, FloatTag> narrow;
    const Bits half = kType == DataType::kBFloat16 ? ToBFloat16(value) : ToFloat16(value);
    hn::StoreU(hn::DemoteTo(narrow, hn::BitCast(hn::RebindToSigned<FloatTag>(), half)), narrow, to);
  }
}

/// The same for the first `count` < kLanes elements.
template <DataType kType>
HWY_INLINE void StoreFloats(Floats value, Stored<kType>* to, std::size_t count) {
  HWY_ALIGN Stored<kType> lanes[kLanes];
  StoreFloats<kType>(value, lanes);
  for (std::size_t i = 0; i < count; ++i) to[i] = lanes[i];
}

/// 2^x within 1e-7, exactly 1 at 0. Overflows to infinity, underflows through the subnormals to 0; NaN stays NaN.
HWY_INLINE Floats Exp2(Floats x) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const Floats clamped = hn::Min(hn::Max(x, hn::Set(d, -252.0F)), hn::Set(d, 252.0F));
  const auto whole = hn::NearestInt(clamped);
  const Floats fraction = hn::Sub(clamped, hn::ConvertTo(d, whole));  // exact, within [-1/2, 1/2]
  Floats power = hn::Set(d, 1.52973244e-05F);
  power = Fma(power, fraction, hn::Set(d, 0.000154614449F));
  power = Fma(power, fraction, hn::Set(d, 0.0013333502F));
  power = Fma(power, fraction, hn::Set(d, 0.00961805694F));
  power = Fma(power, fraction, hn::Set(d, 0.0555041097F));
  power = Fma(power, fraction, hn::Set(d, 0.240226507F));
  power = Fma(power, fraction, hn::Set(d, 0.693147182F));
  power = Fma(power, fraction, hn::Set(d, 1.0F));
  // In two steps, since one exponent field cannot hold every result's power of two.
  const auto first = hn::ShiftRight<1>(whole);
  const auto second = hn::Sub(whole, first);
  const auto bias = hn::Set(di, 127);
  const Floats first_scale = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(first, bias)));
  const Floats second_scale = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(second, bias)));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Mul(hn::Mul(power, first_scale), second_scale));
}

}  // namespace gdpcache::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
