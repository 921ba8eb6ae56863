#!/usr/bin/env bash
# Builds the Debian package: CPU only, for any x86-64 processor, installed to /usr. The last line is the package's path.
#
#   scripts/package.sh [--build FOLDER] [--output FOLDER]
#
#   --output  folder for the package (default: build/packages)
#   --build   pack the executables of this build tree (such as build/cpu) without building the preset `package`. For
#             quick tests only: code tuned for this machine runs on the same kind of machine only
#
# scripts/test_package.sh tests a package; docs/how-to/release.md describes releases.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# usage: the comment at the top of this file.
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

main() {
  local build="" output=$TE_ROOT/build/packages
  while [[ $# -gt 0 ]]; do
    case "$1" in
      --build) needs_existing "a build folder" "$@" && build="$(realpath -e "$2")" && shift ;;
      --output) needs "a folder" "$@" && output="$(realpath -m "$2")" && shift ;;
      -h | --help) usage && exit 0 ;;
      *) refuse "unknown option $1; see --help" ;;
    esac
    shift
  done
  for tool in dpkg-deb dpkg-shlibdeps file; do
    command -v $tool >/dev/null || die "$tool is not installed; run apt-get install dpkg-dev file (or scripts/install_deps.sh --dev)"
  done
  cd "$TE_ROOT"
  if [[ -z "$build" ]]; then
    build=$TE_ROOT/build/package
    configure_preset package
    build_preset package executables
  fi
  mkdir -p "$output"
  local stage package
  stage="$(mktemp -d)"
  quietly "packing $(basename "$build")" cpack --config "$build/CPackConfig.cmake" -B "$stage"
  package="$(basename "$stage"/te-train_*.deb)"
  mv "$stage/$package" "$output"
  rm -rf "$stage"
  say "$output/$package"
}

main "$@"
