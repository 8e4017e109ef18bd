#!/usr/bin/env bash
# usage: run.sh [--tag NAME] [ARGUMENT...]
# Runs the image where no container engine is at hand: its entry point as its user, in namespaces of its own, on a
# read-only root with memory file systems for its volumes, without privileges, with the host's network. ARGUMENTs go to
# the server; SIGTERM and SIGINT stop it. Needs root, buildah and util-linux.
set -euo pipefail

tag=localhost/gdpcache
if [[ ${1:-} == --tag ]]; then
  tag=$2
  shift 2
fi
export STORAGE_DRIVER=${STORAGE_DRIVER:-vfs}

# shellcheck disable=SC2016 # variables of the template, not of the shell
readonly volume_paths='{{range $path, $_ := .Docker.Config.Volumes}}{{println $path}}{{end}}'
config() { buildah inspect --type image --format "$1" "$tag"; }
mapfile -t entrypoint < <(config '{{range .Docker.Config.Entrypoint}}{{println .}}{{end}}' | sed '/^$/d')
mapfile -t environment < <(config '{{range .Docker.Config.Env}}{{println .}}{{end}}' | sed '/^$/d')
mapfile -t volumes < <(config "$volume_paths" | sed '/^$/d')
user=$(config '{{.Docker.Config.User}}')

container=$(buildah from --pull-never "$tag")
# shellcheck disable=SC2317 # the trap calls it
cleanup() {
  buildah umount "$container" >/dev/null
  buildah rm "$container" >/dev/null
}
trap cleanup EXIT
root=$(buildah mount "$container")

# shellcheck disable=SC2016 # the inner shell's own variables
inside='
  set -eu
  root=$1 user=$2 volumes=$3
  shift 3
  mount --bind "$root" "$root"
  mount -o remount,bind,ro "$root"
  mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
  mount -t tmpfs -o nosuid,nodev,noexec tmpfs "$root/tmp"
  for device in null random urandom; do
    mount --bind "/dev/$device" "$root/dev/$device" 2>/dev/null || true
  done
  for volume in $volumes; do
    mount -t tmpfs -o "nosuid,nodev,noexec,mode=700,uid=${user%:*},gid=${user#*:}" tmpfs "$root$volume"
  done
  exec chroot "$root" setpriv --reuid="${user%:*}" --regid="${user#*:}" --clear-groups --no-new-privs \
    --bounding-set=-all --inh-caps=-all "$@"'
unshare --mount --pid --ipc --uts --fork --kill-child=SIGTERM \
  sh -c "$inside" sh "$root" "$user" "${volumes[*]}" /usr/bin/env -i "${environment[@]}" "${entrypoint[@]}" "$@" &
child=$!
# unshare itself takes no part in signals: its only child is the server.
trap 'pkill -TERM -P "$child" || true' TERM INT
status=0
while kill -0 "$child" 2>/dev/null; do wait "$child" && status=0 || status=$?; done
exit "$status"
