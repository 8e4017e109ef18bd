#ifndef GDPCACHE_TESTS_REFERENCE_PROBLEM_EDIT_H_
#define GDPCACHE_TESTS_REFERENCE_PROBLEM_EDIT_H_

#include <cstdint>

#include "tests/reference/problem.h"

namespace gdpcache::testing {

/// Rows [first, first + count) of a tensor's first dimension.
HostTensor Rows(const HostTensor& tensor, std::int64_t first, std::int64_t count);

/// Tensors of equal dtype and row shape, one behind the other.
HostTensor Concatenate(const HostTensor& first, const HostTensor& second);

/// The problem of sequence n alone, or of `count` of its expanded tokens from `first`, on the whole cache.
Problem OneSequence(const Problem& problem, std::int64_t n);
Problem PartOfSequence(const Problem& problem, std::int64_t n, std::int64_t first, std::int64_t count);

}  // namespace gdpcache::testing

#endif  // GDPCACHE_TESTS_REFERENCE_PROBLEM_EDIT_H_
