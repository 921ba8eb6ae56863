#!/usr/bin/env bash
# Tests te-train on another distribution as a new user would: installs a minimal system, clones the repository there,
# and runs quickstart.sh and test.sh. Needs root, network and debootstrap. The GPU is not used.
#
#   scripts/test_distribution.sh [--compile | --sanitize] [--record] NAME
#
#   NAME        debian12, debian13, debian-testing, ubuntu22.04, ubuntu24.04 or ubuntu26.04
#   --compile   only compile, without optimization, with that system's compiler and with warnings as errors
#   --sanitize  only the CPU tests with that system's sanitizers (scripts/test.sh --sanitize), with warnings as errors
#   --record    add the result to the table of docs/how-to/install.md
#
# The HEAD commit of the checkout is tested. The system is installed in a temporary folder (TMPDIR; 8 GB) and removed.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

record=docs/how-to/install.md
# shellcheck disable=SC2016  # Markdown's quotes
header='| system | compiler, CMake, Open MPI | `quickstart.sh` | `test.sh` | date, commit |'

# usage: the comment at the top of this file.
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

# suite_of NAME: prints debootstrap's name of the release.
suite_of() {
  case "$1" in
    debian12) echo bookworm ;;
    debian13) echo trixie ;;
    debian-testing) echo testing ;;
    ubuntu22.04) echo jammy ;;
    ubuntu24.04) echo noble ;;
    ubuntu26.04) echo resolute ;;
    *) refuse "unknown distribution $1; see --help" ;;
  esac
}

# in_clone COMMAND: runs a shell command in the clone in the new system.
in_clone() { in_system "$root" env TE_NO_CUDA=1 bash -c "cd /root/te-train && $1"; }

# versions: prints the system's versions of compiler, CMake and Open MPI.
versions() {
  # shellcheck disable=SC2016  # expanded in the system
  in_clone 'source scripts/lib.sh; echo "$("${CXX:-g++}" --version | sed -n "1s/ (.*) / /p"), CMake $(cmake --version |
    sed -n "1s/[^0-9]*//p"), Open MPI $(dpkg-query -W -f "\${source:Upstream-Version}" openmpi-bin)"'
}

# compile: compiles everything without optimization, with warnings as errors, and stores that in main's variables.
compile() {
  quietly "installing dependencies" in_clone scripts/install_deps.sh
  say "  $(versions)"
  # shellcheck disable=SC2016  # expanded in the system
  quietly "compiling" in_clone 'source scripts/lib.sh; cmake --preset cpu -DTE_WERROR=ON -DTE_NATIVE=OFF \
    -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 && cmake --build build/cpu -j "$(cpu_count)"'
  quickstart="not run" tests="not run; compiles without warnings"
}

# sanitize: runs the CPU tests with sanitizers, and stores that in main's variables.
sanitize() {
  quietly "installing dependencies" in_clone scripts/install_deps.sh
  say "  $(versions)"
  in_clone 'TE_WERROR=ON scripts/test.sh --sanitize --no-deps' | tee "$TE_LOGS/test_$name.log" || status=1
  quickstart="not run" tests="$(failed_tests), with sanitizers"
}

# failed_tests: prints ctest's summary, as "0 of 2000 failed".
failed_tests() { sed -nE 's/.* ([0-9]+) tests failed out of ([0-9]+).*/\1 of \2 failed/p' "$TE_LOGS/test_$name.log"; }

# commands: runs quickstart.sh and test.sh, and stores results and times in main's variables.
commands() {
  local start=$EPOCHSECONDS
  in_clone scripts/quickstart.sh || die "$name: scripts/quickstart.sh failed"
  quickstart="passed in $(seconds_since "$start") s"
  start=$EPOCHSECONDS
  in_clone scripts/test.sh | tee "$TE_LOGS/test_$name.log" || status=1
  tests="$(failed_tests) in $(seconds_since "$start") s"
}

main() {
  local name="" form=commands recorded=0 suite root quickstart="" tests="" status=0 row
  while [[ $# -gt 0 ]]; do
    case "$1" in
      --compile) form=compile ;;
      --sanitize) form=sanitize ;;
      --record) recorded=1 ;;
      -h | --help) usage && exit 0 ;;
      -*) refuse "unknown option $1; see --help" ;;
      *) name="$1" ;;
    esac
    shift
  done
  [[ -n "$name" ]] || refuse "the name of a distribution is required; see --help"
  suite="$(suite_of "$name")"
  cd "$TE_ROOT"
  mkdir -p "$TE_LOGS"
  root="$(mktemp -d)"
  # shellcheck disable=SC2064  # expand the folder now
  trap "rm -rf --one-file-system '$root'" EXIT
  make_system "$suite" "$root"
  git clone --quiet "$TE_ROOT" "$root/root/te-train"
  "$form"
  row="| $name | $(versions) | $quickstart | $tests | $(date +%F), $(git -C "$root/root/te-train" rev-parse --short HEAD) |"
  say "$row"
  if [[ $recorded -eq 1 ]]; then add_row $record "$header" "$row"; fi
  [[ $status -eq 0 ]] || die "$name: scripts/test.sh failed"
}

main "$@"
