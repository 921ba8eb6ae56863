#!/usr/bin/env bash
# Runs clang-tidy (checks: .clang-tidy) on the host sources of the preset cpu.
#
#   scripts/tidy.sh [--budget SECONDS] [FILE...]
#
# FILE...: sources to check (default: all of src/ and apps/, latest changes first). A file that passed is not checked
# again until it, a header of the project or the checks change (stamps in build/tidy, or $TE_TIDY_CACHE). With --budget
# no check starts after so many seconds; the last line counts the unchecked files.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

TE_TIDY_CACHE="${TE_TIDY_CACHE:-$TE_ROOT/build/tidy}"
# A configured build tree of the preset cpu, with one command per source and without precompiled headers, which are
# GCC's.
TE_TIDY_DATABASE="$TE_TIDY_CACHE/tree"

# common_key: prints a checksum of everything that affects the results of all files.
common_key() {
  {
    clang-tidy --version
    cat .clang-tidy
    git ls-files --cached --others --exclude-standard 'src/*.h' | LC_ALL=C sort | xargs cat
  } | sha256sum | cut -c1-16
}

# check_file FILE: runs clang-tidy, and prints its findings; fails if there are any.
check_file() {
  local stamp log
  stamp="$TE_TIDY_CACHE/$(cat "$1" <(echo "$TE_TIDY_KEY $1") | sha256sum | cut -c1-32)"
  [[ -e "$stamp" ]] && return 0
  if ((EPOCHSECONDS > TE_TIDY_DEADLINE)); then
    : >"$TE_TIDY_LEFT/$(tr / _ <<<"$1")"
    return 0
  fi
  # clang does not find GCC's OpenMP header, and pragmas need no check.
  if ! log="$(clang-tidy --quiet -p "$TE_TIDY_DATABASE" --extra-arg=-fno-openmp --extra-arg=-Wno-everything \
    --extra-arg=-include --extra-arg="$TE_ROOT/cmake/clang14.h" "$1" 2>&1)"; then
    grep -vE 'warnings? .*generated|^Suppressed|^Use -' <<<"$log" || true
    return 1
  fi
  : >"$stamp"
}

# latest_first: prints the files of standard input, sorted by their latest commit.
latest_first() {
  awk 'NR == FNR { known[$0] = 1; order[++count] = $0; next }
    known[$0] && !given[$0]++ { print }
    END { for (i = 1; i <= count; i++) if (!given[order[i]]) print order[i] }' \
    - <(git log -n 100 --format= --name-only -- src apps 2>/dev/null || true)
}

main() {
  local files=() budget=1000000 start=$EPOCHSECONDS known left
  cd "$TE_ROOT"
  while [[ $# -gt 0 ]]; do
    case "$1" in
      --budget) needs "seconds" "$@" && budget="$2" && shift ;;
      -*) refuse "unknown option $1; usage: scripts/tidy.sh [--budget SECONDS] [FILE...]" ;;
      *) files+=("$1") ;;
    esac
    shift
  done
  command -v clang-tidy >/dev/null || die "clang-tidy not found; run scripts/install_deps.sh --dev"
  mkdir -p "$TE_TIDY_CACHE"
  quietly "configuring the cpu preset" cmake --preset cpu -B "$TE_TIDY_DATABASE" -DTE_PCH=OFF -DTE_UNITY=OFF
  quietly "writing the version's header" cmake --build "$TE_TIDY_DATABASE" --target te_version_header
  if [[ ${#files[@]} -eq 0 ]]; then
    known="$(sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' "$TE_TIDY_DATABASE/compile_commands.json")"
    known="$(sed -n "s#^$TE_ROOT/\(\(src\|apps\)/.*\)#\1#p" <<<"$known" | LC_ALL=C sort -u)"
    mapfile -t files < <(latest_first <<<"$known")
  fi
  TE_TIDY_KEY="$(common_key)"
  TE_TIDY_DEADLINE=$((EPOCHSECONDS + budget))
  TE_TIDY_LEFT="$(mktemp -d)"
  export TE_ROOT TE_TIDY_KEY TE_TIDY_DEADLINE TE_TIDY_LEFT TE_TIDY_CACHE TE_TIDY_DATABASE
  export -f check_file
  # shellcheck disable=SC2016  # expanded by the inner shell
  printf '%s\n' "${files[@]}" | xargs -P "$(cpu_count)" -I{} bash -c 'check_file "$1"' _ {} ||
    die "clang-tidy found problems (above)"
  left="$(find "$TE_TIDY_LEFT" -type f | wc -l)"
  rm -rf "$TE_TIDY_LEFT"
  say "tidy: $((${#files[@]} - left)) files clean, $left not checked (time budget) ($(seconds_since "$start") s)"
}

main "$@"
