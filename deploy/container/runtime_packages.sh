#!/bin/sh
# usage: runtime_packages.sh PROGRAM...
# The distribution's packages that hold the shared libraries of the programs, one per line.
set -eu

ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u | while read -r library; do
  # Where /lib is a link to /usr/lib the package may know the file under either name.
  dpkg-query -S "$library" 2>/dev/null || dpkg-query -S "$(readlink -f "$library")" || dpkg-query -S "/usr$library"
done | cut -d: -f1 | sort -u
