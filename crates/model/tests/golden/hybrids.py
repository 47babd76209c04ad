"""Golden fixtures of models that keep a state of constant size: recurrent and hybrid families.

`make.py` makes them with the others. What differs:

*   The prompt has 150 tokens, so that chunks of 64 positions begin within it.
*   Weights that set how long a state lasts are drawn so that what is kept from one token to the next
    lies between about 0.5 and 0.999, in every layer; norms that store their weight less one are drawn
    around zero.
*   Tensors are named and split as in the published checkpoints, by transformers' own conversion.
*   Seeds begin at a number of the case's own.
"""

import copy
import math
import zlib

import torch
import transformers
from transformers.core_model_loading import revert_weight_conversion

from fixtures import Draws

N_PROMPT = 150

SMALL = dict(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=256,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=None,
    tie_word_embeddings=False,
)
# Experts have many weights, so models with them are narrower.
NARROW = SMALL | dict(hidden_size=32, num_experts=6, num_local_experts=6, num_experts_per_tok=2)
# How much of a head turns; without a word on it, what the family does.
PLAIN = dict(rope_parameters=dict(rope_type="default", rope_theta=1e4))
PARTIAL = dict(rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5))
DELTA = dict(
    linear_conv_kernel_dim=4,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
)
# A value head that is not as wide as a key head.
UNEVEN = DELTA | dict(linear_value_head_dim=32, linear_num_key_heads=1, linear_num_value_heads=2)
MAMBA = dict(
    mamba_n_heads=8,
    mamba_d_head=16,
    mamba_n_groups=2,
    mamba_d_state=16,
    mamba_d_conv=4,
    mamba_expand=2,
    mamba_chunk_size=64,
)
PATTERN = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]


def without(fields, *names):
    return {name: value for name, value in fields.items() if name not in names}


def case(name, *bases, **fields):
    """Model class, config class and fields; `fields` override the bases."""
    fields = {key: value for base in bases for key, value in base.items()} | fields
    config = {"Qwen3_5": "Qwen3_5TextConfig", "Qwen3_5Moe": "Qwen3_5MoeTextConfig"}
    config = getattr(transformers, config.get(name, f"{name}Config"))
    # Configs write into the tables that they are given.
    return getattr(transformers, f"{name}ForCausalLM"), config, copy.deepcopy(fields)


NEMOTRON_EXPERTS = without(SMALL, "num_hidden_layers") | dict(
    hidden_size=32,
    mamba_num_heads=8,
    mamba_head_dim=8,
    n_groups=2,
    ssm_state_size=16,
    chunk_size=64,
    n_routed_experts=8,
    routed_scaling_factor=2.5,
)

CASES = {
    "qwen3-next": case(
        "Qwen3Next",
        without(NARROW, "num_local_experts"),
        DELTA,
        # A fourth of a head turns, which is what the family does unless told otherwise.
        PLAIN,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
    ),
    "qwen3-next-dense": case(
        "Qwen3Next",
        without(NARROW, "num_local_experts"),
        UNEVEN,
        PARTIAL,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=64,
        decoder_sparse_step=2,
        mlp_only_layers=[1],
        norm_topk_prob=False,
        full_attention_interval=2,
        tie_word_embeddings=True,
    ),
    "qwen3-5": case(
        "Qwen3_5", SMALL, DELTA, PLAIN, intermediate_size=64, tie_word_embeddings=True
    ),
    "qwen3-5-moe": case(
        "Qwen3_5Moe",
        without(NARROW, "num_local_experts", "intermediate_size"),
        DELTA,
        PLAIN,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
    ),
    "mamba": case(
        "Mamba",
        without(
            SMALL,
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "max_position_embeddings",
        ),
        state_size=8,
        hidden_size=32,
        num_hidden_layers=3,
        time_step_rank=8,
        tie_word_embeddings=True,
    ),
    "falcon-mamba": case(
        "FalconMamba",
        without(
            SMALL,
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "max_position_embeddings",
        ),
        state_size=16,
        hidden_size=32,
        num_hidden_layers=2,
        time_step_rank=8,
        use_bias=True,
        use_conv_bias=False,
        conv_kernel=3,
        tie_word_embeddings=True,
    ),
    "mamba2": case(
        "Mamba2",
        without(
            SMALL,
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "max_position_embeddings",
        ),
        num_heads=8,
        head_dim=8,
        n_groups=2,
        state_size=16,
        hidden_size=32,
        chunk_size=64,
        use_bias=True,
    ),
    "lfm2": case(
        "Lfm2",
        without(SMALL, "head_dim"),
        PLAIN,
        conv_L_cache=3,
        # Two thirds of it, rounded up.
        intermediate_size=80,
        block_multiple_of=32,
        layer_types=["conv", "conv", "full_attention", "conv"],
        tie_word_embeddings=True,
    ),
    "lfm2-moe": case(
        "Lfm2Moe",
        without(NARROW, "head_dim", "num_local_experts"),
        PLAIN,
        conv_L_cache=4,
        conv_bias=True,
        num_dense_layers=1,
        moe_intermediate_size=32,
        layer_types=["conv", "full_attention", "conv", "conv"],
        routed_scaling_factor=1.5,
        tie_word_embeddings=True,
    ),
    "granite-hybrid": case(
        "GraniteMoeHybrid",
        without(SMALL, "head_dim", "intermediate_size"),
        MAMBA,
        num_local_experts=0,
        num_experts_per_tok=0,
        shared_intermediate_size=32,
        layer_types=PATTERN,
        position_embedding_type="rope",
        embedding_multiplier=3.0,
        logits_scaling=4.0,
        residual_multiplier=0.4,
        attention_multiplier=0.2,
        tie_word_embeddings=True,
    ),
    "granite-hybrid-moe": case(
        "GraniteMoeHybrid",
        without(NARROW, "head_dim", "num_experts"),
        MAMBA,
        intermediate_size=32,
        mamba_d_head=8,
        mamba_n_groups=1,
        shared_intermediate_size=64,
        layer_types=PATTERN,
        embedding_multiplier=3.0,
        logits_scaling=4.0,
        residual_multiplier=0.4,
        attention_multiplier=0.2,
    ),
    "bamba": case(
        "Bamba",
        without(SMALL, "head_dim"),
        MAMBA,
        # Half of a head turns, whatever the file says.
        PLAIN,
        hidden_size=32,
        mamba_d_head=8,
        mamba_conv_bias=False,
        attn_layer_indices=[1],
    ),
    "falcon-h1": case(
        "FalconH1",
        SMALL,
        MAMBA,
        PLAIN,
        hidden_size=32,
        mamba_d_ssm=64,
        mamba_d_head=8,
        num_hidden_layers=2,
        intermediate_size=64,
        embedding_multiplier=2.0,
        lm_head_multiplier=0.5,
        mlp_multipliers=[0.75, 1.25],
        key_multiplier=0.625,
        attention_in_multiplier=0.875,
        attention_out_multiplier=1.125,
        ssm_multipliers=[0.5, 0.75, 1.25, 1.5, 0.625],
        ssm_in_multiplier=1.375,
        ssm_out_multiplier=0.6875,
    ),
    "falcon-h1-norm": case(
        "FalconH1",
        SMALL,
        MAMBA,
        PLAIN,
        hidden_size=32,
        mamba_d_ssm=64,
        mamba_d_head=8,
        num_hidden_layers=2,
        intermediate_size=64,
        mamba_rms_norm=True,
        mamba_norm_before_gate=False,
        mamba_proj_bias=True,
        tie_word_embeddings=True,
    ),
    # The gate comes last, and every projection has a bias beside its factor.
    "falcon-h1-bias": case(
        "FalconH1",
        SMALL,
        MAMBA,
        PLAIN,
        hidden_size=32,
        mamba_d_ssm=48,
        mamba_d_head="auto",
        intermediate_size=48,
        num_hidden_layers=2,
        mamba_rms_norm=True,
        mamba_norm_before_gate=True,
        mamba_conv_bias=False,
        mamba_proj_bias=True,
        projectors_bias=True,
        attention_bias=True,
        mlp_bias=True,
        time_step_limit=(0.0, 0.25),
        tie_word_embeddings=True,
        mlp_multipliers=[0.75, 1.25],
        key_multiplier=0.625,
        attention_in_multiplier=0.875,
        attention_out_multiplier=1.125,
        ssm_multipliers=[0.5, 0.75, 1.25, 1.5, 0.625],
        ssm_in_multiplier=1.375,
        ssm_out_multiplier=0.6875,
    ),
    "nemotron-h": case(
        "NemotronH",
        without(SMALL, "num_hidden_layers"),
        mamba_num_heads=8,
        mamba_head_dim=16,
        n_groups=2,
        ssm_state_size=16,
        chunk_size=64,
        hybrid_override_pattern="M-M*-",
    ),
    "nemotron-h-moe": case(
        "NemotronH",
        NEMOTRON_EXPERTS,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        moe_intermediate_size=32,
        moe_shared_expert_intermediate_size=64,
        hybrid_override_pattern="MEM*E",
    ),
    "nemotron-h-latent": case(
        "NemotronH",
        NEMOTRON_EXPERTS,
        num_experts_per_tok=3,
        moe_intermediate_size=24,
        moe_shared_expert_intermediate_size=40,
        moe_latent_size=16,
        hybrid_override_pattern="ME*E",
    ),
    "jamba": case(
        "Jamba",
        without(NARROW, "head_dim", "num_local_experts"),
        num_experts=4,
        intermediate_size=32,
        attn_layer_period=4,
        attn_layer_offset=2,
        expert_layer_period=2,
        expert_layer_offset=1,
        mamba_d_state=8,
        mamba_dt_rank=8,
    ),
    "minimax": case(
        "MiniMax",
        without(NARROW, "num_experts"),
        PLAIN,
        intermediate_size=32,
        block_size=64,
        layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"],
        full_attn_alpha_factor=1.5,
        full_attn_beta_factor=0.75,
        linear_attn_alpha_factor=1.25,
        linear_attn_beta_factor=0.875,
        mlp_alpha_factor=1.375,
        mlp_beta_factor=1.125,
    ),
    "olmo-hybrid": case(
        "OlmoHybrid",
        SMALL,
        DELTA,
        hidden_size=32,
        linear_value_head_dim=32,
        # Nothing turns, as in the published models.
        rope_parameters=dict(rope_type="default", rope_theta=None),
    ),
    "kimi-linear": case(
        "KimiLinear",
        without(NARROW, "num_experts", "head_dim"),
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=64,
        moe_intermediate_size=32,
        n_shared_experts=1,
        kv_lora_rank=32,
        qk_rope_head_dim=8,
        qk_nope_head_dim=32,
        v_head_dim=16,
        n_group=2,
        topk_group=1,
        routed_scaling_factor=1.5,
        # Latents of gates are as wide, and whole blocks of quantized formats.
        linear_head_dim=32,
        linear_num_heads=2,
        layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"],
        mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
    ),
}

def with_old_rope(config):
    """The fields that the table of rotations had before there was one."""
    parameters = config.pop("rope_parameters")
    del parameters["rope_type"]
    return config | parameters | dict(rope_scaling=None)


def to_interval(config, state):
    del config["layer_types"]
    return with_old_rope(config) | dict(full_attention_interval=2), state


def to_nested(config, state):
    """As the published checkpoints have text models: inside of one that also sees."""
    outer = dict(
        architectures=["Qwen3_5MoeForConditionalGeneration"],
        model_type="qwen3_5_moe",
        tie_word_embeddings=config["tie_word_embeddings"],
    )
    state = {
        key.replace("model.", "model.language_model.", 1): value for key, value in state.items()
    }
    return outer | dict(text_config=config), state


def to_old_lfm2(config, state):
    del config["layer_types"], config["tie_word_embeddings"]
    old = dict(
        full_attn_idxs=[2], block_ff_dim=config.pop("intermediate_size"), tie_embedding=True
    )
    return with_old_rope(config) | old, state


def to_old_granite(config, state):
    del config["time_step_limit"]
    kinds = {"linear_attention": "mamba", "full_attention": "attention"}
    config["layer_types"] = [kinds[kind] for kind in config["layer_types"]]
    return with_old_rope(config) | dict(position_embedding_type="nope"), state


def to_pattern(config, state):
    del config["layers_block_type"], config["time_step_limit"]
    return config | dict(hybrid_override_pattern="MEM*E", num_hidden_layers=5), state


def without_factor(config, state):
    """Published models do not say how much of a head turns."""
    del config["rope_parameters"]["partial_rotary_factor"]
    return config, state


def without_tables(config, state):
    """The decays follow from the number of heads and layers."""
    tables = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
    return config, {key: x for key, x in state.items() if not key.endswith(tables)}


def to_olmo_names(config, state):
    """Only layers with a state have other names for their norms."""
    layers = {key.split(".self_attn.")[0] for key in state if ".self_attn." in key}
    out = {}
    for key, x in state.items():
        if key.rsplit(".", 2)[0] in layers:
            key = key.replace("feedforward_layer_norm", "post_attention_layernorm")
        out[key] = x
        if key.endswith(".v_conv1d.weight"):
            # The three are cut out of one as if they were equally long.
            names = [key.replace("v_conv1d", f"{part}_conv1d") for part in "qkv"]
            keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
            values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
            whole = torch.cat([out[name] for name in names])
            parts = whole.split([keys, keys, values])
            out |= {name: part.clone() for name, part in zip(names, parts)}
    return config, out


def to_old_kimi(config, state):
    kinds = config.pop("layer_types")
    n_dense = config.pop("mlp_layer_types").count("dense")
    del config["qk_head_dim"], config["head_dim"]
    linear = dict(
        # Layers are numbered from one.
        full_attn_layers=[i + 1 for i, kind in enumerate(kinds) if kind == "full_attention"],
        kda_layers=[i + 1 for i, kind in enumerate(kinds) if kind == "linear_attention"],
        head_dim=config.pop("linear_head_dim"),
        num_heads=config.pop("linear_num_heads"),
        short_conv_kernel_size=config.pop("linear_conv_kernel_dim"),
    )
    config |= dict(
        linear_attn_config=linear,
        first_k_dense_replace=n_dense,
        moe_layer_freq=1,
        moe_router_activation_func="sigmoid",
        use_grouped_topk=True,
        mla_use_nope=True,
    )
    dense = tuple(f"model.layers.{i}.block_sparse_moe." for i in range(n_dense))
    names = {key: key.replace("block_sparse_moe", "mlp") for key in state if key.startswith(dense)}
    return config, {names.get(key, key): x for key, x in state.items()}


# Some as published before transformers had names for all families alike.
REWRITTEN = {
    "qwen3-next-dense": to_interval,
    "qwen3-5-moe": to_nested,
    "lfm2": to_old_lfm2,
    "granite-hybrid-moe": to_old_granite,
    "nemotron-h-moe": to_pattern,
    "bamba": without_factor,
    "minimax": without_tables,
    "olmo-hybrid": to_olmo_names,
    "kimi-linear": to_old_kimi,
}


def first_seed(name):
    return zlib.crc32(name.encode()) % 1_000_000


def is_less_one(module):
    """Whether the norm stores its weight less one."""
    name = type(module).__name__
    return name.startswith(("Qwen3NextRMSNorm", "Qwen3_5RMSNorm", "Qwen3_5MoeRMSNorm")) and not (
        name.endswith("Gated")
    )


def fill(model, draws):
    """Draws every weight."""
    for name, buffer in model.named_buffers():
        if name.endswith(("correction_bias", "expert_bias")):
            draws.spread(buffer, 0.1)
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if name == "dt_bias" or (module_name.endswith("dt_proj") and name == "bias"):
                # Steps from 0.03 to 0.5.
                draws.uniform(parameter, -3.5, -0.5)
            elif name == "A_log":
                draws.uniform(parameter, math.log(0.08), math.log(1.5))
            elif name == "e_score_correction_bias":
                draws.spread(parameter, 0.1)
            elif name.endswith("bias"):
                draws.spread(parameter, 0.3)
            elif is_less_one(module):
                draws.uniform(parameter, -0.5, 0.5)
            elif parameter.dim() == 1:
                draws.uniform(parameter, 0.5, 1.5)
            elif isinstance(module, torch.nn.Embedding):
                # A tied head must not simply see the token that came in.
                draws.spread(parameter, 0.2 if model.config.tie_word_embeddings else 1.0)
            elif isinstance(module, torch.nn.Conv1d):
                draws.spread(parameter, 0.6)
            else:
                draws.spread(parameter, 0.9 / parameter.shape[-1] ** 0.5)


def make_model(model_class, config, seed):
    torch.manual_seed(seed)
    model, draws = model_class(config).eval(), Draws(seed)
    with torch.no_grad():
        fill(model, draws)
    return model, draws


def published(model):
    """The tensors, as the published checkpoints name and split them."""
    state = revert_weight_conversion(model, dict(model.state_dict()))
    # Parts of one tensor would share its memory.
    return {name: tensor.clone() for name, tensor in state.items()}
