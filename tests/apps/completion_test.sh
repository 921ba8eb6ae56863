#!/usr/bin/env bash
# Tests the completion scripts of the executables.
#
#   tests/apps/completion_test.sh FOLDER     folder of the executables
set -euo pipefail
apps="$(cd "$1" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cd "$work"
touch run.yaml notes.txt
mkdir checkpoints
failures=0

# fail TEXT...: prints and counts a failure.
fail() {
  printf 'FAILED: %s\n' "$*" >&2
  failures=$((failures + 1))
}

# answers PROGRAM LINE: prints the completions in a separate bash, as readline would request them, one per line.
answers() {
  # shellcheck disable=SC2016  # expanded in the other bash
  bash --norc -c 'compopt() { :; }
    source "$1"
    COMP_WORDBREAKS=$'"'"' \t\n"><=;|&(:'"'"' COMP_LINE="$3" COMP_POINT="${#3}"
    "_${2//-/_}"
    printf "%s\n" "${COMPREPLY[@]}"' - "$work/$1.bash" "$1" "$2" | LC_ALL=C sort
}

# expect PROGRAM LINE ANSWER...: checks that these are the completions of the line up to the cursor.
expect() {
  local program="$1" line="$2" found
  shift 2
  found="$(answers "$program" "$line" | paste -sd ' ')"
  [[ "$found" == "$*" ]] || fail "'$line': expected '$*', got '$found'"
}

for path in "$apps"/te-*; do
  [[ -x $path && -f $path ]] || continue
  program="$(basename "$path")"
  [[ "$("$path" --version)" == "$program "[0-9]*"(commit "*")" ]] || fail "$program --version"
  "$path" --completion bash >"$program.bash"
  bash -n "$program.bash" || fail "$program.bash"
done
[[ -s te-train.bash && -s te-data.bash && -s te-experiment.bash ]] || fail "executables are missing in $apps"

expect te-train 'te-train --print-' --print-config --print-schedule
expect te-train 'te-train --set precision.fp8_reci' precision.fp8_recipe=
expect te-train 'te-train --set precision.fp8=' e4m3 hybrid off
expect te-train 'te-train --dry-run --set precision.fp8=hy' hybrid
expect te-train 'te-train --set=logging.tensorboard=' false true
expect te-train 'te-train --config preset:llama3.2' llama3.2_1b llama3.2_3b
expect te-train 'te-train --config ' checkpoints/ preset:{gpt2,gpt2_large,gpt2_medium,gpt2_xl,llama2_13b,llama2_70b,llama2_7b} \
  preset:{llama3.1_70b,llama3.1_8b,llama3.2_1b,llama3.2_3b,llama3_70b,llama3_8b,mistral_7b,mixtral_8x7b,moe_40m_100m} \
  preset:{olmoe_1b_7b,qwen3_30b_a3b,tinyllama} run.yaml
expect te-train 'te-train --ranks ' ''
expect te-data 'te-data ver' verify
expect te-data 'te-data tokenize --split-by b' blank-line
expect te-data 'te-data inspect no' notes.txt
expect te-convert 'te-convert export run --dtype ' auto bf16 fp32
expect te-convert 'te-convert import run --out ch' checkpoints
expect te-experiment 'te-experiment ru' run.yaml
expect te-experiment 'te-experiment --dr' --dry-run

[[ $failures -eq 0 ]] || exit 1
echo "completions are correct"
