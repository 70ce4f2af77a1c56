#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that a job needs, and nothing when they are there already.
#   tools/install_deps.sh build   what the binary needs
#   tools/install_deps.sh test    the same and the test framework
#   tools/install_deps.sh lint    the same and clang-format, clang-tidy
#   tools/install_deps.sh pages   what the binary needs and, where there is no Chromium or Chrome yet, Chromium
set -euo pipefail

build=(build-essential cmake ninja-build libfmt-dev libtomlplusplus-dev nlohmann-json3-dev libcli11-dev
  libxxhash-dev libpcre2-dev libutf8proc-dev libboost-dev libdnnl-dev)
test=(libgtest-dev libgmock-dev python3)
lint=(clang-format clang-tidy python3 git)
pages=(python3 fonts-dejavu-core)

case "${1:-}" in
  build) wanted=("${build[@]}") ;;
  test) wanted=("${build[@]}" "${test[@]}") ;;
  lint) wanted=("${build[@]}" "${test[@]}" "${lint[@]}") ;;
  pages)
    wanted=("${build[@]}" "${pages[@]}")
    browsers=$(command -v "${CHROMIUM:-chromium}" chromium-browser google-chrome google-chrome-stable || true)
    [ -n "$browsers" ] || wanted+=(chromium)
    ;;
  *)
    echo "usage: $0 build|test|lint|pages" >&2
    exit 2
    ;;
esac

if ! command -v dpkg-query >/dev/null; then
  echo "install_deps: this is not Debian or Ubuntu. Install the equivalents of these packages, then run" >&2
  echo "'cmake --preset release && cmake --build --preset release' yourself: ${wanted[*]}" >&2
  exit 1
fi

missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install_deps: these packages are missing and only root can install them: ${missing[*]}" >&2
    echo "Run as root: apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "Installing ${#missing[@]} Debian packages: ${missing[*]}"
install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The package lists of a fresh machine are empty or old, so they are fetched first; without a network the
# packages may still be in a local cache.
"${as_root[@]}" apt-get update -q >"$log" 2>&1 || { echo "install_deps: apt-get update failed, trying on:" >&2; tail -n 3 "$log" >&2; }
if ! "${install[@]}" "${missing[@]}" >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "install_deps: apt-get could not install ${missing[*]} (see above). Is the network reachable?" >&2
  exit 1
fi
