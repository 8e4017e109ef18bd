#!/bin/sh
# Packs the GPU tests, the benchmarks, the server, its command and the Python package with the shared libraries they
# need, for a GPU host without packages. The host needs an NVIDIA driver and a C library at least as new as this
# machine's.
#
#   tests/gpu/pack.sh BUILD_DIRECTORY OUTPUT_DIRECTORY [WHEEL...]
#
# Then copy OUTPUT_DIRECTORY to the GPU host and run its run.sh.
#
# The Python tests and benchmarks run on the host's own Python, 3.10 or newer, which brings torch with CUDA (and
# fla-core for comparisons). Of numpy, grpcio, protobuf and pytest it needs what the wheels do not hold: these are
# unpacked as they are, so that nothing has to be installed there. For a host with Python 3.12, say:
#
#   pip download --only-binary :all: --python-version 3.12 --dest wheels grpcio protobuf pytest
set -eu
if [ $# -lt 2 ]; then
  sed '1d; /^set -eu/,$d' "$0" >&2
  exit 2
fi
build=$1
output=$2
shift 2
source=$(cd "$(dirname "$0")/../.." && pwd)

mkdir -p "$output/lib"
for program in tests/unit/kernels/gdpcache_kernel_tests tests/bench/gdpcache_cuda_bench \
  tests/bench/gdpcache_cuda_copies_bench tests/bench/gdpcache_cuda_general_bench tests/bench/gdpcache_service_bench \
  tests/gpu/gdpcache_cuda_ipc_test tests/integration/gdpcache_snapshot_tiers_test tests/bench/gdpcache_snapshot_bench \
  server/gdpcached client/gdpcache; do
  strip -o "$output/$(basename $program)" "$build/$program"
  # All but the C library and the loader, which must be the host's own.
  ldd "$build/$program" | awk '$3 ~ /^\// { print $3 }' |
    grep -Ev '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*)\.so' | while read -r library; do
      cp -L -u "$library" "$output/lib/"
    done
done
rm -rf "$output/golden"
mkdir "$output/golden"
cp "$source"/tests/golden/*.safetensors "$output/golden/"
cp "$source/tests/gpu/run.sh" "$output/"

# Python's part lies as in the repository.
rm -rf "${output:?}/bin" "$output/client" "$output/tests" "$output/wheels"
mkdir -p "$output/bin" "$output/client/python" "$output/tests/bench" "$output/tests/python" "$output/tests/soak"
for program in gdpcached gdpcache_cuda_bench; do
  cp "$source/tests/gpu/with_libraries.sh" "$output/bin/$program"
done
if [ -d "$build/client/python/package/gdpcache" ]; then
  cp -R "$build/client/python/package" "$source/client/python/examples" "$output/client/python/"
else
  echo "pack.sh: the build has no Python package, so there is none here" >&2
fi
cp "$source"/tests/python/*.py "$source/tests/python/pytest.ini" "$output/tests/python/"
for test in package fla_bench cuda_resources; do # of sources that stay behind
  rm "$output/tests/python/test_$test.py"
done
cp "$source"/tests/bench/*.py "$output/tests/bench/"
cp "$source"/tests/soak/*.py "$output/tests/soak/"
for wheel in "$@"; do
  python3 -m zipfile -e "$wheel" "$output/wheels"
done
du -sh "$output"
