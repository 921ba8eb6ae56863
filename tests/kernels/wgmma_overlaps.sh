#!/usr/bin/env bash
# wgmma instructions run beside other work only where ptxas can follow their registers. Where it cannot, it waits for
# each one (C7510 to C7518), which costs a third of a kernel's speed and changes no result; it says so as information,
# not as a warning, so that a build does not fail. This test does.
#
#   tests/kernels/wgmma_overlaps.sh NVCC SOURCE_FOLDER [INCLUDE_FOLDER...]
set -euo pipefail

nvcc=$1 root=$2
shift 2
includes=()
for folder in "$@"; do includes+=(-isystem "$folder"); done
output=$(mktemp -d)
trap 'rm -rf "$output"' EXIT

# Sources that launch such kernels, by themselves or through a header that does, or ask for wgmma themselves.
mapfile -t headers < <(grep -rl --include='*.cuh' 'launch_persistent<' "$root/src/kernels")
patterns=(-e 'launch_persistent<' -e 'hopper::wgmma_commit')
for header in "${headers[@]}"; do patterns+=(-e "#include \"${header#"$root"/src/}\""); done
mapfile -t sources < <(grep -rlF --include='*.cu' "${patterns[@]}" "$root/src/kernels")
[[ ${#sources[@]} -gt 0 ]] || { echo "no source calls launch_persistent: the pattern above is out of date" >&2; exit 1; }
failed=0
for source in "${sources[@]}"; do
  "$nvcc" -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a --expt-relaxed-constexpr --expt-extended-lambda \
    -DTE_WITH_CUDA=1 -DFMT_USE_CONSTEXPR=1 -I "$root/src" "${includes[@]}" -cubin -o "$output/kernel.cubin" "$source" \
    >"$output/log" 2>&1 || { cat "$output/log"; exit 1; }
  if grep -E 'C75[0-9]{2}' "$output/log"; then
    echo "${source#"$root"/}: wgmma is serialized or waited for" >&2
    failed=1
  else
    echo "${source#"$root"/}: wgmma overlaps"
  fi
done
exit $failed
