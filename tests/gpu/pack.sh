#!/bin/sh
# Packs the GPU tests, the benchmarks, the server and its command with the shared libraries they need, for a GPU host
# without packages. The host needs an NVIDIA driver and a C library at least as new as this machine's.
#
#   tests/gpu/pack.sh BUILD_DIRECTORY OUTPUT_DIRECTORY
#
# Then copy OUTPUT_DIRECTORY to the GPU host and run its run.sh.
set -eu
if [ $# -ne 2 ]; then
  sed -n '2,7p' "$0" >&2
  exit 2
fi
build=$1
output=$2
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
du -sh "$output"
