#!/usr/bin/env bash
# Prints exact losses and gradient norms of a matrix of small CPU runs: both families, all recipes, recomputation,
# tensor, pipeline, data, context and sequence parallelism, resuming, norm placements, experts, steps in both precisions;
# and hashes of generated logits. For changes that must not change results:
#
#   scripts/record_bits.sh build/cpu/apps > before.txt
#   ... change, build ...
#   scripts/record_bits.sh build/cpu/apps > after.txt && cmp before.txt after.txt
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[[ -d "${1:-}" ]] || refuse "usage: scripts/record_bits.sh FOLDER_OF_BINARIES"
apps="$1"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 OMP_WAIT_POLICY=passive
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
# Without transports of networks, of which "ofi" sleeps for a second at the end of each job.
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=^tcp,ofi,openib,uct,usnic

# write_config FAMILY: writes the config of a model with four layers to $work/FAMILY.yaml.
write_config() {
  local heads=4 extra=""
  if [[ $1 == llama ]]; then extra="num_query_groups: 2"; else extra="hidden_dropout: 0.1"; fi
  cat >"$work/$1.yaml" <<YAML
model: {family: $1, num_layers: 4, hidden_size: 64, ffn_hidden_size: 128, num_attention_heads: $heads, vocab_size: 250,
        seq_length: 32, $extra}
training: {micro_batch_size: 2, global_batch_size: 8, train_steps: 4, eval_interval: 0}
optimizer: {lr: 1.0e-3, warmup_steps: 1}
data: {synthetic: true}
checkpoint: {save_every: 0, save_last: false}
logging: {fp8_stats_every: 1}
YAML
}

# record NAME RANKS FAMILY OVERRIDE...: runs one config, and prints one line per step.
record() {
  local name="$1" ranks="$2" family="$3" folder launch=() override sets=()
  shift 3
  folder="$work/$name"
  for override in "$@"; do sets+=(--set "$override"); done
  if [[ $ranks -gt 1 ]]; then launch=(mpirun -n "$ranks"); fi
  "${launch[@]}" "$apps/te-train" --config "$work/$family.yaml" "${sets[@]}" --set "logging.directory=$folder" \
    >"$work/log" 2>&1 </dev/null || { cat "$work/log" >&2 && die "$name failed"; }
  python3 - "$name" "$folder/metrics.jsonl" <<'PYTHON'
import hashlib, json, sys
for line in open(sys.argv[2]):
    r = json.loads(line)
    fp8 = hashlib.sha256(json.dumps(r.get("fp8", []), sort_keys=True).encode()).hexdigest()[:16]
    if "loss" in r:
        print(sys.argv[1], r["step"], repr(r["loss"]), repr(r["grad_norm"]), repr(r.get("valid_loss")), fp8)
PYTHON
}

# record_logits NAME CHECKPOINT: prints hashes of the logits of a checkpoint in high precision and in FP8.
record_logits() {
  local fp8
  for fp8 in off hybrid; do
    "$apps/te-generate" logits --checkpoint "$2" --fp8 "$fp8" --tokens "$work/tokens.safetensors" --out "$work/logits" \
      >"$work/log" 2>&1 </dev/null || { cat "$work/log" >&2 && die "$1 failed"; }
    echo "$1 logits $fp8 $(sha256sum <"$work/logits")"
  done
}
python3 - "$work/tokens.safetensors" <<'PYTHON'
import json, struct, sys
header = json.dumps({"tokens": {"dtype": "I32", "shape": [2, 16], "data_offsets": [0, 128]}}).encode()
with open(sys.argv[1], "wb") as file:
    file.write(struct.pack("<Q", len(header)) + header + struct.pack("<32i", *(7 * i % 250 for i in range(32))))
PYTHON

recipes=(precision.fp8=off precision.fp8=hybrid "precision.fp8=hybrid precision.fp8_recipe=tensorwise"
  "precision.fp8=e4m3 precision.fp8_output_layer=true" "precision.fp8=off precision.fp8_calibrate=true" precision.dtype=fp32
  "precision.fp8=hybrid precision.first_layers_bf16=1" "precision.fp8=hybrid precision.fp8_recipe=rowwise"
  "precision.fp8=hybrid precision.fp8_recipe=blockwise"
  "precision.fp8=hybrid precision.overrides=linear_fc1:tensorwise;linear_proj:rowwise;linear_qkv,wgrad:bf16;linear_fc2,fprop:bf16"
  "precision.fp8=hybrid precision.fp8_recipe=mxfp8" "precision.fp8=hybrid precision.fp8_recipe=nvfp4")
layouts=("1" "2 parallel.tensor=2" "2 parallel.tensor=2 parallel.sequence=true parallel.tensor_overlap=2"
  "2 parallel.pipeline=2 parallel.schedule=zero_bubble" "2 parallel.pipeline=2 parallel.virtual_stages=2 parallel.schedule=interleaved" "2"
  "4 parallel.tensor=2 parallel.sequence=true parallel.pipeline=2 parallel.schedule=zero_bubble"
  "2 parallel.context=2" "2 parallel.shard=gradients")
# With FP8 weights and recomputed inputs.
variants=("1 precision.fp8_from_step=2 precision.fp8_until_step=3" "1 precision.fp8_keep_weights=none" "2 parallel.shard=parameters"
  "1 logging.fp8_statistics_every=2")
# shellcheck disable=SC2034  # used by name
llama_variants=("1 model.norm_placement=post" "1 model.norm_placement=both" "1 model.qk_norm=head")
# shellcheck disable=SC2034  # used by name
gpt_variants=("1 model.parallel_residual=true" "1 model.hidden_dropout=0.0")
for family in gpt llama; do
  write_config "$family"
  for r in "${!recipes[@]}"; do
    read -ra recipe <<<"${recipes[$r]}"
    for recompute in none selective full; do
      record "$family-$r-$recompute" 1 "$family" "${recipe[@]}" "training.recompute=$recompute"
    done
  done
  for r in 0 1 2 8 9; do
    read -ra recipe <<<"${recipes[$r]}"
    for l in "${!layouts[@]}"; do
      read -ra layout <<<"${layouts[$l]}"
      record "$family-$r-layout$l" "${layout[0]}" "$family" "${recipe[@]}" "${layout[@]:1}"
    done
    record "$family-$r-first" 1 "$family" "${recipe[@]}" checkpoint.save_every=2 "checkpoint.directory=$work/$family-$r-saved"
    record "$family-$r-resumed" 1 "$family" "${recipe[@]}" "checkpoint.resume=$work/$family-$r-saved/step_00000002"
    record_logits "$family-$r" "$work/$family-$r-saved/step_00000002"
  done
  declare -n family_variants="${family}_variants"
  all_variants=("${variants[@]}" "${family_variants[@]}")
  for v in "${!all_variants[@]}"; do
    read -ra variant <<<"${all_variants[$v]}"
    for r in 1 2 8; do
      read -ra recipe <<<"${recipes[$r]}"
      record "$family-$r-variant$v" "${variant[0]}" "$family" "${recipe[@]}" training.recompute=selective "${variant[@]:1}"
    done
  done
done
for r in 0 1 2; do
  read -ra recipe <<<"${recipes[$r]}"
  record "experts-$r" 1 llama "${recipe[@]}" model.num_moe_experts=4 model.moe_router_topk=2
done
