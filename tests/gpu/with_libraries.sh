#!/bin/sh
# Starts the packed program of this script's name with the packed libraries, which nothing else should see: a Python
# interpreter of the host has libraries of its own.
here=$(cd "$(dirname "$0")/.." && pwd)
LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec "$here/$(basename "$0")" "$@"
