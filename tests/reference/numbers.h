#ifndef GDPCACHE_TESTS_REFERENCE_NUMBERS_H_
#define GDPCACHE_TESTS_REFERENCE_NUMBERS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "tests/reference/problem.h"

/// Stored numbers to and from double, written apart from the backends' conversions so that each checks the other.
namespace gdpcache::testing {

/// The value of a stored element.
double Decode(kernels::DataType dtype, const void* element);

/// Stores `value` rounded to nearest, ties to even.
void Encode(kernels::DataType dtype, double value, void* element);

/// All elements of a tensor.
std::vector<double> Decode(const HostTensor& tensor);

/// A tensor of these values.
HostTensor Encode(kernels::DataType dtype, std::vector<std::int64_t> shape, absl::Span<const double> values);

/// ||actual - expected|| / ||expected||, in the Euclidean norm; the norm of the difference where expected is zero,
/// infinity where a value is not finite.
double RelativeError(absl::Span<const double> actual, absl::Span<const double> expected);

}  // namespace gdpcache::testing

#endif  // GDPCACHE_TESTS_REFERENCE_NUMBERS_H_
