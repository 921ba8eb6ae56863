#!/usr/bin/env bash
# Formats the C++ and CUDA sources with the pinned clang-format (scripts/versions.env): other versions format
# differently.
#
#   scripts/format.sh            formats in place
#   scripts/format.sh --check    changes nothing; lists unformatted files and exits with code 1
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# find_clang_format: prints the path of the pinned clang-format: the distribution's if its version matches, else .deps'.
find_clang_format() {
  local candidate
  for candidate in clang-format "clang-format-${CLANG_FORMAT_VERSION%%.*}" "$TE_DEPS/clang-format/bin/clang-format"; do
    [[ "$("$candidate" --version 2>/dev/null)" == *" $CLANG_FORMAT_VERSION"* ]] && echo "$candidate" && return 0
  done
  return 1
}

main() {
  local tool files mode=(-i)
  case "${1:-}" in
    "") ;;
    --check) mode=(--dry-run -Werror) ;;
    *) refuse "unknown option $1; usage: scripts/format.sh [--check]" ;;
  esac
  cd "$TE_ROOT"
  tool="$(find_clang_format)" || die "clang-format $CLANG_FORMAT_VERSION not found; run scripts/install_deps.sh --dev"
  mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.h' '*.cpp' '*.cu' '*.cuh')
  "$tool" "${mode[@]}" "${files[@]}" || die "sources are not formatted; run scripts/format.sh"
  # clang-format does not reflow comments.
  if awk 'length > 120 && /^ *\/\// { print FILENAME ":" FNR ": comment exceeds 120 columns"; wide = 1 }
    END { exit !wide }' "${files[@]}" >&2; then die "shorten the comments listed above"; fi
  say "format: ${#files[@]} files"
}

main "$@"
