"""The models of make_hf_fixtures.py."""

SEQ = 24
# te-train's config keys. make_vocab_size_divisible_by 1: no padding rows, as in transformers.
COMMON = {
    "num_layers": 2,
    "num_attention_heads": 4,
    "seq_length": SEQ,
    "norm_epsilon": 1e-5,
    "make_vocab_size_divisible_by": 1,
}
SMALL = {
    "family": "llama",
    "hidden_size": 32,
    "ffn_hidden_size": 48,
    "num_query_groups": 2,
    "vocab_size": 61,
    "rope_theta": 10000.0,
}
MODELS = {
    "gpt2_tiny": COMMON
    | {
        "family": "gpt",
        "hidden_size": 48,
        "ffn_hidden_size": 192,
        "num_query_groups": 4,
        "vocab_size": 97,
        "max_position_embeddings": SEQ,
        "tie_word_embeddings": True,
        "add_qkv_bias": True,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    },
    "llama_tiny": COMMON
    | {
        "family": "llama",
        "hidden_size": 64,
        "ffn_hidden_size": 96,
        "num_query_groups": 2,
        "vocab_size": 101,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "add_qkv_bias": False,
    },
    # Qwen2 in transformers is Llama with a tied output layer and q, k, v biases.
    "qwen2_tiny": COMMON
    | SMALL
    | {
        "tie_word_embeddings": True,
        "add_qkv_bias": True,
    },
    "gemma3_tiny": COMMON
    | {
        "family": "llama",
        "num_layers": 3,
        "hidden_size": 32,
        "ffn_hidden_size": 48,
        "num_query_groups": 2,
        "kv_channels": 12,
        "vocab_size": 61,
        "rope_theta": 10000.0,
        "rope_local_theta": 100.0,
        "sliding_window": 5,
        "window_pattern": "2w f",
        "tie_word_embeddings": True,
        "activation": "geglu",
        "qk_norm": "head",
        "norm_placement": "both",
        "layernorm_zero_centered_gamma": True,
        "scale_embedding": True,
        "query_pre_attn_scalar": 9,
    },
    "nanochat_tiny": COMMON
    | SMALL
    | {
        "tie_word_embeddings": False,
        "activation": "relu2",
        "qk_norm": "head_no_gain",
        "norm_gain": False,
        "embedding_norm": True,
        "final_logit_softcapping": 1.0,
    },
    # A mixture of experts with a shared expert.
    "qwen2_moe_tiny": COMMON
    | SMALL
    | {
        "tie_word_embeddings": False,
        "add_qkv_bias": True,
        "num_moe_experts": 6,
        "moe_router_topk": 2,
        "moe_ffn_hidden_size": 20,
        "moe_shared_expert_intermediate_size": 28,
        "moe_shared_expert_gate": True,
        "moe_router_norm_topk_prob": False,
    },
}
# AdamW's first step is lr * sign(g), except for |g| near eps, where it depends on the rounding error of g. Among
# the first 90 seeds, these have the largest minimum |g|, so that the step can be compared with a small tolerance.
SEEDS = {
    "gpt2_tiny": 49,
    "llama_tiny": 23,
    "qwen2_tiny": 36,
    "gemma3_tiny": 26,
    "nanochat_tiny": 43,
    "qwen2_moe_tiny": 54,
}
