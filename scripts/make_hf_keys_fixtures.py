#!/usr/bin/env python3
"""Writes tests/fixtures/hugging_face_keys: the effect of every key of config.json in Hugging Face transformers.

For each model family that te-train imports there are folders of tiny models (config.json with every key of the family's
config class, model.safetensors). For each model, the script deletes every key, sets it to null and changes it. It does the
same with keys that the source of transformers reads from a config (config.KEY and getattr(config, "KEY")), old names of
keys, and an unknown key. AutoModelForCausalLM loads the result. cases.json lists the outcomes as [keys, values, effect]:

    "error"    transformers rejects the config
    "weights"  the weights no longer fit
    0          the logits equal those of the unchanged model
    N          the logits are entry N of logits.safetensors (entry 0: the unchanged model)

tests/convert/config_keys_test.cpp requires the same logits or an error from te-train. It does not need transformers.

    pip install torch transformers==$TRANSFORMERS_VERSION safetensors     (scripts/versions.env)
    scripts/make_hf_keys_fixtures.py [--folder FOLDER] [NAME...]
"""

import argparse
import copy
import json
import logging
import re
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "fixtures" / "hugging_face_keys"
LENGTH = 12
DELETED = "(deleted)"  # marks a key to delete instead of a new value

try:
    import torch
    import transformers
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
except ImportError as error:
    sys.exit(f"make_hf_keys_fixtures.py: error: {error}; pip install torch transformers safetensors")

LLAMA = {
    "vocab_size": 7,
    "hidden_size": 16,
    "intermediate_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
SQUARE = {key: value for key, value in LLAMA.items() if key != "head_dim"}
GPT2 = {"vocab_size": 7, "n_embd": 16, "n_layer": 3, "n_head": 4, "n_inner": 12, "n_positions": 16, "bos_token_id": 1,
        "eos_token_id": 2}  # fmt: skip
ALTERNATING = ["full_attention", "sliding_attention", "full_attention"]
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 8}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8}  # fmt: skip
ROPE = {"rope_type": "default", "rope_theta": 500.0}
OLD = [DELETED]  # a key that the class writes and older files lack
# {name: (model_type, keys that differ from the config class)}; the first of a family is also tested with foreign keys.
MODELS = {
    "llama": ("llama", LLAMA | {"rope_parameters": ROPE}),
    "llama_yarn": ("llama", LLAMA | {"rope_parameters": YARN}),
    "llama_llama3": ("llama", LLAMA | {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True}),
    "llama_old": (
        "llama",
        LLAMA | {"rope_parameters": OLD, "rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    ),
    "qwen2": ("qwen2", SQUARE | {"rope_parameters": ROPE, "layer_types": OLD}),
    "qwen2_window": (
        "qwen2",
        SQUARE
        | {"rope_parameters": ROPE, "layer_types": OLD, "use_sliding_window": True, "sliding_window": 4}
        | {"max_window_layers": 1},
    ),
    "qwen3": ("qwen3", LLAMA | {"rope_parameters": ROPE}),
    "qwen3_types": (
        "qwen3",
        LLAMA
        | {"rope_parameters": ROPE, "layer_types": ALTERNATING, "use_sliding_window": True, "sliding_window": 4},
    ),
    "mistral": ("mistral", LLAMA | {"rope_parameters": ROPE, "sliding_window": 4}),
    "mistral_types": (
        "mistral",
        LLAMA | {"rope_parameters": ROPE, "sliding_window": 4, "layer_types": ALTERNATING},
    ),
    "ministral": ("ministral", LLAMA | {"rope_parameters": ROPE, "sliding_window": 4, "layer_types": ALTERNATING}),
    "olmo2": ("olmo2", SQUARE | {"rope_parameters": ROPE}),
    "phi3": (
        "phi3",
        SQUARE | {"hidden_size": 32, "rope_parameters": ROPE | {"partial_rotary_factor": 0.5}, "sliding_window": 4},
    ),
    "gpt2": ("gpt2", GPT2),
    "gpt_neox": (
        "gpt_neox",
        {key: value for key, value in SQUARE.items() if key != "num_key_value_heads"}
        | {"hidden_size": 32, "rope_parameters": ROPE | {"partial_rotary_factor": 0.5}},
    ),
    "gpt_neox_old": (
        "gpt_neox",
        {key: value for key, value in SQUARE.items() if key != "num_key_value_heads"}
        | {"hidden_size": 32, "rope_parameters": OLD, "rotary_emb_base": 500, "rotary_pct": 0.5},
    ),
    "gemma3": (
        "gemma3_text",
        LLAMA
        | {
            "sliding_window": 4,
            "layer_types": ALTERNATING,
            "query_pre_attn_scalar": 5,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 2000.0, "factor": 2.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
            },
        },
    ),
    "gemma3_old": (
        "gemma3_text",
        LLAMA
        | {"sliding_window": 4, "layer_types": OLD, "sliding_window_pattern": 2, "query_pre_attn_scalar": 5}
        | {"rope_parameters": OLD, "rope_theta": 2000.0, "rope_local_base_freq": 30.0}
        | {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    ),
    "mixtral": (
        "mixtral",
        LLAMA | {"rope_parameters": ROPE, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4},
    ),
    "qwen2_moe": (
        "qwen2_moe",
        SQUARE
        | {"rope_parameters": ROPE, "layer_types": OLD, "num_experts": 4, "num_experts_per_tok": 2}
        | {"moe_intermediate_size": 8, "shared_expert_intermediate_size": 8},
    ),
    "qwen2_moe_window": (
        "qwen2_moe",
        SQUARE
        | {"rope_parameters": ROPE, "layer_types": ALTERNATING, "use_sliding_window": True, "sliding_window": 4}
        | {"num_experts": 4, "num_experts_per_tok": 2}
        | {"moe_intermediate_size": 8, "shared_expert_intermediate_size": 8},
    ),
    "qwen3_moe": (
        "qwen3_moe",
        LLAMA
        | {"rope_parameters": ROPE, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
        | {"mlp_only_layers": [0], "norm_topk_prob": True},
    ),
    "qwen3_moe_window": (
        "qwen3_moe",
        LLAMA
        | {"rope_parameters": ROPE, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
        | {"use_sliding_window": True, "sliding_window": 4},
    ),
    "olmoe": ("olmoe", SQUARE | {"rope_parameters": ROPE, "num_experts": 4, "num_experts_per_tok": 2}),
    "nanochat": ("nanochat", LLAMA | {"rope_parameters": ROPE, "final_logit_softcapping": 3.0}),
    "nanochat_llama3": (
        "nanochat",
        SQUARE | {"rope_parameters": LLAMA3, "final_logit_softcapping": 3.0, "attention_bias": True},
    ),
}
OLD_SPELLINGS = ["rope_scaling", "rope_theta", "torch_dtype", "rotary_pct", "rotary_emb_base", "rope_local_base_freq",
                 "sliding_window_pattern", "partial_rotary_factor", "original_max_position_embeddings", "n_ctx",
                 "pruned_heads", "is_decoder", "cross_attention_hidden_size", "quantization_config", "text_config",
                 "auto_map", "num_labels", "is_causal", "per_layer_config", "a_key_that_is_not_there"]  # fmt: skip
ROPE_KEYS = ["rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "attention_factor", "beta_fast",
             "beta_slow", "mscale", "mscale_all_dim", "truncate", "short_factor", "long_factor", "low_freq_factor",
             "high_freq_factor", "partial_rotary_factor", "mrope_section", "a_key_that_is_not_there"]  # fmt: skip
GENERIC_SOURCES = ["configuration_utils.py", "masking_utils.py", "modeling_utils.py", "modeling_rope_utils.py",
                   "modeling_layers.py", "cache_utils.py", "utils/generic.py", "utils/output_capturing.py",
                   "integrations/heterogeneity/configuration_utils.py", "integrations/sdpa_attention.py"]  # fmt: skip
# Values to try for keys whose new values cannot be derived from the current one.
CHOICES = {
    "hidden_act": ["silu", "swish", "gelu", "gelu_new", "relu", "quick_gelu", "no_such_function"],
    "layer_types": [
        ["full_attention"] * 3,
        ["sliding_attention"] * 3,
        ["sliding_attention", "full_attention", "sliding_attention"],
        ["full_attention"] * 2,
        ["full_attention", "chunked_attention", "full_attention"],
    ],
    "rope_scaling": [
        {},
        {"type": "default"},
        {"rope_type": "linear", "factor": 3.0},
        {"type": "dynamic", "factor": 2.0},
        {"rope_type": "yarn", "factor": 2.0},
    ],
    "rope_parameters": [
        {},
        {"rope_theta": 300.0},
        {"full_attention": {"rope_type": "default", "rope_theta": 300.0}},
        {"sliding_attention": {"rope_type": "default", "rope_theta": 300.0}},
    ],
    "rope_type": ["default", "linear", "dynamic", "yarn", "longrope", "llama3", "no_such_type"],
    "per_layer_config": [{}, {"1": {"intermediate_size": 6}}, {"1": {"sliding_window": 2}}, {"1": {"rms_norm_eps": 0.5}}],
    "quantization_config": [{}, {"quant_method": "gptq", "bits": 4}],
    "text_config": [{}, {"hidden_size": 8}],
    "auto_map": [{}],
    "pruned_heads": [{}, {"0": [1]}],
    "architectures": [[], ["LlamaForCausalLM"], ["GPT2LMHeadModel"]],
    "model_type": ["llama", "mistral", "gpt2", "no_such_type"],
    "dtype": ["float32", "bfloat16"],
    "is_causal": [True, False],
    "id2label": [{"0": "a"}, {"0": "a", "1": "b", "2": "c"}],
    "problem_type": ["regression"],
    "eos_token_id": [1, [1, 2]],
    "short_factor": [[1.0] * 3],
    "long_factor": [[2.0] * 3],
    "mrope_section": [[1, 1, 1]],
}
for alias, key in (("hidden_activation", "hidden_act"), ("activation_function", "hidden_act"), ("type", "rope_type"),
                   ("torch_dtype", "dtype")):  # fmt: skip
    CHOICES[alias] = CHOICES[key]
# Keys that are set at run time or describe how the model is saved; they are not part of config.json.
NOT_OF_A_FILE = {"attn_implementation", "experts_implementation", "distributed_config", "transformers_weights"}


def changes(key, value):
    if key in CHOICES:
        return [choice for choice in CHOICES[key] if choice != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, 2 * value, "a text"] if value != 0 else [1, 2, "a text"]
    if isinstance(value, float):
        return [1.5 * value + 0.25, "a text"]
    if isinstance(value, str):
        return [value + "x", 1]
    return [True, 3, 0.5, "a text"]


def source_keys(model_type):
    package = Path(transformers.__file__).parent
    folder = model_type.replace("_text", "")
    names = {"gemma3": "gemma3"}.get(folder, folder)
    files = [package / name for name in GENERIC_SOURCES] + sorted((package / "models" / names).glob("*.py"))
    text = "".join(file.read_text() for file in files)
    keys = set(re.findall(r"getattr\(\s*[a-z_.]*config, *\"([a-z]\w*)\"", text))
    config = CONFIG_MAPPING[model_type]()
    methods = {key for key in dir(config) if callable(getattr(type(config), key, None))}
    return (keys | set(re.findall(r"\bconfig\.([a-z]\w*)\b(?!\()", text))) - methods


def randomize(model, seed):
    """Sets weights so large that softmax and activations leave their linear range, gains other than 1 and biases other than
    0. All values are exact in FP16."""
    generator = torch.Generator().manual_seed(seed)
    neutral = 0.0 if "Gemma3" in type(model).__name__ else 1.0  # the gain that has no effect
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        gain = parameter.dim() == 1 and ("norm" in name or "ln_" in name) and name.endswith("weight")
        value = neutral + 0.2 * noise if gain else 0.3 * noise if parameter.dim() == 1 else 0.5 * noise
        with torch.no_grad():
            parameter.copy_(value.half())


def full_config(model_type, keys):
    kept = {key: value for key, value in keys.items() if value != OLD}
    config = json.loads(CONFIG_MAPPING[model_type](**copy.deepcopy(kept)).to_json_string(use_diff=False))
    for key in [key for key, value in keys.items() if value == OLD]:
        config.pop(key, None)
    config |= kept
    return {key: value for key, value in config.items() if not key.startswith("_")}


class Trial:
    def __init__(self, folder, tokens):
        self.folder, self.tokens = folder, tokens

    def logits(self, config):
        """The logits [seq, vocab], "weights" or "error"."""
        (self.folder / "config.json").write_text(json.dumps(config))
        try:
            model, report = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32, output_loading_info=True)
            if any(report.values()):
                return "weights"
            with torch.no_grad():
                return model.eval()(self.tokens).logits[0].float()
        except Exception as error:  # transformers raises many types
            return "weights" if "size mismatch" in str(error) or "ignore_mismatched_sizes" in str(error) else "error"


def at(config, path):
    for key in path:
        if not isinstance(config, dict) or key not in config:
            return None, False
        config = config[key]
    return config, True


def changed(config, path, value):
    config = copy.deepcopy(config)
    place = config
    for key in path[:-1]:
        place = place[key]
    if value == DELETED:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return config


def paths_of(name, config, model_type, foreign):
    paths = {(key,) for key in config} | {(key,) for key in OLD_SPELLINGS}
    if name == first_of(model_type):
        paths |= {(key,) for key in foreign}
    for section in ("rope_parameters", "rope_scaling"):
        value = config.get(section)
        if not isinstance(value, dict):
            continue
        paths |= {(section, key) for key in [*value, *ROPE_KEYS]}
        for key, inner in value.items():
            if isinstance(inner, dict):
                paths |= {(section, key, more) for more in [*inner, *ROPE_KEYS]}
    return sorted(paths)


def first_of(model_type):
    return next(name for name, (other, _) in MODELS.items() if other == model_type)


def make(name, folder, foreign):
    model_type, keys = MODELS[name]
    config = full_config(model_type, keys)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        (scratch / "config.json").write_text(json.dumps(config))
        made = AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(scratch), dtype=torch.float32)
        config["architectures"] = [type(made).__name__]
        if model_type == "mistral":  # with layer_types, the Auto classes create a class that saves its own name
            config["architectures"] = ["MistralForCausalLM"]
        randomize(made, len(name))
        made.half().save_pretrained(scratch)
        shutil.copy(scratch / "model.safetensors", folder)
        tokens = torch.randint(config["vocab_size"], (1, LENGTH), generator=torch.Generator().manual_seed(1))
        trial = Trial(scratch, tokens)
        found = [trial.logits(config)]
        assert not isinstance(found[0], str), (name, found[0])
        cases = []
        for path in paths_of(name, config, model_type, foreign):
            value, there = at(config, path)
            outcomes = {}
            for new in ([DELETED] if there else []) + [None] + changes(path[-1], value):
                if there and new == value and type(new) is type(value):
                    continue
                outcome = trial.logits(changed(config, path, new))
                if not isinstance(outcome, str):
                    same = [i for i, other in enumerate(found) if other.shape == outcome.shape and
                            torch.allclose(other, outcome, rtol=0, atol=1e-5)]  # fmt: skip
                    if not same:
                        found.append(outcome)
                    outcome = same[0] if same else len(found) - 1
                outcomes.setdefault(outcome, []).append(new)
            cases += [[list(path), values, outcome] for outcome, values in outcomes.items()]
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    lines = ",\n".join(json.dumps(case) for case in cases)
    (folder / "cases.json").write_text(
        f'{{"transformers": "{transformers.__version__}", "tokens": {tokens[0].tolist()}, "cases": [\n{lines}\n]}}\n'
    )
    save_file({"logits": torch.stack(found)}, folder / "logits.safetensors")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{folder}: {size} bytes, {len(cases)} cases, {len(found)} sets of logits", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("names", nargs="*", help="folders to write (default: all)")
    arguments = parser.parse_args()
    wanted = re.search(r"^TRANSFORMERS_VERSION=(\S+)", (ROOT / "scripts" / "versions.env").read_text(), re.M)[1]
    if transformers.__version__ != wanted:
        sys.exit(f"make_hf_keys_fixtures.py: error: transformers {transformers.__version__} is installed; pip install transformers=={wanted}")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.utils.logging.disable_progress_bar()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    foreign = set().union(*(full_config(kind, keys) for kind, keys in MODELS.values()))
    foreign |= set().union(*(source_keys(kind) for kind, _ in MODELS.values()))
    foreign |= set(GenerationConfig().to_dict()) | {key for kind, _ in MODELS.values() for key in CONFIG_MAPPING[kind].attribute_map}
    foreign = {key for key in foreign if not key.startswith("_")} - NOT_OF_A_FILE
    for name in arguments.names or MODELS:
        make(name, arguments.folder / name, foreign)


if __name__ == "__main__":
    main()
