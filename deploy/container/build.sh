#!/usr/bin/env bash
# Builds the image with buildah, without a container engine or a daemon, and without a registry where a root file
# system serves as the base:
#
#   deploy/container/build.sh                                from the Dockerfile's own bases
#   deploy/container/build.sh --debootstrap                  from a fresh Debian 12 made with debootstrap
#   deploy/container/build.sh --base IMAGE                   from another image, for both stages
#
# --cuda DIRECTORY builds with CUDA, with this machine's toolkit (such as /usr/local/cuda), which the base then need not
# have; --verify runs verify.py on the result; --tag NAME names it (default localhost/gdpcache); what follows -- goes to
# buildah build. Needs root, or a user that may use user namespaces.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

tag=localhost/gdpcache
base=
cuda=
debootstrap=
verify=
while [[ $# -gt 0 ]]; do
  case $1 in
    --tag) tag=$2; shift 2 ;;
    --base) base=$2; shift 2 ;;
    --cuda) cuda=$(realpath "$2"); shift 2 ;;
    --debootstrap) debootstrap=yes; shift ;;
    --verify) verify=yes; shift ;;
    --) shift; break ;;
    *) echo "build.sh: unknown argument '$1'" >&2; exit 2 ;;
  esac
done

# vfs and chroot: work anywhere, also inside a container.
export STORAGE_DRIVER=${STORAGE_DRIVER:-vfs} BUILDAH_ISOLATION=${BUILDAH_ISOLATION:-chroot}

# Debian 12 without what its image debian:12-slim leaves out, too.
make_base() { # IMAGE
  local root container
  root=$(mktemp -d)
  # shellcheck disable=SC2064 # this directory, whatever follows
  trap "rm -rf '$root'" EXIT
  debootstrap --variant=minbase bookworm "$root"
  printf 'path-exclude /usr/share/%s/*\n' doc groff info lintian linda locale man >"$root/etc/dpkg/dpkg.cfg.d/slim"
  echo 'path-include /usr/share/doc/*/copyright' >>"$root/etc/dpkg/dpkg.cfg.d/slim"
  find "$root/usr/share/doc" ! -type d ! -name copyright -delete
  rm -rf "$root"/usr/share/{groff,info,lintian,linda,locale,man}/* "$root"/var/cache/{apt,debconf}/* \
    "$root"/var/lib/apt/lists/* "$root"/var/log/*
  container=$(buildah from scratch)
  buildah add -q "$container" "$root" /
  buildah commit -q --rm "$container" "$1"
}

if [[ -n $debootstrap ]]; then
  base=localhost/debian-12-debootstrap-slim
  buildah inspect --type image "$base" >/dev/null 2>&1 || make_base "$base"
fi

arguments=(--build-arg "COMMIT=$(git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || echo unknown)")
[[ -z $base ]] || arguments+=(--build-arg "BUILD_IMAGE=$base" --build-arg "RUNTIME_IMAGE=$base")
[[ -z $cuda ]] || arguments+=(--build-arg CUDA=ON --volume "$cuda:/usr/local/cuda:ro")
buildah build --layers --format docker --tag "$tag" "${arguments[@]}" "$@" .
echo "built $tag"
[[ -z $verify ]] || deploy/container/verify.py --tag "$tag"
