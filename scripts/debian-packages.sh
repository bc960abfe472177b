#!/bin/sh
# Installs those of the named Debian packages that are missing; does nothing if all are installed.
# scripts/debian-packages.sh wrk redis-server
set -eu

if ! command -v dpkg-query >/dev/null; then
  echo "debian-packages: this is not Debian; install these packages with your package manager: $*" >&2
  exit 1
fi

missing=""
for package in "$@"; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -ne 0 ]; then
  echo "debian-packages: missing:$missing. Run as root: apt-get install -y --no-install-recommends$missing" >&2
  exit 1
fi

# Serializes concurrent runs: apt fails if another apt holds its lock.
exec 9</var/lib/dpkg
flock 9
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086 # a list of names
apt-get install -y -qq --no-install-recommends $missing
