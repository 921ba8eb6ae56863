#!/usr/bin/env python3
"""Writes tests/fixtures/hugging_face/*: tiny models with random weights and unusual shapes as transformers saves them. Each
folder also has expected.safetensors, with tokens and the logits that transformers computes in FP32.

    pip install torch transformers safetensors
    scripts/make_convert_fixtures.py [--folder FOLDER]

The files have the format of the installed transformers version; tests/convert rewrites config.json with the keys of older
versions.
"""

import argparse
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "hugging_face"
BATCH, SEQ = 2, 20

try:
    import torch
    import transformers
    from safetensors.torch import save_file
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig
    from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM
    from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM
    from transformers import MixtralConfig, MixtralForCausalLM, OlmoeConfig, OlmoeForCausalLM
    from transformers import NanoChatConfig, NanoChatForCausalLM
    from transformers import Olmo2Config, Olmo2ForCausalLM, Phi3Config, Phi3ForCausalLM
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
except ImportError as error:
    sys.exit(f"make_convert_fixtures.py: error: {error}; pip install torch transformers safetensors")

LLAMA = {
    "vocab_size": 61,
    "hidden_size": 36,
    "intermediate_size": 28,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 48,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
QWEN2 = LLAMA | {"hidden_size": 42, "num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 6}
GPT2 = {
    "vocab_size": 67,
    "n_embd": 36,
    "n_layer": 2,
    "n_head": 3,
    "n_inner": 50,
    "n_positions": 24,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
ROPE_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 20000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
ROPE_YARN = {
    "rope_type": "yarn",
    "rope_theta": 20000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 12,
    "beta_fast": 16.0,
    "beta_slow": 2.0,
}
# The head dimension is hidden_size / num_attention_heads.
SQUARE = {key: value for key, value in LLAMA.items() if key != "head_dim"} | {"hidden_size": 48, "num_attention_heads": 4}
NEOX = SQUARE | {"num_key_value_heads": None, "hidden_size": 64, "num_attention_heads": 4, "hidden_dropout": 0.1}


def models():
    """{name: (model, dtype of the saved file, maximum shard size)}"""
    return {
        "llama": (
            LlamaForCausalLM(
                LlamaConfig(**LLAMA, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
            ),
            torch.float32,
            "20KB",
        ),
        "llama3_tied_bf16": (
            LlamaForCausalLM(LlamaConfig(**LLAMA, tie_word_embeddings=True, rope_parameters=ROPE_LLAMA3)),
            torch.bfloat16,
            "5GB",
        ),
        "llama_linear": (
            LlamaForCausalLM(
                LlamaConfig(**LLAMA, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0})
            ),
            torch.float16,
            "5GB",
        ),
        "qwen2": (Qwen2ForCausalLM(Qwen2Config(**QWEN2, tie_word_embeddings=True)), torch.float32, "5GB"),
        "gpt2": (GPT2LMHeadModel(GPT2Config(**GPT2)), torch.float32, "5GB"),
        "gpt2_untied_bf16": (
            GPT2LMHeadModel(GPT2Config(**(GPT2 | {"n_inner": None}), tie_word_embeddings=False)),
            torch.bfloat16,
            "5GB",
        ),
        "llama_biases_yarn": (
            LlamaForCausalLM(LlamaConfig(**LLAMA, attention_bias=True, mlp_bias=True, rope_parameters=ROPE_YARN)),
            torch.float32,
            "5GB",
        ),
        "qwen3": (Qwen3ForCausalLM(Qwen3Config(**LLAMA, attention_dropout=0.1)), torch.float32, "5GB"),
        "mistral_window": (
            MistralForCausalLM(MistralConfig(**LLAMA, sliding_window=5, rope_parameters={"rope_theta": 1e4})),
            torch.float32,
            "5GB",
        ),
        "olmo2": (Olmo2ForCausalLM(Olmo2Config(**SQUARE)), torch.float32, "5GB"),
        "phi3_partial": (
            Phi3ForCausalLM(
                Phi3Config(**(SQUARE | {"hidden_size": 64}), pad_token_id=None, partial_rotary_factor=0.75, sliding_window=7)
            ),
            torch.float32,
            "5GB",
        ),
        "gpt_neox": (GPTNeoXForCausalLM(GPTNeoXConfig(**NEOX)), torch.float32, "5GB"),
        "gpt_neox_sequential": (
            GPTNeoXForCausalLM(GPTNeoXConfig(**NEOX, use_parallel_residual=False, rotary_pct=1.0, hidden_act="silu")),
            torch.bfloat16,
            "5GB",
        ),
        "gpt2_relu": (
            GPT2LMHeadModel(GPT2Config(**GPT2, activation_function="relu", embd_pdrop=0.0)),
            torch.float32,
            "5GB",
        ),
        # Sliding window attention in some layers.
        "qwen3_windows": (
            Qwen3ForCausalLM(
                Qwen3Config(
                    **(LLAMA | {"num_hidden_layers": 3}), use_sliding_window=True, sliding_window=5, max_window_layers=1
                )
            ),
            torch.float32,
            "5GB",
        ),
        "gemma3": (
            Gemma3ForCausalLM(
                Gemma3TextConfig(
                    **(LLAMA | {"num_hidden_layers": 4}),
                    pad_token_id=None,
                    sliding_window=6,
                    sliding_window_pattern=3,
                    query_pre_attn_scalar=14,
                    rope_parameters={
                        "full_attention": {"rope_type": "linear", "rope_theta": 2e4, "factor": 2.0},
                        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
                    },
                )
            ),
            torch.float32,
            "5GB",
        ),
        "gemma3_bf16": (
            Gemma3ForCausalLM(
                Gemma3TextConfig(
                    **(LLAMA | {"num_hidden_layers": 2}),
                    pad_token_id=None,
                    sliding_window=5,
                    layer_types=["full_attention", "sliding_attention"],
                    query_pre_attn_scalar=10,
                )
            ),
            torch.bfloat16,
            "5GB",
        ),
        # Mixtures of experts.
        "mixtral": (
            MixtralForCausalLM(
                MixtralConfig(
                    **SQUARE, num_local_experts=5, num_experts_per_tok=2, rope_parameters={"rope_theta": 1e4}
                )
            ),
            torch.float32,
            "5GB",
        ),
        "qwen2_moe": (
            Qwen2MoeForCausalLM(
                Qwen2MoeConfig(
                    **SQUARE,
                    num_experts=6,
                    num_experts_per_tok=3,
                    moe_intermediate_size=14,
                    shared_expert_intermediate_size=22,
                )
            ),
            torch.float32,
            "5GB",
        ),
        "qwen3_moe": (
            Qwen3MoeForCausalLM(
                Qwen3MoeConfig(
                    **(LLAMA | {"num_hidden_layers": 3}),
                    num_experts=7,
                    num_experts_per_tok=3,
                    moe_intermediate_size=18,
                    norm_topk_prob=True,
                    mlp_only_layers=[0],
                )
            ),
            torch.bfloat16,
            "5GB",
        ),
        "olmoe": (
            OlmoeForCausalLM(OlmoeConfig(**SQUARE, pad_token_id=None, num_experts=8, num_experts_per_tok=4)),
            torch.float32,
            "5GB",
        ),
        "nanochat": (
            NanoChatForCausalLM(NanoChatConfig(**LLAMA, attention_bias=True, final_logit_softcapping=4.0)),
            torch.float32,
            "5GB",
        ),
    }


def randomize(model, seed):
    """Sets weights so large that softmax and activations leave their linear range, gains other than 1 and biases other than
    0."""
    generator = torch.Generator().manual_seed(seed)
    neutral = 0.0 if isinstance(model, Gemma3ForCausalLM) else 1.0  # the gain that has no effect
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            gain = ("norm" in name or "ln_" in name) and name.endswith("weight")
            value = neutral + 0.2 * noise if gain else 0.1 * noise
        else:
            embedding = "embed" in name or "wte" in name or "wpe" in name
            value = noise * (0.3 if embedding else parameter.shape[0 if "transformer" in name else -1] ** -0.5)
        with torch.no_grad():
            parameter.copy_(value)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="output folder (default: tests/fixtures/hugging_face)")
    parser.add_argument("names", nargs="*", help="fixtures to write (default: all)")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    for seed, (name, (model, dtype, shard)) in enumerate(models().items()):
        if arguments.names and name not in arguments.names:
            continue
        randomize(model, seed)
        folder = arguments.folder / name
        model.to(dtype).save_pretrained(folder, max_shard_size=shard)
        tokens = torch.randint(
            model.config.vocab_size, (BATCH, SEQ), generator=torch.Generator().manual_seed(100 + seed)
        )
        (folder / "generation_config.json").unlink(missing_ok=True)
        # Load the saved files again: casting the model to BF16 has also rounded its rotary frequencies.
        # Grouped GEMMs of torch need other sizes.
        experts = {"experts_implementation": "eager"} if hasattr(model.config, "num_experts_per_tok") else {}
        model = type(model).from_pretrained(folder, dtype=torch.float32, **experts)
        with torch.no_grad():
            logits = model.eval()(tokens).logits
        save_file({"tokens": tokens.int(), "logits": logits.contiguous()}, folder / "expected.safetensors")
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{folder}: {size} bytes, largest logit {logits.abs().max():.2f}")


if __name__ == "__main__":
    main()
