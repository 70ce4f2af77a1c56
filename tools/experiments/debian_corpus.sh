#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A corpus of English prose and manuals from packages of Debian 12 main, for runs that need more text than the bundled
# novels. Downloads with `apt-get download`, unpacks, strips markup, drops repeated paragraphs.
#
#   tools/experiments/debian_corpus.sh DIR [--add FILE]...
#
# Writes DIR/{train.jsonl, validation.jsonl, texts.tsv, MANIFEST.tsv}. MANIFEST.tsv: package, version, sha256 of the
# .deb, its licence file (kept as DIR/licences/PACKAGE). The list of packages and paths is debian_corpus.txt. The text
# is under the licences of the packages; it is not part of this repository.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 1 ] || { sed -n '3,12p' "$0"; exit 2; }
out=$1
shift
mkdir -p "$out/deb" "$out/unpacked" "$out/licences"
out=$(cd "$out" && pwd)
packages=$(sed 's/#.*//' "$here/debian_corpus.txt" | awk 'NF {print $1}')

printf 'package\tversion\tsha256\tlicence\n' >"$out/MANIFEST.tsv"
for package in $packages; do
  deb=$(find "$out/deb" -name "${package}_*.deb" | sort | tail -1)
  if [ -z "$deb" ]; then
    (cd "$out/deb" && apt-get download -qq "$package")
    deb=$(find "$out/deb" -name "${package}_*.deb" | sort | tail -1)
  fi
  if [ ! -d "$out/unpacked/$package" ]; then
    dpkg-deb -x "$deb" "$out/unpacked/$package.part"
    mv "$out/unpacked/$package.part" "$out/unpacked/$package"
  fi
  # The licence may be a link to that of a package it was built with.
  copyright=$out/unpacked/$package/usr/share/doc/$package/copyright
  licence=licences/$package
  if [ -f "$copyright" ]; then cp -L "$copyright" "$out/$licence"; else licence="none in the package"; fi
  printf '%s\t%s\t%s\t%s\n' "$package" "$(dpkg-deb -f "$deb" Version)" "$(sha256sum "$deb" | cut -d' ' -f1)" \
    "$licence" >>"$out/MANIFEST.tsv"
done

python3 "$here/plain_text.py" "$here/debian_corpus.txt" "$out/unpacked" "$out" "$@"
