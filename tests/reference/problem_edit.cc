#include "tests/reference/problem_edit.h"

#include <cstddef>

namespace gdpcache::testing {

HostTensor Rows(const HostTensor& tensor, std::int64_t first, std::int64_t count) {
  if (!tensor.present()) return {};
  HostTensor rows{tensor.dtype, tensor.shape, {}};
  rows.shape[0] = 1;
  const std::int64_t row_bytes = rows.elements() * ByteSize(tensor.dtype);
  rows.shape[0] = count;
  rows.bytes.assign(tensor.bytes.begin() + static_cast<std::ptrdiff_t>(first * row_bytes),
                    tensor.bytes.begin() + static_cast<std::ptrdiff_t>((first + count) * row_bytes));
  return rows;
}

HostTensor Concatenate(const HostTensor& first, const HostTensor& second) {
  if (!first.present()) return second;
  HostTensor all = first;
  all.shape[0] += second.shape[0];
  all.bytes.insert(all.bytes.end(), second.bytes.begin(), second.bytes.end());
  return all;
}

Problem OneSequence(const Problem& problem, std::int64_t n) {
  const auto i = static_cast<std::size_t>(n);
  return PartOfSequence(problem, n, 0, problem.cu_seqlens[i + 1] - problem.cu_seqlens[i]);
}

Problem PartOfSequence(const Problem& problem, std::int64_t n, std::int64_t first, std::int64_t count) {
  const auto i = static_cast<std::size_t>(n);
  const std::int64_t row = problem.cu_seqlens[i] + first;
  Problem part = problem;
  part.cu_seqlens = {0, count};
  part.k = Rows(problem.k, row, count);
  part.w = Rows(problem.w, row, count);
  part.u = Rows(problem.u, row, count);
  part.g = Rows(problem.g, row, count);
  part.initial_state = Rows(problem.initial_state, n, 1);
  if (!problem.state_indices.empty()) part.state_indices = {problem.state_indices[i]};
  return part;
}

}  // namespace gdpcache::testing
