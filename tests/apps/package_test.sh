#!/usr/bin/env bash
# Installs the executables of a build tree to a folder and uses them there.
#
#   tests/apps/package_test.sh package|install BUILD_FOLDER
#
#   package   with a Debian package
#   install   with `cmake --install`
set -euo pipefail
scripts="$(cd "$(dirname "${BASH_SOURCE[0]}")/../../scripts" && pwd)"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
if [[ "$1" == package ]]; then
  installed="$("$scripts/package.sh" --build "$2" --output "$folder" | tee /dev/stderr | tail -n 1)"
else
  installed="$folder/installed"
  cmake --install "$2" --prefix "$installed" >"$folder/log"
fi
"$scripts/test_package.sh" --quick "$installed"
