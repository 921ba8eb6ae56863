#!/usr/bin/env python3
"""Writes tests/fixtures/*_tiny.safetensors: tiny Hugging Face transformers models and one training step of each.

The tests load "param/NAME" into te-train, run forward, backward and one AdamW step on "tokens" and "targets",
and compare with the results of transformers and torch: "logits", "loss", "grad/NAME" (before clipping),
"grad_norm" (before clipping) and "updated/NAME" (after the step). Metadata: "model" and "optimizer" (JSON,
te-train's config keys) and "zero_gradient_rows" (JSON {NAME pattern: [begin, end]}: rows whose "updated"
values FP32 cannot reproduce). Names and layouts are te-train's: weights are [out, in], linear_qkv stacks q,
k, v, Llama's linear_fc1 stacks gate, up. output_layer.weight is absent if it is tied to the embedding.

The values come from a float64 run and are rounded once to FP32, so that the error of the fixture is far below
the tolerance of the tests. transformers computes norms, softmax and RoPE in FP32 for every model dtype. The
script replaces these three by float64 versions of the same formulas. To verify the replacements, it also runs
the unmodified model in FP32 and requires agreement.

    pip install torch transformers safetensors
    scripts/make_hf_fixtures.py            # writes the files
    scripts/make_hf_fixtures.py --check    # recomputes them and compares
"""

import argparse
import copy
import fnmatch
import json
import os
import sys
from pathlib import Path

from hf_fixture_models import MODELS, SEEDS, SEQ

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "fixtures"
BATCH = 2
STEPS = 50  # of a mixture of experts
OPTIMIZER = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip_grad": 1.0}


def fail(message):
    print(f"make_hf_fixtures.py: error: {message}", file=sys.stderr)
    sys.exit(2)


try:
    import numpy as np
    import safetensors
    import torch
    import transformers
    from safetensors.numpy import load_file, save_file
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.gemma3.modeling_gemma3 import Gemma3ForCausalLM, Gemma3RMSNorm, Gemma3RotaryEmbedding
    from transformers.models.gemma3.modeling_gemma3 import Gemma3TextConfig
    from transformers.models.gpt2.modeling_gpt2 import GPT2Config, GPT2LMHeadModel
    from transformers.models.llama.modeling_llama import LlamaConfig, LlamaForCausalLM, LlamaRMSNorm
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
    from transformers.models.nanochat.modeling_nanochat import NanoChatConfig, NanoChatForCausalLM, NanoChatRMSNorm
    from transformers.models.nanochat.modeling_nanochat import NanoChatRotaryEmbedding
    from transformers.models.qwen2.modeling_qwen2 import Qwen2Config, Qwen2ForCausalLM, Qwen2RMSNorm
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding
    from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeConfig, Qwen2MoeForCausalLM
    from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeRMSNorm, Qwen2MoeRotaryEmbedding
except ImportError as error:
    fail(f"{error}; pip install torch transformers safetensors")


# ---- Float64 versions of operations that transformers runs in FP32 -----------------------------------------


def rmsnorm64(self, hidden):
    return self.weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


def rmsnorm64_zero_centered(self, hidden):
    return (1.0 + self.weight) * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.eps)


def rmsnorm64_without_gain(self, hidden):
    return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.eps)


def make_rotary64(theta, head_dim, local_theta=None):
    def rotary(self, x, position_ids, layer_type=None):
        base = local_theta if layer_type == "sliding_attention" else theta
        frequency = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
        angle = position_ids[..., None].double() * frequency
        angle = torch.cat([angle, angle], dim=-1)
        return angle.cos(), angle.sin()

    return rotary


def attention64(
    module, query, key, value, attention_mask, scaling=None, dropout=0.0, sliding_window=None, **unused
):
    """Causal attention, optionally limited to the last sliding_window tokens; query [b, heads, s, d], key and
    value [b, groups, s, d]. Returns [b, s, heads, d]."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    scores = (query @ key.transpose(-1, -2)) * scale
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    if sliding_window is not None:
        future |= torch.ones_like(future).tril(-sliding_window)
    weights = scores.masked_fill(future, float("-inf")).softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


ALL_ATTENTION_FUNCTIONS.register("float64", attention64)


# ---- Models ------------------------------------------------------------------------------------------------


def is_gemma(config):
    return config.get("activation") == "geglu"


def build_model(config, attention):
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    if config["family"] == "gpt":
        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=config["vocab_size"],
                n_positions=SEQ,
                n_embd=hidden,
                n_layer=config["num_layers"],
                n_head=heads,
                n_inner=config["ffn_hidden_size"],
                activation_function="gelu_new",
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                layer_norm_epsilon=config["norm_epsilon"],
                tie_word_embeddings=True,
                attn_implementation=attention,
                use_cache=False,
            )
        )
    arguments = dict(
        vocab_size=config["vocab_size"],
        hidden_size=hidden,
        intermediate_size=config["ffn_hidden_size"],
        num_hidden_layers=config["num_layers"],
        num_attention_heads=heads,
        num_key_value_heads=config["num_query_groups"],
        head_dim=config.get("kv_channels", hidden // heads),
        max_position_embeddings=SEQ,
        rms_norm_eps=config["norm_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": config["rope_theta"]},
        tie_word_embeddings=config["tie_word_embeddings"],
        attn_implementation=attention,
        use_cache=False,
    )
    if is_gemma(config):
        types = ["sliding_attention", "sliding_attention", "full_attention"]
        arguments["rope_parameters"] = {
            "full_attention": arguments["rope_parameters"],
            "sliding_attention": {"rope_type": "default", "rope_theta": config["rope_local_theta"]},
        }
        return Gemma3ForCausalLM(
            Gemma3TextConfig(
                **arguments,
                sliding_window=config["sliding_window"],
                layer_types=types,
                query_pre_attn_scalar=config["query_pre_attn_scalar"],
                pad_token_id=None,
            )
        )
    if config.get("activation") == "relu2":
        return NanoChatForCausalLM(
            NanoChatConfig(**arguments, final_logit_softcapping=config["final_logit_softcapping"], pad_token_id=None)
        )
    arguments["hidden_act"] = "silu"
    if config.get("num_moe_experts"):
        return Qwen2MoeForCausalLM(
            Qwen2MoeConfig(
                **arguments,
                num_experts=config["num_moe_experts"],
                num_experts_per_tok=config["moe_router_topk"],
                moe_intermediate_size=config["moe_ffn_hidden_size"],
                shared_expert_intermediate_size=config["moe_shared_expert_intermediate_size"],
                norm_topk_prob=config["moe_router_norm_topk_prob"],
                experts_implementation="eager",
            )
        )
    if config["add_qkv_bias"]:
        return Qwen2ForCausalLM(Qwen2Config(**arguments))
    return LlamaForCausalLM(LlamaConfig(**arguments, attention_bias=False, mlp_bias=False))


def randomize(model, seed):
    """Sets every parameter to FP32 values large enough that softmax and activations leave their linear range.
    Gains differ from 1 and biases from 0, so that the tests notice a missing one."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        if parameter.dim() == 1:
            gain = "norm" in name or "ln_" in name
            neutral = 0.0 if isinstance(model, Gemma3ForCausalLM) else 1.0  # the gain that has no effect
            value = neutral + 0.2 * noise if gain and name.endswith("weight") else 0.1 * noise
        else:
            embedding = "embed" in name or "wte" in name or "wpe" in name
            value = noise * (
                0.3 if embedding else 1.0 / parameter.shape[0 if "transformer" in name else -1] ** 0.5
            )
        with torch.no_grad():
            parameter.copy_(value)


def to_float64(model, config):
    model = model.double()
    for module in model.modules():
        if isinstance(module, (LlamaRMSNorm, Qwen2RMSNorm, Qwen2MoeRMSNorm)):
            module.forward = rmsnorm64.__get__(module)
        elif isinstance(module, Gemma3RMSNorm):
            module.forward = rmsnorm64_zero_centered.__get__(module)
        elif isinstance(module, NanoChatRMSNorm):
            module.forward = rmsnorm64_without_gain.__get__(module)
        elif isinstance(module, (NanoChatRotaryEmbedding, LlamaRotaryEmbedding, Qwen2RotaryEmbedding, Qwen2MoeRotaryEmbedding, Gemma3RotaryEmbedding)):
            head_dim = config.get("kv_channels", config["hidden_size"] // config["num_attention_heads"])
            rotary = make_rotary64(config["rope_theta"], head_dim, config.get("rope_local_theta"))
            module.forward = rotary.__get__(module)
    return model


# ---- te-train's names and layouts --------------------------------------------------------------------------


def gpt_names(tensors, num_layers):
    yield "embedding.word_embeddings.weight", tensors["transformer.wte.weight"]
    yield "embedding.position_embeddings.weight", tensors["transformer.wpe.weight"]
    norms = {"ln_1": "input_layernorm", "ln_2": "pre_mlp_layernorm"}
    linears = {
        "attn.c_attn": "self_attention.linear_qkv",
        "attn.c_proj": "self_attention.linear_proj",
        "mlp.c_fc": "mlp.linear_fc1",
        "mlp.c_proj": "mlp.linear_fc2",
    }
    for layer in range(num_layers):
        for theirs, ours in (norms | linears).items():
            weight = tensors[f"transformer.h.{layer}.{theirs}.weight"]
            yield f"layers.{layer}.{ours}.weight", (
                weight.T if theirs in linears else weight
            )  # Conv1D is [in, out]
            yield f"layers.{layer}.{ours}.bias", tensors[f"transformer.h.{layer}.{theirs}.bias"]
    yield "final_layernorm.weight", tensors["transformer.ln_f.weight"]
    yield "final_layernorm.bias", tensors["transformer.ln_f.bias"]


def exchanged_halves(tensors, name, nanochat):
    """nanochat rotates q and k in the other direction, which is te-train's with the halves of each head exchanged."""
    if not nanochat or ("q_proj" not in name and "k_proj" not in name):
        return tensors[name]
    head = MODELS["nanochat_tiny"]["hidden_size"] // MODELS["nanochat_tiny"]["num_attention_heads"]
    return tensors[name].unflatten(0, (-1, 2, head // 2)).flip(1).flatten(0, 2)


def llama_names(tensors, num_layers):
    gemma = "model.layers.0.pre_feedforward_layernorm.weight" in tensors
    norms = {"pre_mlp_layernorm": ["post_attention_layernorm"]}
    if gemma:
        norms = {
            "post_attention_layernorm": ["post_attention_layernorm"],
            "pre_mlp_layernorm": ["pre_feedforward_layernorm"],
            "post_mlp_layernorm": ["post_feedforward_layernorm"],
            "self_attention.q_layernorm": ["self_attn.q_norm"],
            "self_attention.k_layernorm": ["self_attn.k_norm"],
        }
    nanochat = "model.layers.0.mlp.fc1.weight" in tensors
    yield "embedding.word_embeddings.weight", tensors["model.embed_tokens.weight"]
    for layer in range(num_layers):
        prefix = f"model.layers.{layer}."
        stacks = {
            "self_attention.linear_qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
            "self_attention.linear_proj": ["self_attn.o_proj"],
            "mlp.linear_fc1": ["mlp.gate_proj", "mlp.up_proj"],
            "mlp.linear_fc2": ["mlp.down_proj"],
            "mlp.router": ["mlp.gate"],
            "mlp.shared_experts.linear_fc1": ["mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"],
            "mlp.shared_experts.linear_fc2": ["mlp.shared_expert.down_proj"],
            "mlp.shared_experts.gate": ["mlp.shared_expert_gate"],
            "input_layernorm": ["input_layernorm"],
        } | norms
        if nanochat:
            stacks |= {"mlp.linear_fc1": ["mlp.fc1"], "mlp.linear_fc2": ["mlp.fc2"]}
            del stacks["input_layernorm"], stacks["pre_mlp_layernorm"]
        # transformers stacks the experts: [experts, out, in].
        for ours, theirs in {"linear_fc1": "gate_up_proj", "linear_fc2": "down_proj"}.items():
            if f"{prefix}mlp.experts.{theirs}" in tensors:
                yield f"layers.{layer}.mlp.experts.{ours}.weight", tensors[f"{prefix}mlp.experts.{theirs}"].flatten(0, 1)
        for ours, theirs in stacks.items():
            for kind in ("weight", "bias"):
                if f"{prefix}{theirs[0]}.{kind}" in tensors:
                    yield f"layers.{layer}.{ours}.{kind}", torch.cat(
                        [exchanged_halves(tensors, f"{prefix}{t}.{kind}", nanochat) for t in theirs]
                    )
    if not nanochat:
        yield "final_layernorm.weight", tensors["model.norm.weight"]
    if "lm_head.weight" in tensors:
        yield "output_layer.weight", tensors["lm_head.weight"]


def te_tensors(prefix, tensors, config):
    """{prefix + te-train's name: float64 array}. Fails unless all tensors of the model are used."""
    names = gpt_names if config["family"] == "gpt" else llama_names
    result = {
        prefix + name: value.detach().double().numpy().copy()
        for name, value in names(tensors, config["num_layers"])
    }
    assert sum(v.size for v in result.values()) == sum(
        t.numel() for t in tensors.values()
    ), "a tensor of the model is not used"
    return result


# ---- Training steps ----------------------------------------------------------------------------------------


def adamw(parameters):
    decayed = [p for p in parameters if p.dim() >= 2]
    others = [p for p in parameters if p.dim() < 2]
    return torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": OPTIMIZER["weight_decay"]},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=OPTIMIZER["lr"],
        betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]),
        eps=OPTIMIZER["eps"],
        foreach=False,
    )


def train_steps(model, text):
    """The losses of STEPS steps. Step n trains on the text rotated by n tokens."""
    optimizer, losses = adamw(list(model.parameters())), []
    for step in range(STEPS):
        rotated = torch.roll(text, step, dims=1)
        logits = model(rotated[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rotated[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(model.parameters()), OPTIMIZER["clip_grad"], foreach=False)
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


def train_step(model, config, tokens, targets):
    """Forward, backward, clipping and one AdamW step. Returns {fixture name: float64 array}."""
    parameters = dict(model.named_parameters())  # a tied output layer is listed once, as the embedding
    out = te_tensors("param/", parameters, config)
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    out |= te_tensors("grad/", {name: p.grad for name, p in parameters.items()}, config)
    norm = torch.nn.utils.clip_grad_norm_(list(parameters.values()), OPTIMIZER["clip_grad"], foreach=False)
    adamw(list(parameters.values())).step()
    out |= te_tensors("updated/", parameters, config)
    out["logits"] = logits.detach().double().numpy()
    out["loss"] = np.array(loss.item())
    out["grad_norm"] = np.array(norm.item())
    return out


def relative_error(actual, expected):
    return float(np.linalg.norm(actual - expected) / max(np.linalg.norm(expected), 1e-30))


def zero_gradient_rows(config):
    """{name pattern: [begin, end)}. Softmax ignores a constant that is added to all scores of a query, so without
    RoPE the gradient of the key bias is zero: in FP32 it is rounding noise, which AdamW turns into steps."""
    if config["family"] != "gpt":
        return {}
    return {"layers.*.self_attention.linear_qkv.bias": [config["hidden_size"], 2 * config["hidden_size"]]}


def cross_check(name, exact, plain):
    """Compares the float64 run with the unmodified FP32 run of transformers."""
    for key, value in exact.items():
        difference = plain[key] - value
        for pattern, (begin, end) in zero_gradient_rows(MODELS[name]).items():
            if fnmatch.fnmatch(key, "updated/" + pattern):
                difference[begin:end] = 0.0
        error = np.linalg.norm(difference) / np.linalg.norm(value)
        if not error < 5e-6:
            fail(
                f"{name}: {key}: float64 and FP32 runs differ by {error:.2e}; the float64 replacements no longer match "
                f"transformers {transformers.__version__}"
            )


def make_fixture(name):
    """(stored tensors, metadata)."""
    config = MODELS[name]
    generator = torch.Generator().manual_seed(1000 + SEEDS[name])
    text = torch.randint(config["vocab_size"], (BATCH, SEQ + 1), generator=generator)
    tokens, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()

    plain = build_model(config, "eager")
    randomize(plain, SEEDS[name])
    exact = build_model(config, "float64")
    exact.load_state_dict(plain.state_dict())
    exact = to_float64(exact, config)
    many_steps = copy.deepcopy(exact) if config.get("num_moe_experts") else None
    results = train_step(exact, config, tokens, targets)
    cross_check(name, results, train_step(plain, config, tokens, targets))

    if many_steps is not None:
        results["losses"] = train_steps(many_steps, text)
    stored = {key: value.astype(np.float32) for key, value in results.items()}
    stored["tokens"] = tokens.numpy().astype(np.int32)
    stored["targets"] = targets.numpy().astype(np.int32)
    metadata = {
        "model": json.dumps(config),
        "optimizer": json.dumps(OPTIMIZER | {"weight_decay_of": "tensors of rank >= 2"}),
        "arithmetic": "computed in float64, stored as FP32",
        "seed": str(SEEDS[name]),
        "made_by": f"scripts/make_hf_fixtures.py; torch {torch.__version__}, transformers {transformers.__version__}, "
        f"safetensors {safetensors.__version__}, numpy {np.__version__}",
    }
    if zero_gradient_rows(config):
        metadata["zero_gradient_rows"] = json.dumps(zero_gradient_rows(config))
    return stored, metadata


def check_fixture(path, stored, metadata):
    """Compares a file with a fresh run, with a tolerance because torch versions may round the last bit differently."""
    if not path.is_file():
        fail(f"{path}: is missing; run scripts/make_hf_fixtures.py")
    found = load_file(path)
    with safetensors.safe_open(path, "np") as file:
        found_metadata = file.metadata()
    for key in metadata.keys() - {"made_by"}:
        if found_metadata.get(key) != metadata[key]:
            fail(
                f"{path}: metadata {key} is {found_metadata.get(key)}, should be {metadata[key]}; regenerate the file"
            )
    if found.keys() != stored.keys():
        fail(f"{path}: tensors differ: {sorted(found.keys() ^ stored.keys())[:4]}; regenerate the file")
    worst = 0.0
    for key, value in stored.items():
        if found[key].shape != value.shape or found[key].dtype != value.dtype:
            fail(f"{path}: {key}: shape or dtype differs; regenerate the file")
        if key.startswith("param/") or value.dtype == np.int32:
            error = 0.0 if np.array_equal(found[key], value) else float("inf")
        else:
            error = relative_error(found[key].astype(np.float64), value.astype(np.float64))
        if not error < 2e-7:
            fail(f"{path}: {key}: differs from a fresh run by {error:.2e}; regenerate the file")
        worst = max(worst, error)
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="recompute the files and compare, write nothing"
    )
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="folder of the files (default: tests/fixtures)"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for name in MODELS:
        path = arguments.folder / f"{name}.safetensors"
        stored, metadata = make_fixture(name)
        if arguments.check:
            print(f"{path}: agrees, largest relative difference {check_fixture(path, stored, metadata):.1e}")
            continue
        arguments.folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        save_file(stored, temporary, metadata)
        os.replace(temporary, path)
        print(
            f"{path}: {path.stat().st_size} bytes, loss {stored['loss']:.6f}, grad_norm {stored['grad_norm']:.6f}"
        )


if __name__ == "__main__":
    main()
