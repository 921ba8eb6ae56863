#!/usr/bin/env bash
# wgmma instructions run beside other work only where ptxas can follow their registers. Where it cannot, it waits for
# each one (C7510 to C7518), which costs a third of a kernel's speed and changes no result; it says so as information,
# not as a warning, so that a build does not fail. This test does, by what the build kept (cmake/keep_messages.sh).
#
#   tests/kernels/wgmma_overlaps.sh SOURCE_FOLDER OBJECT_FOLDER
#
#   SOURCE_FOLDER   of the kernels
#   OBJECT_FOLDER   of their library: objects lie there as sources do in the other
set -euo pipefail

sources=$1 objects=$2

# Sources that launch such kernels, by themselves or through a header that does, or ask for wgmma themselves.
mapfile -t headers < <(grep -rl --include='*.cuh' 'launch_persistent<' "$sources")
patterns=(-e 'launch_persistent<' -e 'hopper::wgmma_commit')
for header in "${headers[@]}"; do patterns+=(-e "#include \"kernels/${header#"$sources"/}\""); done
mapfile -t found < <(grep -rlF --include='*.cu' "${patterns[@]}" "$sources" | sort)
[[ ${#found[@]} -gt 0 ]] || { echo "no source calls launch_persistent: the pattern above is out of date" >&2; exit 1; }
failed=0
for source in "${found[@]}"; do
  name=${source#"$sources"/}
  object="$objects/$name.o"
  if [[ ! -f "$object" || ! -f "$object.messages" ]]; then
    echo "$object: not there, or not what the compiler said of it: build first" >&2
    failed=1
  elif grep -E 'C75[0-9]{2}' "$object.messages"; then
    echo "$name: wgmma is serialized or waited for" >&2
    failed=1
  else
    echo "$name: wgmma overlaps"
  fi
done
exit $failed
