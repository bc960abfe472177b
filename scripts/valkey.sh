#!/bin/sh
# Prints the path of a Valkey server. If none is installed, Debian's packages are downloaded and unpacked into a
# temporary folder (Debian 12 has them in its backports). Nothing is installed in the system.
set -eu

if command -v valkey-server; then exit 0; fi

folder=${TMPDIR:-/tmp}/quayside-valkey
server=$folder/root/usr/bin/valkey-server
if [ ! -x "$server" ]; then
  lists=$folder/lists
  mkdir -p "$lists/partial"
  release=$(. /etc/os-release && echo "$VERSION_CODENAME")
  keys=/usr/share/keyrings/debian-archive-keyring.gpg
  {
    echo "deb [signed-by=$keys] http://deb.debian.org/debian $release main"
    echo "deb [signed-by=$keys] http://deb.debian.org/debian $release-backports main"
  } >"$folder/sources.list"
  set -- -qq -o "Dir::Etc::SourceList=$folder/sources.list" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$lists" \
    -o APT::Sandbox::User=root
  cd "$folder"
  apt-get "$@" update >&2
  apt-get "$@" download valkey-server valkey-tools >&2
  for package in ./*.deb; do dpkg -x "$package" root; done
fi
echo "$server"
