"""Makes GGUF files of the golden fixtures, as converters write those families.

    python crates/model/tests/golden/make_gguf.py [name ..]        (numpy, gguf)

Each file holds the weights of the folder `NAME` under the names of the `gguf` package, in the orders
and with the keys that readers of the format expect, and no tokenizer. Its recipe is kept as
`gguf/NAME.json`, see `gguf_recipes.py`. The divisor of Gemma's scores has no key in the format, so
it is folded into the weights of q, and the reference logits of the folder hold.
"""

import json
import pathlib
import sys
from statistics import NormalDist

import gguf
import numpy as np

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from gguf_recipes import Checkpoint, Recipe

NEMOTRON_KEYS = {
    "ssm.conv_kernel": 4,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 8,
    "ssm.group_count": 2,
    "ssm.inner_size": 64,
    "expert_weights_scale": 2.5,
    "expert_weights_norm": True,
}



def deviations(parts):
    """Standard deviations above the mean below which these parts of normal gates lie."""
    inner = [NormalDist().inv_cdf(part) if part > 0.0 else -float("inf") for part in parts]
    return [float(np.float32(x)) for x in inner]


# name: (architecture, orders of the tensors, keys beside the usual ones)
CASES = {
    "gemma": ("GEMMA", {"norms plus one"}, {}),
    "gemma2": ("GEMMA2", {"norms plus one", "q by 24"}, {}),
    "gemma3": (
        "GEMMA3",
        {"norms plus one", "q norm by 24"},
        {
            "attention.sliding_window_pattern": 2,
            "rope.freq_base_swa": 100.0,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
    "phi3": ("PHI3", set(), {"rope.dimension_count": 8}),
    "phi4-longrope": (
        "PHI3",
        {"rope factors"},
        {"rope.dimension_count": 4, "rope.scaling.original_context_length": 32},
    ),
    "glm4": ("GLM4", set(), {"rope.dimension_count": 8}),
    "olmo": ("OLMO", {"pairs"}, {"attention.clamp_kqv": 1.5}),
    "olmo2": ("OLMO2", set(), {}),
    "granite": (
        "GRANITE",
        {"pairs"},
        {
            "embedding_scale": 3.0,
            "logit_scale": 4.0,
            "residual_scale": 0.4,
            "attention.scale": 0.2,
        },
    ),
    "minicpm": (
        "MINICPM",
        {"pairs"},
        {"embedding_scale": 1.5, "residual_scale": 1.4 / 3**0.5, "logit_scale": 4.0},
    ),
    "cohere": ("COMMAND_R", set(), {"logit_scale": 0.0625}),
    "cohere-qk-norm": ("COMMAND_R", set(), {"logit_scale": 0.0625}),
    "cohere2": (
        "COHERE2",
        set(),
        {"logit_scale": 0.0625, "attention.sliding_window_pattern": 2},
    ),
    "internlm2": ("INTERNLM2", {"split groups", "pairs"}, {}),
    "stablelm": ("STABLELM", set(), {"rope.dimension_count": 4}),
    "stablelm-parallel": ("STABLELM", {"heads together"}, {"rope.dimension_count": 4}),
    "gpt2": ("GPT2", {"transposed"}, {}),
    "gpt-neox": (
        "GPTNEOX",
        {"stack groups"},
        {"rope.dimension_count": 4, "use_parallel_residual": True},
    ),
    "gpt-neox-sequential": (
        "GPTNEOX",
        {"stack groups"},
        {"rope.dimension_count": 4, "use_parallel_residual": False},
    ),
    "bloom": ("BLOOM", {"stack groups"}, {}),
    "falcon": ("FALCON", {"stack groups"}, {}),
    "falcon-new": ("FALCON", {"stack groups"}, {}),
    "starcoder2": ("STARCODER2", set(), {}),
    "phi": ("PHI2", set(), {"rope.dimension_count": 4}),
    "olmo3": (
        "OLMO2",
        set(),
        {
            "attention.sliding_window_pattern": [True, False, True],
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32,
        },
    ),
    "exaone4": ("EXAONE4", set(), {"attention.sliding_window_pattern": [True, False, True]}),
    "nemotron": ("NEMOTRON", {"norms plus one"}, {"rope.dimension_count": 4}),
    "seed-oss": ("SEED_OSS", set(), {}),
    "arcee": ("ARCEE", {"pairs"}, {}),
    "glm": ("CHATGLM", set(), {"rope.dimension_count": 8}),
    "gptj": ("GPTJ", set(), {"rope.dimension_count": 4}),
    "gpt-bigcode": ("STARCODER", set(), {}),
    "mixtral": ("LLAMA", {"pairs", "experts"}, {}),
    "qwen2-moe": (
        "QWEN2MOE",
        {"experts"},
        {"expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 96},
    ),
    "qwen3-moe": ("QWEN3MOE", {"experts"}, {"expert_feed_forward_length": 32}),
    "olmoe": ("OLMOE", {"experts"}, {}),
    "granite-moe": (
        "GRANITE_MOE",
        {"pairs", "split experts"},
        {
            "embedding_scale": 3.0,
            "logit_scale": 4.0,
            "residual_scale": 0.4,
            "attention.scale": 0.2,
        },
    ),
    "granite-moe-shared": (
        "GRANITE_MOE",
        {"pairs", "split experts"},
        {"attention.scale": 0.3, "expert_shared_feed_forward_length": 32},
    ),
    "gpt-oss": (
        "GPT_OSS",
        {"interleaved experts"},
        {
            "expert_feed_forward_length": 64,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32,
        },
    ),
    "gpt-oss-mxfp4": (
        "GPT_OSS",
        {"interleaved experts"},
        {
            "expert_feed_forward_length": 32,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32,
        },
    ),
    "llama4-scout": (
        "LLAMA4",
        {"transposed experts"},
        {
            "expert_feed_forward_length": 32,
            "interleave_moe_layer_step": 1,
            "attention.sliding_window": 16,
            "attention.temperature_length": 8,
            "attention.temperature_scale": 0.5,
        },
    ),
}

# Divisors of 1e30 stand for pairs that do not turn.
GEMMA4 = {
    "rope.freq_base_swa": 100.0,
    "attention.key_length": 16,
    "attention.value_length": 16,
    "rope.dimension_count": 16,
    "attention.key_length_swa": 8,
    "attention.value_length_swa": 8,
    "rope.dimension_count_swa": 8,
}
CASES |= {
    "gemma3n": (
        "GEMMA3N",
        {"gemma3n"},
        {
            "rope.freq_base_swa": 100.0,
            "attention.sliding_window_pattern": [True, True, False, True, False],
            "attention.shared_kv_layers": 2,
            "embedding_length_per_layer_input": 8,
            "altup.num_inputs": 4,
            "altup.active_idx": 0,
            "activation_sparsity_scale": deviations([0.8, 0.3, 0.0, 0.0, 0.0]),
        },
    ),
    "gemma4": (
        "GEMMA4",
        {"gemma4"},
        GEMMA4
        | {
            "attention.sliding_window_pattern": [True, True, False, True, False],
            "attention.shared_kv_layers": 2,
            "embedding_length_per_layer_input": 8,
            "feed_forward_length": [64, 64, 64, 128, 128],
        },
    ),
    "gemma4-k-eq-v": (
        "GEMMA4",
        {"gemma4"},
        GEMMA4
        | {
            "attention.sliding_window_pattern": [True, False] * 3,
            "attention.shared_kv_layers": 0,
            "embedding_length_per_layer_input": 0,
            "attention.head_count_kv": [4, 1] * 3,
        },
    ),
    "gemma4-experts": (
        "GEMMA4",
        {"gemma4"},
        GEMMA4
        | {
            "attention.sliding_window_pattern": [True, True, False],
            "attention.shared_kv_layers": 0,
            "embedding_length_per_layer_input": 0,
            "attention.head_count_kv": [2, 2, 1],
            "expert_used_count": 2,
            "expert_feed_forward_length": 32,
        },
    ),
    "internlm3": ("LLAMA", {"pairs"}, {}),
    "glm4-moe": (
        "GLM4_MOE",
        {"experts"},
        {
            "rope.dimension_count": 8,
            "leading_dense_block_count": 1,
            "expert_count": 8,
            "expert_used_count": 3,
            "expert_shared_count": 2,
            "expert_feed_forward_length": 32,
            "expert_group_count": 4,
            "expert_group_used_count": 2,
            "expert_gating_func": 2,
            "expert_weights_scale": 1.5,
            "expert_weights_norm": True,
            # The layer that guesses a further token is counted, and left alone.
            "nextn_predict_layers": 1,
            "block_count": 4,
        },
    ),
    # Files do not say the scales of the published model; these are another one's.
    "minicpm3": (
        "MINICPM3",
        set(),
        {
            "attention.q_lora_rank": 96,
            "attention.kv_lora_rank": 64,
            "attention.key_length": 40,
            "attention.value_length": 16,
            "rope.dimension_count": 8,
            "embedding_scale": 1.5,
            "residual_scale": 1.4 / 3**0.5,
            "logit_scale": 4.0,
        },
    ),
}

# Latent attention: in older files keys and values of heads together, in newer ones apart.
LATENT = {
    "attention.kv_lora_rank": 64,
    "rope.dimension_count": 8,
    "leading_dense_block_count": 1,
    "expert_count": 8,
    "expert_used_count": 3,
    "expert_shared_count": 2,
    "expert_feed_forward_length": 32,
    "expert_gating_func": 1,
}
ABSORBED = LATENT | {
    "attention.head_count_kv": 1,
    "attention.q_lora_rank": 96,
    "attention.key_length": 72,
    "attention.value_length": 64,
    "attention.key_length_mla": 40,
    "attention.value_length_mla": 16,
    "expert_group_count": 4,
    "expert_group_used_count": 2,
}
YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 32,
    "rope.scaling.yarn_beta_fast": 16.0,
    "rope.scaling.yarn_beta_slow": 1.0,
}
CASES |= {
    "deepseek-v2-lite": (
        "DEEPSEEK2",
        {"experts"},
        LATENT
        | YARN
        | {
            "attention.key_length": 40,
            "attention.value_length": 16,
            "rope.scaling.yarn_log_multiplier": 0.0707,
        },
    ),
    "deepseek-v2": (
        "DEEPSEEK2",
        {"experts", "split latents"},
        ABSORBED | {"expert_weights_scale": 3.0},
    ),
    "deepseek-v3": (
        "DEEPSEEK2",
        {"experts", "split latents"},
        ABSORBED
        | YARN
        | {
            "expert_gating_func": 2,
            "expert_weights_scale": 2.5,
            "expert_weights_norm": True,
            "rope.scaling.yarn_log_multiplier": 0.1,
        },
    ),
}

# Hybrid models: `delta`, `mamba` and `kimi` are what converters do with recurrences.
DELTA_KEYS = {
    "ssm.conv_kernel": 4,
    "ssm.state_size": 16,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 4,
    "ssm.inner_size": 64,
    "rope.dimension_count": 4,
}
QWEN_EXPERTS = {"expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 32}
GRANITE_KEYS = {
    "embedding_scale": 3.0,
    "logit_scale": 4.0,
    "residual_scale": 0.4,
    "attention.scale": 0.2,
    "attention.head_count_kv": [0, 2, 0, 0],
    "ssm.conv_kernel": 4,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 8,
}
QWEN = {"norms plus one", "delta"}
CASES |= {
    "qwen3-5": (
        "QWEN35",
        QWEN | {"tiled"},
        # Sections of positions in images are said, and not read.
        DELTA_KEYS | {"full_attention_interval": 4, "rope.dimension_sections": [1, 1, 0, 0]},
    ),
    # As files with layers that guess further tokens say it.
    "qwen3-5-moe": (
        "QWEN35MOE",
        QWEN | {"tiled", "experts"},
        DELTA_KEYS
        | QWEN_EXPERTS
        | {
            "attention.recurrent_layers": [True, True, True, False, False],
            "nextn_predict_layers": 1,
            "block_count": 5,
            "feed_forward_length": None,
        },
    ),
    # The first layer as early converters wrote it, the others as later ones did.
    "qwen3-next": ("QWEN3NEXT", QWEN | {"apart", "experts"}, DELTA_KEYS | QWEN_EXPERTS),
    "lfm2": (
        "LFM2",
        {"delta"},
        {
            "shortconv.l_cache": 3,
            "attention.head_count_kv": [0, 0, 2, 0],
            "feed_forward_length": 64,
        },
    ),
    "lfm2-moe": (
        "LFM2MOE",
        {"delta", "experts"},
        {
            "shortconv.l_cache": 4,
            "attention.head_count_kv": [0, 2, 0, 0],
            "expert_feed_forward_length": 32,
            "leading_dense_block_count": 1,
            "expert_gating_func": 2,
            "expert_weights_scale": 1.5,
        },
    ),
    "granite-hybrid": (
        "GRANITE_HYBRID",
        {"mamba", "pairs", "dense"},
        GRANITE_KEYS
        | {
            "ssm.group_count": 2,
            "ssm.inner_size": 128,
            "rope.scaling.finetuned": True,
            "feed_forward_length": 32,
        },
    ),
    "granite-hybrid-moe": (
        "GRANITE_HYBRID",
        {"mamba", "pairs", "split experts"},
        GRANITE_KEYS
        | {
            "ssm.group_count": 1,
            "ssm.inner_size": 64,
            "rope.scaling.finetuned": False,
            "expert_shared_feed_forward_length": 64,
        },
    ),
    "nemotron-h": (
        "NEMOTRON_H",
        {"mamba"},
        {
            "attention.head_count_kv": [0, 0, 0, 2, 0],
            "feed_forward_length": [0, 96, 0, 0, 96],
            "ssm.conv_kernel": 4,
            "ssm.state_size": 16,
            "ssm.time_step_rank": 8,
            "ssm.group_count": 2,
            "ssm.inner_size": 128,
        },
    ),
    "nemotron-h-moe": (
        "NEMOTRON_H_MOE",
        {"mamba", "experts"},
        NEMOTRON_KEYS
        | {
            "attention.head_count_kv": [0, 0, 0, 2, 0],
            "feed_forward_length": [0, 32, 0, 0, 32],
            "expert_shared_feed_forward_length": 64,
            "expert_feed_forward_length": 32,
            "expert_group_count": 2,
            "expert_group_used_count": 1,
        },
    ),
    "nemotron-h-latent": (
        "NEMOTRON_H_MOE",
        {"mamba", "experts"},
        NEMOTRON_KEYS
        | {
            "attention.head_count_kv": [0, 0, 2, 0],
            "feed_forward_length": [0, 24, 0, 24],
            "expert_shared_feed_forward_length": 40,
            "expert_feed_forward_length": 24,
            "moe_latent_size": 16,
        },
    ),
    "falcon-h1-norm": (
        "FALCON_H1",
        {"mamba"},
        {
            "ssm.conv_kernel": 4,
            "ssm.state_size": 16,
            "ssm.time_step_rank": 8,
            "ssm.group_count": 2,
            "ssm.inner_size": 64,
        },
    ),
    "jamba": (
        "JAMBA",
        {"selective", "experts"},
        {
            "attention.head_count_kv": [0, 0, 2, 0],
            "ssm.conv_kernel": 4,
            "ssm.state_size": 8,
            "ssm.time_step_rank": 8,
            "ssm.inner_size": 64,
        },
    ),
    "mamba": (
        "MAMBA",
        {"selective"},
        {
            "attention.head_count": 0,
            "attention.head_count_kv": None,
            "feed_forward_length": 0,
            "ssm.conv_kernel": 4,
            "ssm.state_size": 8,
            "ssm.time_step_rank": 8,
            "ssm.inner_size": 64,
            "ssm.dt_b_c_rms": False,
        },
    ),
    # Falcon Mamba is a Mamba whose file says that what it selects is normed.
    "falcon-mamba": (
        "MAMBA",
        {"selective"},
        {
            "attention.head_count": 0,
            "attention.head_count_kv": None,
            "feed_forward_length": 0,
            "ssm.conv_kernel": 3,
            "ssm.state_size": 16,
            "ssm.time_step_rank": 8,
            "ssm.inner_size": 64,
            "ssm.dt_b_c_rms": True,
        },
    ),
    "kimi-linear": (
        "KIMI_LINEAR",
        {"kimi", "experts", "split latents"},
        {
            "attention.head_count_kv": [0, 0, 1, 0],
            "attention.key_length": 40,
            "attention.key_length_mla": 40,
            "attention.value_length_mla": 16,
            "attention.kv_lora_rank": 32,
            "rope.dimension_count": 8,
            "kda.head_dim": 32,
            "ssm.conv_kernel": 4,
            "expert_feed_forward_length": 32,
            "expert_shared_count": 1,
            "expert_group_count": 2,
            "expert_group_used_count": 1,
            "expert_weights_scale": 1.5,
            "leading_dense_block_count": 1,
        },
    ),
    "rwkv7": (
        "RWKV7",
        {"rwkv"},
        {
            "attention.head_count": 0,
            "attention.head_count_kv": None,
            "context_length": 1 << 20,
            "wkv.head_size": 16,
            "attention.decay_lora_rank": 8,
            "attention.iclr_lora_rank": 16,
            "attention.value_residual_mix_lora_rank": 24,
            "attention.gate_lora_rank": 32,
        },
    ),
    "mamba2": (
        "MAMBA2",
        {"mamba"},
        {
            "attention.head_count": 0,
            "attention.head_count_kv": None,
            "feed_forward_length": 0,
            "ssm.conv_kernel": 4,
            "ssm.state_size": 16,
            "ssm.time_step_rank": 8,
            "ssm.group_count": 2,
            "ssm.inner_size": 64,
        },
    ),
}


# Projections to latents and from them, in RWKV-7.
RANKED = {f"{letter}{i}" for letter in "wavg" for i in (1, 2)}


def tiled(x, n_keys, n_values, axis=0):
    """The value heads of a key head, neighbours so far, lie as far apart as there are key heads."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    heads = x.reshape(*before, n_keys, n_values // n_keys, -1, *after)
    return heads.swapaxes(axis, axis + 1).reshape(x.shape)


def recurrences(state, orders, keys):
    """Tensors of layers with a state, by the names from which converters derive theirs."""
    out = {}
    n_keys, n_values = keys.get("ssm.group_count"), keys.get("ssm.time_step_rank")
    for name, x in state.items():
        name = name.replace("model.language_model.", "model.")
        stem, _, part = name.partition(".linear_attn.")
        if name.endswith((".conv1d.weight", ".conv.conv.weight")):
            x = x.squeeze(1)
        if part and "tiled" in orders:
            if part in ("in_proj_qkv.weight", "conv1d.weight"):
                cut = x.shape[0] - keys["ssm.inner_size"]
                x = np.concatenate([x[:cut], tiled(x[cut:], n_keys, n_values)])
            elif part == "out_proj.weight":
                x = tiled(x, n_keys, n_values, axis=1)
            elif part != "norm.weight":
                x = tiled(x, n_keys, n_values)
        if part == "in_proj_qkvz.weight" and "apart" in orders and not stem.endswith(".0"):
            heads = x.reshape(n_keys, -1, x.shape[1])
            dim, values = keys["ssm.state_size"], keys["ssm.inner_size"] // n_keys
            q, k, v, z = np.split(heads, np.cumsum([dim, dim, values]), axis=1)
            qkv = [rows.reshape(-1, x.shape[1]) for rows in (q, k, v)]
            out[f"{stem}.linear_attn.in_proj_qkv.weight"] = np.concatenate(qkv)
            out[f"{stem}.linear_attn.in_proj_z.weight"] = z.reshape(-1, x.shape[1])
            continue
        if "kimi" in orders and name.endswith("_conv1d.weight"):
            x = x[None]
        if "mamba" in orders and name.endswith((".A_log", ".D")):
            x = x.reshape(-1, 1)
        if "mamba" in orders and name.endswith((".mamba.norm.weight", ".mixer.norm.weight")):
            x = x.reshape(n_keys, -1)
        for w, usual in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
            if ".feed_forward.experts." in name:
                name = name.replace(f".{w}.", f".{usual}.")
        if name.endswith(".expert_bias"):
            name = name.replace("expert_bias", "expert_bias.bias")
        if ".mixer.experts." in name:
            name = name.replace("backbone.", "model.").replace(".mixer.", ".mlp.")
        name = name.replace(".dt_bias", ".dt_proj.bias")
        if name.endswith((".A_log", ".D")):
            name += ".weight"
        if "dense" in orders and name.endswith("shared_mlp.input_linear.weight"):
            for half, y in zip(("gate_proj", "up_proj"), np.split(x, 2)):
                out[name.replace("shared_mlp.input_linear", f"mlp.{half}")] = y
            continue
        if "dense" in orders:
            name = name.replace("shared_mlp.output_linear", "mlp.down_proj")
        out[name] = x
    return out


def gemma3n(state):
    """Names without those of the model around the text; projections of streams in one tensor."""
    out, apart = {}, {}
    for name, x in state.items():
        name = name.replace("model.language_model.", "model.")
        stem, _, after = name.partition("_projections.")
        if after:
            apart.setdefault(f"{stem}_projections.weight", []).append(x)
        else:
            out[f"{name}.weight" if name.endswith("_scale") else name] = x
    return out | {name: np.stack(list) for name, list in apart.items()}


def gemma4(state):
    """Names without those of the model around the text; a factor of a layer is a weight."""
    out = {}
    for name, x in state.items():
        name = name.replace("model.language_model.", "model.")
        if name.endswith("layer_scalar") or ".experts." in name:
            name += ".weight"
        # The factors of a router's input and output are the scales of matrices.
        name = name.replace(".router.scale", ".router.proj.scale")
        out[name.replace(".router.per_expert_scale", ".experts.down_proj.scale")] = x
    return out


def time_mixes(state):
    """Tensors of RWKV-7, by the names from which converters derive theirs."""
    parts = {"attn": "attention", "ffn": "feed_forward"}
    parts |= {"attn_norm": "attention_norm", "ffn_norm": "ln2"}
    ends = {"0.weight": "1", "2.weight": "2", "2.bias": "0"}
    out = {}
    for name, x in state.items():
        words = name.split(".")
        if words[1] != "layers":
            out[name] = x
            continue
        words[3] = parts.get(words[3], words[3])
        if words[4] == "x_g":
            mixes = [state[name.replace("x_g", f"x_{letter}")] for letter in "rwkvag"]
            out[f"blk.{words[2]}.time_mix_lerp_fused.weight"] = np.stack(mixes)
            continue
        if words[3] == "attention" and words[4].startswith("x_"):
            continue
        if words[4].endswith("_lora"):
            words[4:] = [words[4][0] + ends[".".join(words[6:])]]
        words[4] = "ln_x" if words[4] == "g_norm" else words[4]
        words += [] if words[-1] in ("weight", "bias") else ["weight"]
        name, x = ".".join(words), x.squeeze()
        if words[4] == "r_k":
            x = x.flatten()
        if words[2] == "0" and words[4] in ("a0", "a1", "a2"):
            # Readers look for what the first layer does not have, and leave it alone.
            out[name.replace(f".{words[4]}.", f".v{words[4][1]}.")] = x
        out[name] = x
    return out


def in_pairs(rows, n_heads):
    """Halves of each head become pairs of neighbours."""
    heads = rows.reshape(n_heads, 2, -1, *rows.shape[1:])
    return heads.swapaxes(1, 2).reshape(rows.shape)


def split_groups(fused, n_heads, n_kv_heads):
    head_dim = fused.shape[0] // (n_heads + 2 * n_kv_heads)
    groups = fused.reshape(n_kv_heads, n_heads // n_kv_heads + 2, head_dim, *fused.shape[1:])
    parts = groups[:, :-2], groups[:, -2], groups[:, -1]
    return [part.reshape(-1, *fused.shape[1:]) for part in parts]


def stack_experts(state, orders):
    """One tensor for all experts of a projection, gate and up apart."""
    out, apart = {}, {}
    for name, x in state.items():
        name = name.removeprefix("language_model.").replace("correction_bias", "correction.bias")
        before, _, after = name.partition(".experts.")
        if "experts" in orders and after:
            apart.setdefault(f"{before}.experts.{after.partition('.')[2]}", []).append(x)
        elif "split experts" in orders and "input_linear" in name:
            # As converters call what they split.
            stem = name.replace("input_linear.weight", "")
            if "shared_mlp" in stem:
                stem = stem.replace("shared_mlp", "mlp.shared_experts")
                names = ("gate_proj", "up_proj")
            else:
                names = ("experts.w1", "experts.w3")
            for half, y in zip(names, np.split(x, 2, axis=-2)):
                out[f"{stem}{half}.weight"] = y
        elif "interleaved experts" in orders and after.endswith("_blocks"):
            exponents = state[name.replace("_blocks", "_scales")][..., None]
            x = np.concatenate([exponents, x], -1)
            split_interleaved(out, f"{before}.experts.{after.removesuffix('_blocks')}", x, "weight")
        elif after.endswith("_scales"):
            continue
        elif "interleaved experts" in orders and after.endswith("_bias"):
            split_interleaved(out, f"{before}.experts.{after.removesuffix('_bias')}", x, "bias")
        elif "interleaved experts" in orders and after:
            split_interleaved(out, f"{before}.experts.{after}", x.swapaxes(1, 2), "weight")
        elif "transposed experts" in orders and after:
            x = x.swapaxes(1, 2)
            if after == "gate_up_proj":
                for half, y in zip(("gate", "up"), np.split(x, 2, axis=1)):
                    out[f"{before}.experts.{half}_proj.weight"] = y
            else:
                out[f"{name}.weight"] = x
        else:
            out[name if name.endswith((".weight", ".bias")) else f"{name}.weight"] = x
    return out | {name: np.stack(list) for name, list in apart.items()}


def split_interleaved(out, name, x, kind):
    if "gate_up_proj" not in name:
        out[f"{name}.{kind}"] = x
        return
    for i, half in enumerate(("gate", "up")):
        out[f"{name.replace('gate_up', half)}.{kind}"] = x[:, i::2]


def convert(state, orders, n_heads, n_kv_heads):
    """The tensors as converters order them."""
    out = {}
    for name, x in state.items():
        layer, part = name.rsplit(".", 2)[0], name.rsplit(".", 2)[1]
        kind = name.rsplit(".", 1)[1]
        if "transposed" in orders and x.ndim == 2 and ".h." in name:
            x = x.T
        if "split groups" in orders and part == "wqkv":
            split = split_groups(x, n_heads, n_kv_heads)
            prefix = layer.replace(".attention", ".self_attn")
            for letter, y in zip("qkv", split):
                n = n_heads if letter == "q" else n_kv_heads
                y = y if letter == "v" else in_pairs(y, n)
                out[f"{prefix}.{letter}_proj.{kind}"] = y
            continue
        if "stack groups" in orders and part == "query_key_value":
            x = np.concatenate(split_groups(x, n_heads, n_kv_heads))
        if "pairs" in orders and part in ("q_proj", "k_proj"):
            x = in_pairs(x, n_heads if part == "q_proj" else n_kv_heads)
        out[name] = x
    if "split latents" in orders:
        for name in [name for name in out if ".kv_b_proj." in name]:
            heads = out.pop(name)
            heads = heads.reshape(n_heads, -1, *heads.shape[1:])
            k, v = np.split(heads, [32], axis=1)
            out[name.replace("kv_b", "k_b")] = k.swapaxes(1, 2)
            out[name.replace("kv_b", "v_b")] = v
    if "heads together" in orders:
        for layer in range(3):
            for letter, n in (("q", n_heads), ("k", n_kv_heads)):
                stem = f"model.layers.{layer}.self_attn.{letter}_layernorm"
                heads = [out.pop(f"{stem}.norms.{head}.weight") for head in range(n)]
                out[f"{stem}.weight"] = np.stack(heads)
    return out


def folded(name, orders):
    """What is done to the elements of a tensor, besides their order."""
    part, kind = name.split(".")[-2:]
    then = []
    if part == "A_log":
        then.append(["exp", -1.0])
    is_gated = name.endswith("linear_attn.norm.weight")
    if "norms plus one" in orders and "norm" in name and kind == "weight" and not is_gated:
        then.append(["add", 1.0])
    if "q by 24" in orders and part == "q_proj" or "q norm by 24" in orders and part == "q_norm":
        then.append(["multiply", (16 / 24) ** 0.5])
    return then


def main():
    (HERE / "gguf").mkdir(exist_ok=True)
    for name in sys.argv[1:] or list(CASES):
        arch, orders, keys = CASES[name]
        config = json.loads((HERE / name / "config.json").read_text())
        config = config.get("text_config", config)

        def field(*names, default=None):
            found = (config[name] for name in names if config.get(name) is not None)
            return next(found, default)

        n_heads = field("num_attention_heads", "n_head", default=1)
        n_kv_heads = field("num_key_value_heads", "num_kv_heads", default=n_heads)
        if config.get("multi_query") and not config.get("new_decoder_architecture"):
            n_kv_heads = 1
        hidden = field("hidden_size", "n_embd")
        layers = config.get("layers_block_type", [])
        n_layers = field("num_hidden_layers", "n_layer", default=len(layers))
        head_dim = field("head_dim", default=hidden // n_heads)
        checkpoint = Checkpoint(HERE / name)
        state = checkpoint.state
        if orders & {"delta", "mamba", "selective", "kimi"}:
            state = recurrences(state, orders, keys)
        if "gemma3n" in orders:
            state = gemma3n(state)
        if "gemma4" in orders:
            state = gemma4(state)
        if "rwkv" in orders:
            state = time_mixes(state)
        if any("experts" in order for order in orders):
            state = stack_experts(state, orders)
        state = convert(state, orders, n_heads, n_kv_heads)

        kind = gguf.MODEL_ARCH[arch]
        recipe = Recipe(checkpoint, gguf.MODEL_ARCH_NAMES[kind])
        writer = recipe.writer
        heads = {key: keys.pop(f"attention.{key}") for key in ("head_count", "head_count_kv") if f"attention.{key}" in keys}
        usual_ffn = field("intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_hidden_size", default=4 * hidden)
        ffn = keys.pop("feed_forward_length", usual_ffn)
        context = field("max_position_embeddings", "model_max_length", "n_positions", default=2048)
        writer.add_context_length(keys.pop("context_length", context))
        writer.add_embedding_length(hidden)
        writer.add_block_count(keys.pop("block_count", n_layers))
        if ffn is not None:
            writer.add_feed_forward_length(ffn)
        writer.add_head_count(heads.get("head_count", n_heads))
        if (n := heads.get("head_count_kv", n_kv_heads)) is not None:
            writer.add_head_count_kv(n)
        without = ("DEEPSEEK2", "MINICPM3", "MAMBA2", "KIMI_LINEAR", "RWKV7")
        if head_dim != hidden // n_heads and arch not in without:
            writer.add_key_length(head_dim)
            writer.add_value_length(head_dim)
        rms_eps = [key for key in ("rms_norm_eps", "norm_eps", "layer_norm_epsilon") if key in config]
        if rms_eps and (rms_eps == ["rms_norm_eps"] or orders & {"delta", "mamba", "selective"}):
            writer.add_layer_norm_rms_eps(config[rms_eps[0]])
        else:
            writer.add_layer_norm_eps(config[rms_eps[0]] if "rwkv" in orders else 1e-5)
        if config.get("rope_parameters"):
            rope = config["rope_parameters"]
            writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
        for key in ("attn_logit_softcapping", "final_logit_softcapping"):
            if config.get(key):
                writer.add_float32(f"{writer.arch}.{key}", config[key])
        if config.get("sliding_window"):
            writer.add_sliding_window(config["sliding_window"])
        n_experts = field("num_local_experts", "num_experts", "n_routed_experts")
        # Configs of Nemotron-H count experts in models without any, too.
        if n_experts and "expert_count" not in keys and arch != "NEMOTRON_H":
            writer.add_expert_count(n_experts)
            used = field("num_experts_per_tok", "num_experts_per_token")
            if used is not None:
                writer.add_expert_used_count(used)
        for key, value in keys.items():
            add = {int: writer.add_uint32, float: writer.add_float32}
            add |= {str: writer.add_string, bool: writer.add_bool, list: writer.add_array}
            add[type(value)](f"{writer.arch}.{key}", value)
        if "rope factors" in orders:
            rope = config["rope_parameters"]
            for length in ("long", "short"):
                recipe.values(f"rope_factors_{length}.weight", rope[f"{length}_factor"])

        if "gemma4" in orders:
            n_pairs = keys["rope.dimension_count"] // 2
            turned = config["rope_parameters"]["full_attention"]["partial_rotary_factor"]
            n_turned = int(turned * n_pairs)
            recipe.values("rope_freqs.weight", [1.0] * n_turned + [1e30] * (n_pairs - n_turned))

        names = gguf.get_tensor_name_map(kind, n_layers)
        # Perceptrons between mixtures are called what they are everywhere.
        usual = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, n_layers)
        for key, x in state.items():
            stem, suffix = key.rsplit(".", 1)
            gguf_name = names.get_name(stem) or names.get_name(stem.removeprefix("transformer."))
            gguf_name = gguf_name or usual.get_name(stem)
            # Some names no checkpoint has.
            gguf_name = gguf_name or (stem if stem.startswith("blk.") else None)
            assert gguf_name, key
            if checkpoint.dtype(x) == "U8":
                recipe.mxfp4(f"{gguf_name}.{suffix}", x[..., 1:], x[..., 0])
                continue
            is_router = "ffn_gate_inp" in gguf_name
            x = x.squeeze() if is_router else x
            is_vector = gguf_name.endswith(("ssm_a", "ssm_d", "conv1d", "shortconv.conv"))
            is_vector = is_vector or "ssm_conv1d" in gguf_name or "lerp" in gguf_name
            # Latents are few, and stay as they are.
            is_vector = is_vector or gguf_name.rsplit("_", 1)[-1] in RANKED
            wide = is_router or is_vector or x.ndim < 2 or "_norm" in gguf_name
            written = gguf_name if gguf_name.endswith(("ssm_a", "ssm_d")) else f"{gguf_name}.{suffix}"
            recipe.tensor(written, x, folded(key, orders), wide)
        written = recipe.save(HERE / "gguf" / f"{name}.json")
        print(f"{name}: {len(written)} bytes")


if __name__ == "__main__":
    main()
