#!/usr/bin/env bash
# wgmma instructions overlap with other work only if ptxas can track their registers. Otherwise it waits for each one
# (C7510 to C7518), which slows the kernel down considerably without changing results. ptxas reports this as
# information, not as a warning, so the build does not fail. This test fails instead, based on the messages that the
# build kept (cmake/keep_messages.sh).
#
#   tests/kernels/wgmma_overlaps.sh SOURCE_FOLDER OBJECT_FOLDER
#
#   SOURCE_FOLDER   folder of the kernels' sources
#   OBJECT_FOLDER   folder of the library's objects, with the same structure as the sources
set -euo pipefail

sources=$1 objects=$2

# Sources that launch such kernels directly or through a header, or that use wgmma themselves.
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
    echo "$object: the object or the compiler's messages are missing; build first" >&2
    failed=1
  elif grep -E 'C75[0-9]{2}' "$object.messages"; then
    echo "$name: ptxas serializes wgmma or waits for it" >&2
    failed=1
  else
    echo "$name: wgmma overlaps with other work"
  fi
done
exit $failed
