#!/bin/sh
# Runs what pack.sh packed, on the GPU host, from the packed directory.
#
#   run.sh tests [GTEST_FILTER]     the kernel tests on the GPU (default: all of them)
#   run.sh sanitize                 a reduced set under compute-sanitizer's memcheck and racecheck; the latter reports
#                                   races that are none unless the build had GDPCACHE_CUDA_RACECHECK on
#   run.sh bench [ARGUMENTS]        the benchmark of the kernels
#   run.sh copies                   the benchmark of copies of states
#   run.sh general                  the benchmark of the general path
#   run.sh replay                   every recorded batch through a server on the GPU, over each transport
#   run.sh ipc                      prefills on GPU memory and events of other processes
#   run.sh snapshots                snapshots of a server on the GPU, restored from every tier, and their benchmark
#   run.sh service [ARGUMENTS]      the benchmark of the service on the GPU
#   run.sh user [ARGUMENTS]         gdpcache bench against a server on the GPU
#
# With the host's Python ($PYTHON, else python3), which needs torch with CUDA, and numpy, grpcio, protobuf and pytest
# unless wheels of them were packed:
#
#   run.sh python [ARGUMENTS]       the tests of the Python package, those of tensors on the GPU among them (pytest's
#                                   arguments, as test_cuda.py)
#   run.sh drop_in [cuda|cpu] [JSON]  Megatron-LM's function on the server, beside the Triton kernel of fla-core where
#                                   that is installed
#   run.sh fla [ARGUMENTS]          the kernels alone beside that Triton kernel, in one run; needs fla-core
#
# With the same Python, which needs no torch for it:
#
#   run.sh soak [SECONDS] [ARGUMENTS]  mixed traffic on a server on the GPU of clients that are killed, every result
#                                   compared bit for bit, half of the sessions with their tensors on the GPU; two hours
#                                   by default. A little of it with every access to the device's memory checked:
#                                   run.sh soak 120 --clients 2 --pace 0.2 --wrapper 'compute-sanitizer
#                                   --target-processes all --error-exitcode 1'
set -eu
here=$(cd "$(dirname "$0")" && pwd)
host_libraries=${LD_LIBRARY_PATH-}
export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export GDPCACHE_GOLDEN_DIRECTORY="$here/golden"

# A server on the GPU until the script ends, on loopback and on $socket.
serve() {
  socket=$(mktemp -d)/socket
  "$here/gdpcached" --backend cuda --listen 127.0.0.1:7411 --unix "$socket" >"$socket.ready" &
  trap 'kill $!' EXIT
  until grep -q ready "$socket.ready"; do sleep 0.1; done
  cat "$socket.ready"
}

# The host's Python with the packed package, for programs that need these modules; the packed libraries are for the
# packed programs alone.
with_python() { # "MODULE..." ARGUMENT...
  [ -d "$here/client/python/package" ] || {
    echo "run.sh: the build that was packed had no Python package" >&2
    exit 1
  }
  export LD_LIBRARY_PATH="$host_libraries" PYTHONDONTWRITEBYTECODE=1
  export PYTHONPATH="$here/client/python/package:$here/wheels:$here/tests/python"
  export GDPCACHED="$here/bin/gdpcached"
  python=${PYTHON:-python3}
  for module in $1; do
    "$python" -c "import $module" || {
      echo "run.sh: $python lacks the module $module; install it, or pack a wheel of it" >&2
      exit 1
    }
  done
  shift
  "$python" "$@"
}

case "${1:-}" in
  tests)
    "$here/gdpcache_kernel_tests" --gtest_filter="${2:-*Cuda*}"
    ;;
  sanitize)
    for tool in memcheck racecheck; do
      compute-sanitizer --tool "$tool" --error-exitcode 1 "$here/gdpcache_kernel_tests" --gtest_filter="$(
        printf '%s:' ExactnessTest.SingleBoundariesEqualThoseOfAll/Cuda ExactnessTest.BatchMatesChangeNoBit/Cuda \
          WideLaunchTest.PartialTilesGiveTheBitsOfFewHeads/Cuda \
          EdgeCaseTest.EveryChunkSizeMatchesFloat64/Cuda EdgeCaseTest.EveryKeyAndValueSizeMatchesFloat64/Cuda \
          ExactnessTest.LayoutChangesNoBit/Cuda MemoryTest.StateCopiesHonourHeadStridesAndFillWithZeros/Cuda \
          MemoryTest.ManyStateCopiesOfEveryFormArrive/Cuda MemoryTest.CopiesAheadAndAsideMeetTheWorkBetweenThem/Cuda
      )"
    done
    ;;
  bench)
    shift
    "$here/gdpcache_cuda_bench" "$@"
    ;;
  copies)
    "$here/gdpcache_cuda_copies_bench"
    ;;
  general)
    "$here/gdpcache_cuda_general_bench"
    ;;
  replay)
    serve
    failed=0
    for batch in "$here"/golden/*.safetensors; do
      for server in 127.0.0.1:7411 "unix:$socket"; do
        for transport in unary stream shm; do
          "$here/gdpcache" replay --check --input "$batch" --server "$server" --transport $transport \
            >"$socket.out" 2>&1 || {
            failed=$((failed + 1))
            echo "FAILED: $batch over $server as $transport"
            cat "$socket.out"
          }
        done
      done
    done
    tail -n 16 "$socket.out"
    echo "$failed replays failed"
    [ $failed -eq 0 ]
    ;;
  ipc)
    GDPCACHED_PROGRAM="$here/gdpcached" "$here/gdpcache_cuda_ipc_test"
    ;;
  snapshots)
    GDPCACHED_PROGRAM="$here/gdpcached" GDPCACHE_TEST_BACKEND=cuda "$here/gdpcache_snapshot_tiers_test"
    "$here/gdpcache_snapshot_bench" --snapshots 1000 --lookups 10
    ;;
  service)
    shift
    GDPCACHED_PROGRAM="$here/gdpcached" "$here/gdpcache_service_bench" --backend cuda "$@"
    ;;
  user)
    shift
    serve
    "$here/gdpcache" bench --server "unix:$socket" "$@"
    ;;
  python)
    shift
    cd "$here/tests/python"
    with_python "numpy google.protobuf grpc pytest" -m pytest -q -p no:cacheprovider "$@"
    ;;
  drop_in)
    shift
    with_python "numpy google.protobuf grpc" "$here/tests/bench/drop_in_bench.py" "$@"
    ;;
  fla)
    shift
    with_python "torch fla" "$here/tests/bench/fla_bench.py" --program "$here/bin/gdpcache_cuda_bench" "$@"
    ;;
  soak)
    seconds=${2:-7200}
    shift $(($# < 2 ? $# : 2))
    with_python "numpy google.protobuf grpc pytest" \
      "$here/tests/soak/soak.py" --backend cuda --seconds "$seconds" "$@"
    ;;
  *)
    sed '1d; /^set -eu/,$d' "$0" >&2
    exit 2
    ;;
esac
