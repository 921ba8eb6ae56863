#!/usr/bin/env bash
# Installs dependencies, builds te-train, makes a text corpus, trains the same small Llama in BF16 and in FP8 (same
# initial weights and data order), and compares the two runs.
#
#   scripts/quickstart.sh [--text PATH] [--steps N] [--cpu]
#
#   --text    train on this text file, or all text files below this folder, instead of the default corpus
#   --steps   training steps of each run (default: as in configs/quickstart_*.yaml)
#   --cpu     use the CPU even if there is a GPU
#
# The default corpus is the King James Bible, 4.2 MB of English text in the public domain, from the distribution's
# package bible-kjv-text. All results are in runs/quickstart/; the script can be run again.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

run_directory=runs/quickstart
data_directory=$run_directory/data
separator='<|endoftext|>'

# usage: the comment at the top of this file.
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }

# stage TEXT: prints the heading of the next stage, with the elapsed time.
stage() { printf '\n[%s s] %s\n' "$(seconds_since "$started")" "$*"; }

# fetch_bible FOLDER: unpacks the packages of the text and of its reader to FOLDER, without installing them.
fetch_bible() {
  local folder="$1"
  mkdir -p "$folder"
  (
    cd "$folder"
    apt-get -q download bible-kjv-text bible-kjv 2>/dev/null || {
      with_root apt-get -q update
      apt-get -q download bible-kjv-text bible-kjv
    }
    for package in ./*.deb; do dpkg-deb -x "$package" .; done
  )
}

# write_bible FOLDER FILE: writes the text with one document per chapter, one verse per line, without verse numbers.
write_bible() {
  (cd "$1/usr/lib" && "$1/usr/bin/bible" -f Gen1:1-Rev22:21 </dev/null) | awk -v separator="$separator" '
    { split($1, place, ":"); sub(/^[^ ]+ +/, "") }
    NR > 1 && place[1] != chapter { print separator }
    { chapter = place[1]; print }' >"$2.partial"
  [[ $(wc -c <"$2.partial") -gt 4000000 ]] || die "the text read from bible-kjv-text is too short"
  mv "$2.partial" "$2"
}

# make_corpus: makes the default text, unless it exists.
make_corpus() {
  local text=$data_directory/bible.txt folder
  if [[ ! -f $text ]]; then
    command -v apt-get >/dev/null || die "the default corpus needs apt-get; use your own text with --text PATH"
    folder="$(mktemp -d)"
    quietly "fetching bible-kjv-text" fetch_bible "$folder"
    quietly "extracting the text" write_bible "$folder" "$text"
    rm -rf "$folder"
  fi
  say "  $text: $(wc -c <"$text") bytes, $(wc -l <"$text") lines (public domain)"
}

# tokenize INPUT: makes datasets of byte tokens, with every twentieth document for validation.
tokenize() {
  "$binaries/te-data" tokenize --force --tokenizer bytes --input "$1" --document-separator "$separator" \
    --output $data_directory/train --valid-output $data_directory/valid --valid-fraction 0.05
}

# train NAME [OPTION...]: trains one run in runs/quickstart/NAME.
train() {
  rm -rf "${run_directory:?}/$1"
  "$binaries/te-train" --config "configs/quickstart_$1.yaml" "${overrides[@]}" "${@:2}" \
    --set "logging.directory=$run_directory/$1" || die "training $1 failed; see the lines above"
}

main() {
  local text="" preset=cpu python overrides=() fp8_overrides=() started=$EPOCHSECONDS binaries
  while [[ $# -gt 0 ]]; do
    case "$1" in
      --text) needs_existing "a text file or a folder" "$@" && text="$(realpath -e "$2")" && shift ;;
      --steps) needs "a number" "$@" && overrides+=(--set "training.train_steps=$2") && shift ;;
      --cpu) overrides+=(--set training.device=cpu) && export TE_NO_CUDA=1 ;;
      -h | --help) usage && exit 0 ;;
      *) refuse "unknown option $1; see --help" ;;
    esac
    shift
  done
  cd "$TE_ROOT"

  stage "installing dependencies"
  scripts/install_deps.sh
  use_newer_tools
  python="$(python_with numpy matplotlib)" || die "no python3 with numpy and matplotlib after installing them"
  if [[ "${TE_NO_CUDA:-0}" != 1 ]] && has_gpu 8.0 && can_build_cuda; then
    preset=cuda
    if ! has_gpu 8.9; then
      say "this GPU has no FP8: the FP8 run emulates it (precision.fp8_recipe: mxfp8)"
      fp8_overrides+=(--set precision.fp8_recipe=mxfp8)
    fi
  fi
  binaries="$TE_ROOT/build/$preset/apps"

  stage "building te-train (preset $preset)"
  configure_preset "$preset"
  build_preset "$preset" executables

  stage "making the corpus"
  mkdir -p $data_directory
  if [[ -z "$text" ]]; then
    make_corpus
    text=$data_directory/bible.txt
  fi
  tokenize "$text"

  stage "training in BF16"
  train bf16
  stage "training in FP8"
  train fp8 "${fp8_overrides[@]}"

  stage "comparing the two runs"
  "$python" scripts/compare_loss.py $run_directory/bf16 $run_directory/fp8 --labels BF16 FP8 \
    --title "quickstart: a small Llama in BF16 and FP8" --output $run_directory/curves.png
  say ""
  say "For a model this small and a run this short, two BF16 seeds differ by several percent, so this gap is not conclusive."
  say "docs/tutorials/fp8-vs-bf16.md compares longer runs with several seeds; results are in docs/results/README.md."
  say "figure: $run_directory/curves.png; logs: $run_directory/{bf16,fp8}/loss.csv ($(seconds_since "$started") s in all)"
}

main "$@"
