"""Published Hugging Face configs, as far as they decide a shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 24,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "rope_theta": 150000,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    "vocab_size": 201088,
    "rms_norm_eps": 1e-5,
}
QWEN3_MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "head_dim": 128,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_hidden_layers": 48,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "rope_theta": 1000000.0,
    "vocab_size": 151936,
    "use_sliding_window": False,
    "sliding_window": None,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
}
QWEN35_MOE: dict[str, Any] = {
    "model_type": "qwen3_5_moe",
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "num_hidden_layers": 40,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "linear_num_value_heads": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25},
        "vocab_size": 248320,
        "dtype": "bfloat16",
    },
    "vision_config": {"depth": 27},
}
GLM: dict[str, Any] = {
    "model_type": "glm4_moe",
    "hidden_size": 4096,
    "intermediate_size": 10944,
    "head_dim": 128,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "num_hidden_layers": 46,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.0,
    "partial_rotary_factor": 0.5,
    "attention_bias": True,
    "use_qk_norm": False,
    "rope_theta": 1000000,
    "rms_norm_eps": 1e-5,
    "vocab_size": 151552,
}
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "routed_scaling_factor": 2.5,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "first_k_dense_replace": 3,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    },
    "vocab_size": 129280,
}

KIMI: dict[str, Any] = {
    "model_type": "kimi_k2",
    "n_routed_experts": 384,
    "n_group": 1,
    "num_attention_heads": 64,
    "first_k_dense_replace": 1,
    "vocab_size": 163840,
}

# Families that hprof approximates; parameters as transformers 5.24 counts them, but for what the notes name.
OTHERS: dict[str, tuple[dict[str, Any], int]] = {
    "gemma-2-9b": (
        {
            "model_type": "gemma2",
            "hidden_size": 3584,
            "intermediate_size": 14336,
            "num_attention_heads": 16,
            "num_hidden_layers": 42,
            "num_key_value_heads": 8,
            "sliding_window": 4096,
            "vocab_size": 256000,
        },
        9_241_705_984,
    ),
    "gemma-3-27b": (
        {
            "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text",
                "head_dim": 128,
                "hidden_size": 5376,
                "intermediate_size": 21504,
                "num_attention_heads": 32,
                "num_hidden_layers": 62,
                "num_key_value_heads": 16,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
        },
        27_009_346_304,
    ),
    "phi-3-mini-128k": (
        {
            "model_type": "phi3",
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 32,
            "rope_scaling": {"type": "longrope", "long_factor": [1.0], "short_factor": [1.0]},
            "sliding_window": 262144,
            "vocab_size": 32064,
        },
        3_821_079_552,
    ),
    "granite-3.0-3b-a800m": (
        {
            "model_type": "granitemoe",
            "embedding_multiplier": 12.0,
            "hidden_size": 1536,
            "intermediate_size": 512,
            "num_attention_heads": 24,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "num_local_experts": 40,
            "tie_word_embeddings": True,
            "vocab_size": 49155,
        },
        3_298_793_472,
    ),
    "olmoe-1b-7b": (
        {
            "model_type": "olmoe",
            "hidden_size": 2048,
            "intermediate_size": 1024,
            "num_attention_heads": 16,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 16,
            "num_key_value_heads": 16,
            "vocab_size": 50304,
        },
        6_919_161_856,
    ),
    "kimi-k2": (DEEPSEEK_V3 | KIMI, 1_026_408_232_448),
}


def written(folder: Path, config: object) -> Path:
    path = folder / "model" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(config))
    return path
