#!/usr/bin/env bash
# Tests the completion scripts of the executables in bash (and in zsh and fish, if installed), and that man shows their
# manual pages without warnings.
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

# answers_bash PROGRAM LINE: prints the completions in a separate bash, as readline would request them, one per line.
answers_bash() {
  # shellcheck disable=SC2016  # expanded in the other bash
  bash --norc -c 'compopt() { :; }
    source "$1"
    COMP_WORDBREAKS=$'"'"' \t\n"><=;|&(:'"'"' COMP_LINE="$3" COMP_POINT="${#3}"
    "_${2//-/_}"
    printf "%s\n" "${COMPREPLY[@]}"' - "$work/$1.bash" "$1" "$2" | LC_ALL=C sort
}

# answers_fish PROGRAM LINE: prints the completions in fish, without descriptions.
answers_fish() {
  # shellcheck disable=SC2016
  fish --no-config -c 'source $argv[1]; complete -C $argv[2]' "$work/$1.fish" "$2" | cut -f 1 | LC_ALL=C sort
}

# expect SHELL PROGRAM LINE ANSWER...: checks that these are the completions of the line up to the cursor.
expect() {
  local shell="$1" program="$2" line="$3" found
  shift 3
  found="$("answers_$shell" "$program" "$line" | paste -sd ' ')"
  [[ "$found" == "$*" ]] || fail "$shell: '$line': expected '$*', got '$found'"
}

for path in "$apps"/te-*; do
  [[ -x $path && -f $path ]] || continue
  program="$(basename "$path")"
  [[ "$("$path" --version)" == "$program "[0-9]*"(commit "*")" ]] || fail "$program --version"
  for shell in bash zsh fish; do "$path" --completion $shell >"$program.$shell"; done
  bash -n "$program.bash" || fail "$program.bash"
  "$path" --man >"$program.1"
  for section in NAME SYNOPSIS OPTIONS 'SEE ALSO'; do
    grep -q "^\.SH $section\$" "$program.1" || fail "$program.1 has no section $section"
  done
  if command -v man >/dev/null && command -v groff >/dev/null; then
    warnings="$(LC_ALL=C MANROFFSEQ='' MANWIDTH=80 man --warnings -E UTF-8 -l -Tutf8 -Z "$program.1" 2>&1 >/dev/null || true)"
    [[ -z "$warnings" ]] || fail "man $program: $warnings"
  fi
done
[[ -s te-train.bash && -s te-data.bash && -s te-experiment.bash ]] || fail "executables are missing in $apps"

expect bash te-train 'te-train --print-' --print-config --print-schedule
expect bash te-train 'te-train --set precision.fp8_reci' precision.fp8_recipe=
expect bash te-train 'te-train --set precision.fp8=' e4m3 hybrid off
expect bash te-train 'te-train --dry-run --set precision.fp8=hy' hybrid
expect bash te-train 'te-train --set=logging.jsonl=' false true
expect bash te-train 'te-train --config preset:llama3.2' llama3.2_1b llama3.2_3b
expect bash te-train 'te-train --config ' checkpoints/ preset:{gpt2,gpt2_large,gpt2_medium,gpt2_xl,llama2_13b,llama2_70b,llama2_7b} \
  preset:{llama3.1_70b,llama3.1_8b,llama3.2_1b,llama3.2_3b,llama3_70b,llama3_8b,mistral_7b,tinyllama} run.yaml
expect bash te-train 'te-train --ranks ' ''
expect bash te-data 'te-data ver' verify
expect bash te-data 'te-data tokenize --split-by b' blank-line
expect bash te-data 'te-data inspect no' notes.txt
expect bash te-convert 'te-convert export run --dtype ' auto bf16 fp32
expect bash te-convert 'te-convert import run --out ch' checkpoints
expect bash te-experiment 'te-experiment ru' run.yaml
expect bash te-experiment 'te-experiment --dr' --dry-run

if command -v fish >/dev/null; then
  for file in *.fish; do fish -n "$file" || fail "$file"; done
  expect fish te-train 'te-train --print-' --print-config --print-schedule
  expect fish te-train 'te-train --set precision.fp8=' precision.fp8={e4m3,hybrid,off}
  expect fish te-train 'te-train --config preset:llama3.2' preset:llama3.2_1b preset:llama3.2_3b
  expect fish te-data 'te-data ver' verify
  expect fish te-data 'te-data tokenize --split-by b' blank-line
else
  echo "fish is not installed: its scripts were not tested"
fi
if command -v zsh >/dev/null; then
  for file in *.zsh; do zsh -n "$file" || fail "$file"; done
else
  echo "zsh is not installed: its scripts were not tested"
fi
[[ $failures -eq 0 ]] || exit 1
echo "completions and manual pages are correct"
