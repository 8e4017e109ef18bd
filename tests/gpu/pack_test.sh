#!/bin/sh
# What pack.sh packs runs by itself: from another folder, in an environment with nothing in it, without the repository.
#
#   tests/gpu/pack_test.sh BUILD_DIRECTORY PYTHON
#
# Where there is no GPU, its tests are skipped.
set -eu
source=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$source/pack.sh" "$1" "$folder/packed" >/dev/null
mv "$folder/packed" "$folder/moved"
cd /
python=$2
packed_run() { env -i PATH=/usr/bin:/bin HOME="$folder" PYTHON="$python" "$folder/moved/run.sh" "$@"; }

packed_run python test_cuda.py test_cuda_client.py test_drop_in.py test_example.py test_golden.py test_run_ahead.py
packed_run drop_in cpu "$folder/drop_in.json" >"$folder/drop_in.txt"
grep -q 'ratio' "$folder/drop_in.txt"
grep -q '"shape": "1x1"' "$folder/drop_in.json"

# The soak, under a wrapper that speaks before the server does, passes no signal on, and ends with an error if the
# server does.
cat >"$folder/wrapper" <<'END'
#!/bin/sh
echo "========= WRAPPED"
"$@"
END
chmod +x "$folder/wrapper"
packed_run soak 4 --backend cpu --clients 2 --pace 0 --kill-every 2 --interval 1 --wrapper "$folder/wrapper" \
  >"$folder/soak.txt"
grep -q '"backend": "cpu"' "$folder/soak.txt"
grep -q 'without cuda_ipc: the server shares no memory of a GPU' "$folder/soak.txt"

# What is missing on the host is told.
mkdir "$folder/modules"
echo "raise ImportError('not here')" >"$folder/modules/pytest.py"
cat >"$folder/python" <<END
#!/bin/sh
PYTHONPATH="$folder/modules:\$PYTHONPATH" exec "$python" "\$@"
END
chmod +x "$folder/python"
python=$folder/python
if packed_run python >"$folder/missing.txt" 2>&1; then
  echo "pack_test.sh: tests without pytest passed" >&2
  exit 1
fi
grep -q 'lacks the module pytest' "$folder/missing.txt"
