#!/usr/bin/env bash
# Compiles the device code of all CUDA sources for each GPU architecture, without a GPU, disassembles it with cuobjdump
# (install_deps.sh --dev; skipped if it is not installed), and prints time and size. Kernels with wgmma and TMA (src/kernels/CMakeLists.txt) are compiled for 90a only, all
# others for every architecture.
#
#   scripts/compile_all_architectures.sh [--fast] [ARCHITECTURE...]
#
#   --fast         without optimization (CUDA 12.9 or newer): for a check that all code compiles
#   ARCHITECTURE   80, 86, 89, 90a, 100a, 120a (default: all)
#
# Then everything, tests included, is built for 80 alone in build/generic, unless --fast is given.
#
# Fails if a source does not compile without warnings, if the assembly of an architecture before 9.0 synchronizes
# with dependent launches or clusters, or if wgmma or TMA instructions are in other kernels than those for 90a.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# usage: the comment at the top of this file.
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

# device_commands: prints SOURCE, "sm90a" or "generic", and nvcc with the options of the build, for each .cu of src/.
device_commands() {
  "$(python_with json)" - "$TE_ROOT/build/cuda/compile_commands.json" <<'PYTHON'
import json
import shlex
import sys

for entry in json.load(open(sys.argv[1])):
    if not entry["file"].endswith(".cu") or "/tests/" in entry["file"]:
        continue
    words = shlex.split(entry["command"])
    words = words[next(i for i, word in enumerate(words) if word.endswith("nvcc")):]
    options = [w for w in words[1:words.index("-x")] if not w.startswith(("--generate-code", "--Werror", "-MD", "-O"))]
    kind = "sm90a" if "_sm90a.dir/" in entry["command"] else "generic"
    for flag in ("-MT", "-MF"):
        if flag in options:
            at = options.index(flag)
            del options[at:at + 2]
    print(entry["file"], kind, shlex.join([words[0], *options]), sep="\t")
PYTHON
}

# compile ARCHITECTURE SOURCE COMMAND: compiles and disassembles one source; prints what is wrong.
compile() {
  local architecture="$1" source="$2" name object messages
  name="${source#"$TE_ROOT"/src/}"
  object="$work/$architecture/${name//\//_}.cubin"
  if ! messages="$(eval "$3" "$optimize" --Werror=all-warnings -arch="sm_$architecture" -cubin -x cu "$source" -o "$object" 2>&1)"; then
    printf '%s for %s: %s\n' "$name" "$architecture" "$messages"
    return 1
  fi
  [[ -z "$disassembler" ]] || "$disassembler" -sass "$object" >"$object.sass"
}

# summary FOLDER: prints the number of compiled sources and the size of their code.
summary() {
  find "$1" -name '*.cubin' -printf '%s\n' |
    c_awk '{ bytes += $1 } END { printf "%d sources, %.1f MB", NR, bytes / 1e6 }'
}

# check_assembly ARCHITECTURE: prints sources whose assembly has instructions that it must not have.
check_assembly() {
  local forbidden='HGMMA|QGMMA|UTMALDG|UTMASTG|UBLKCP' file name wrong=0
  if [[ "$1" =~ ^8 ]]; then forbidden+='|ACQBULK|PREEXIT|UCGABAR'; fi
  for file in "$work/$1"/*.sass; do
    name="$(basename "$file" .cubin.sass)"
    if ! grep -qxF "$name" "$work/sm90a.names" && grep -qE "$forbidden" "$file"; then
      printf '%s for %s: instructions of Hopper\n' "$name" "$1"
      wrong=1
    fi
  done
  return "$wrong"
}

# build_generic: builds everything without the kernels for 90a.
build_generic() {
  quietly "configuring generic" cmake --preset cuda -B build/generic -DTE_CUDA_ARCHITECTURES=80 -DTE_WERROR=ON
  build_preset generic
}

main() {
  local architectures=() architecture started failed=0
  optimize=-O3
  while [[ $# -gt 0 ]]; do
    case "$1" in
      --fast) optimize="-Ofc max" ;;
      -h | --help) usage && exit 0 ;;
      -*) refuse "unknown option $1; see --help" ;;
      *) architectures+=("$1") ;;
    esac
    shift
  done
  if [[ ${#architectures[@]} -eq 0 ]]; then architectures=(80 86 89 90a 100a 120a); fi
  cd "$TE_ROOT"
  can_build_cuda || { say "no CUDA compiler: nothing is compiled" && exit 0; }
  configure_preset cuda
  PATH="$PATH:$TE_DEPS/disassembler/bin"  # cuobjdump runs nvdisasm
  disassembler="$(command -v cuobjdump || true)"
  [[ -n "$disassembler" ]] || say "cuobjdump is not installed: nothing is disassembled; run scripts/install_deps.sh --dev"
  work="$(mktemp -d)"
  trap 'rm -rf "$work"' EXIT
  export work optimize disassembler TE_ROOT
  export -f compile
  device_commands >"$work/commands"
  awk -F '\t' '$2 == "sm90a" { print $1 }' "$work/commands" | sed "s|$TE_ROOT/src/||; s|/|_|g" >"$work/sm90a.names"
  for architecture in "${architectures[@]}"; do
    started=$EPOCHSECONDS
    mkdir "$work/$architecture"
    export architecture
    # shellcheck disable=SC2016  # expanded by the inner shell
    awk -F '\t' -v all="$([[ "$architecture" == 90a ]] && echo 1 || echo 0)" 'all == 1 || $2 == "generic" { print $1; print $3 }' \
      "$work/commands" | tr '\n' '\0' |
      xargs -0 -n 2 -P "$(cpu_count)" bash -c 'compile "$architecture" "$0" "$1"' || failed=1
    if [[ -n "$disassembler" ]]; then check_assembly "$architecture" || failed=1; fi
    say "$architecture: $(summary "$work/$architecture") in $(seconds_since "$started") s"
  done
  if [[ $optimize == -O3 ]]; then build_generic || failed=1; fi
  [[ $failed -eq 0 ]] || die "some sources do not compile for all architectures; see the lines above"
}

main "$@"
