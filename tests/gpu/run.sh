#!/bin/sh
# Runs what pack.sh packed, on the GPU host, from the packed directory.
#
#   run.sh tests [GTEST_FILTER]     the kernel tests on the GPU (default: all of them)
#   run.sh sanitize                 a reduced set under compute-sanitizer's memcheck and racecheck
#   run.sh bench [ARGUMENTS]        the benchmark
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export GDPCACHE_GOLDEN_DIRECTORY="$here/golden"
case "${1:-}" in
  tests)
    "$here/gdpcache_kernel_tests" --gtest_filter="${2:-*Cuda*}"
    ;;
  sanitize)
    for tool in memcheck racecheck; do
      compute-sanitizer --tool "$tool" --error-exitcode 1 \
        "$here/gdpcache_kernel_tests" --gtest_filter='*Sanitized*Cuda*'
    done
    ;;
  bench)
    shift
    "$here/gdpcache_cuda_bench" "$@"
    ;;
  *)
    sed -n '2,6p' "$0" >&2
    exit 2
    ;;
esac
