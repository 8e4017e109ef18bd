#!/usr/bin/env bash
# Builds the image with buildah, without a container engine or a daemon, and without a registry where a root file
# system serves as the base:
#
#   deploy/container/build.sh                                from the Dockerfile's own bases
#   deploy/container/build.sh --debootstrap                  from a fresh Debian 12 made with debootstrap
#   deploy/container/build.sh --base IMAGE                   from another image, for both stages
#
# --tag NAME names the result (default localhost/gdpcache); what follows -- goes to buildah build. Needs root, or a user
# that may use user namespaces.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

tag=localhost/gdpcache
base=
debootstrap=
while [[ $# -gt 0 ]]; do
  case $1 in
    --tag) tag=$2; shift 2 ;;
    --base) base=$2; shift 2 ;;
    --debootstrap) debootstrap=yes; shift ;;
    --) shift; break ;;
    *) echo "build.sh: unknown argument '$1'" >&2; exit 2 ;;
  esac
done

# vfs and chroot: work anywhere, also inside a container.
export STORAGE_DRIVER=${STORAGE_DRIVER:-vfs} BUILDAH_ISOLATION=${BUILDAH_ISOLATION:-chroot}

if [[ -n $debootstrap ]]; then
  base=localhost/debian-12-debootstrap
  if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    debootstrap --variant=minbase bookworm "$root"
    container=$(buildah from scratch)
    buildah add -q "$container" "$root" /
    buildah commit -q --rm "$container" "$base"
  fi
fi

arguments=()
[[ -z $base ]] || arguments+=(--build-arg "BUILD_IMAGE=$base" --build-arg "RUNTIME_IMAGE=$base")
buildah build --format docker --tag "$tag" "${arguments[@]}" "$@" .
echo "built $tag"
