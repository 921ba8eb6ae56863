#!/usr/bin/env bash
# Installs the build tree's executables into a folder and uses them there.
#
#   tests/apps/package_test.sh package|install BUILD_FOLDER
#
#   package   by way of a Debian package
#   install   by `cmake --install`
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
