#!/usr/bin/env bash
# Fine-tunes a small pretrained model on instructions in BF16 and in FP8, and writes its texts before and after.
#
#   scripts/finetune_example.sh --model stories260K.bin --tokenizer tok512.bin --instructions dolly.json [options]
#
#   --model         a llama2.c model (legacy FP32 .bin), such as stories260K of karpathy/tinyllamas
#   --tokenizer     its llama2.c tokenizer
#   --instructions  JSON or JSON lines with the fields instruction, output and (optionally) input, as in Dolly
#   --fields P R C  names of these fields (prompt, response, context; "-" for none); default: instruction output input
#   --steps N       training steps of each run (default: as in scripts/finetune_example.yaml)
#   --binaries DIR  folder of te-data, te-convert, te-train and te-generate (default: build/cuda/apps, else build/cpu/apps)
#   --output DIR    folder for all results (default: runs/finetune)
#   --cpu           use the CPU even if there is a GPU
#   --set KEY=VALUE override for te-train; may be repeated
#   --prepared      tokenizer, model and datasets are in DIR already; only te-train and te-generate are needed
#
# DIR receives the datasets, the imported model, a run per precision with its loss log, and the samples.
# scripts/finetune_report.py makes a page from it.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Prompts before and after training; none of them occurs literally in Dolly.
prompts=(
  "What is a good way to relax after work?"
  "Name three animals that can fly."
  "Write a short story about a girl and her dog."
  "Why is the sky blue?"
)

# usage: the comment at the top of this file.
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

# stage TEXT: prints the heading of the next stage, with the elapsed time.
stage() { printf '\n[%s s] %s\n' "$(seconds_since "$started")" "$*"; }

# prepare: makes the tokenizer, the datasets and the imported model.
prepare() {
  local python
  python="$(python_with numpy)" || die "no python3 with numpy"
  "$python" scripts/llama2c_tokenizer.py "$tokenizer" "$output/tokenizer"
  # FP8 GEMMs need dimensions that are multiples of 16; padding with zeros does not change the model's output.
  "$python" scripts/llama2c_pad.py "$model" 16 "$output/model.bin"
  "$binaries/te-convert" import "$output/model.bin" --format llama2c --out "$output/imported" --force
  local context=()
  [[ "${fields[2]}" == - ]] || context=(--context-field "${fields[2]}")
  "$binaries/te-data" instruct --force --input "$instructions" --template plain --tokenizer "$output/tokenizer" \
    --prompt-field "${fields[0]}" --response-field "${fields[1]}" "${context[@]}" --output "$output/data/train" \
    --valid-output "$output/data/valid" --valid-fraction 0.05 --seq-length 512
}

# train NAME FP8: trains one run from the imported weights.
train() {
  local config=$output/$1.yaml
  cat "$output/imported/model.yaml" scripts/finetune_example.yaml >"$config"
  rm -rf "${output:?}/$1"
  "$binaries/te-train" --config "$config" "${overrides[@]}" --set "precision.fp8=$2" --set "logging.directory=$output/$1" \
    --set "data.train=$output/data/train" --set "data.valid=$output/data/valid" \
    --set "checkpoint.init_from=$output/imported" || die "training $1 failed; see the lines above"
}

# speak NAME CHECKPOINT: writes samples and perplexity to DIR/NAME.txt and DIR/NAME_perplexity.txt.
speak() {
  local prompt name="$1" checkpoint="$2"
  for prompt in "${prompts[@]}"; do
    printf '> %s\n' "$prompt"
    "$binaries/te-generate" --checkpoint "$checkpoint" --tokenizer "$output/tokenizer" --prompt "$prompt"$'\n' \
      --max-tokens 120 --temperature 0.7 --top-p 0.9 --seed 1 --quiet "${device[@]}"
    printf '\n\n'
  done >"$output/$name.txt"
  "$binaries/te-generate" perplexity --all-tokens --checkpoint "$checkpoint" --data "$output/data/valid" "${device[@]}" \
    --max-samples "$perplexity_samples" |
    tee "$output/${name}_perplexity.txt"
}

main() {
  local model="" tokenizer="" instructions="" fields=(instruction output input) overrides=() device=()
  local prepared=0 perplexity_samples=1000
  local binaries="" output=runs/finetune started=$EPOCHSECONDS
  while [[ $# -gt 0 ]]; do
    case "$1" in
      --model) model="$(realpath -e "${2:?--model needs a file}")" && shift ;;
      --tokenizer) tokenizer="$(realpath -e "${2:?--tokenizer needs a file}")" && shift ;;
      --instructions) instructions="$(realpath -e "${2:?--instructions needs a file}")" && shift ;;
      --fields) fields=("${2:?}" "${3:?}" "${4:?--fields needs three names}") && shift 3 ;;
      --steps) overrides+=(--set "training.train_steps=${2:?--steps needs a number}") && shift ;;
      --binaries) binaries="$(realpath -e "${2:?--binaries needs a folder}")" && shift ;;
      --output) output="$(realpath -m "${2:?--output needs a folder}")" && shift ;;
      --cpu) overrides+=(--set training.device=cpu) && device=(--device cpu) && perplexity_samples=10 ;;
      --set) overrides+=(--set "${2:?--set needs KEY=VALUE}") && shift ;;
      --prepared) prepared=1 ;;
      -h | --help) usage && exit 0 ;;
      *) die "unknown option $1; see --help" ;;
    esac
    shift
  done
  [[ $prepared == 1 || -n "$model" && -n "$tokenizer" && -n "$instructions" ]] ||
    die "--model, --tokenizer and --instructions are required; see --help"
  cd "$TE_ROOT"
  if [[ -z "$binaries" ]]; then
    binaries="$TE_ROOT/build/cuda/apps"
    [[ -x "$binaries/te-train" ]] || binaries="$TE_ROOT/build/cpu/apps"
  fi
  mkdir -p "$output/data"

  if [[ $prepared == 0 ]]; then
    stage "tokenizer, model and datasets"
    prepare
  fi
  stage "before"
  speak before "$output/imported"
  stage "training in BF16"
  train bf16 off
  speak after_bf16 "$output/bf16/checkpoints"
  stage "training in FP8"
  train fp8 hybrid
  speak after_fp8 "$output/fp8/checkpoints"
  stage "done: $output/before.txt, after_bf16.txt, after_fp8.txt, {bf16,fp8}/loss.csv"
}

main "$@"
