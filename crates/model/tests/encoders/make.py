"""Makes the fixtures of encoders: tiny random checkpoints, and reference vectors of texts.

    python crates/model/tests/encoders/make.py [name ..]

Run `make_gguf.py` afterwards.

Each fixture is a folder:

    config.json            as transformers writes it, or as the published checkpoints spell it
    weights.json           bf16 weights, drawn from a seed; `stored.py` has the format
    reference.safetensors  `tokens` i32 [m]: those of all texts; `lengths` i32 [n]; `hidden` f32 [m, 64];
                           and by kind of pooling f32 [n, 64], by the formulas of sentence-transformers

The reference is computed in f32 with eager attention from the bf16 weights, each text alone.
"""

import json
import pathlib
import sys

import torch
import transformers as t

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from fixtures import Draws, wanted, write

VOCAB = 256
LENGTHS = [1, 7, 40, 19]

BASE = dict(
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    max_position_embeddings=64,
    bos_token_id=0,
    eos_token_id=2,
    pad_token_id=1,
)
DISTIL = dict(
    vocab_size=VOCAB, dim=64, hidden_dim=96, n_layers=3, n_heads=4, max_position_embeddings=64
)
MODERN = dict(local_attention=16, num_hidden_layers=4, cls_token_id=0, sep_token_id=2)

# name: (model class, config class, config fields)
CASES = {
    "bert": (t.BertModel, t.BertConfig, BASE | dict(pad_token_id=0)),
    "roberta": (t.RobertaModel, t.RobertaConfig, BASE | dict(type_vocab_size=1)),
    "xlm-roberta": (
        t.XLMRobertaModel,
        t.XLMRobertaConfig,
        BASE | dict(pad_token_id=5, type_vocab_size=1, hidden_act="gelu_new"),
    ),
    "distilbert": (t.DistilBertModel, t.DistilBertConfig, DISTIL),
    "modernbert": (t.ModernBertModel, t.ModernBertConfig, BASE | MODERN),
    # Decoders that were made to see the whole text.
    "embedding-gemma": (
        t.Gemma3TextModel,
        t.Gemma3TextConfig,
        BASE
        | dict(
            num_key_value_heads=1,
            head_dim=16,
            sliding_window=16,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            use_bidirectional_attention=True,
        ),
    ),
    "gte-qwen2": (
        t.Qwen2Model,
        t.Qwen2Config,
        BASE | dict(num_key_value_heads=2, is_causal=False),
    ),
    "nomic-bert": (t.NomicBertModel, t.NomicBertConfig, BASE | dict(pad_token_id=0)),
}


def to_published_nomic(config, state):
    """The names of the published checkpoints, which transformers converts when it reads them."""
    names = {
        "embeddings.LayerNorm": "emb_ln",
        "self_attn.o_proj": "attn.out_proj",
        "mlp.up_proj": "mlp.fc11",
        "mlp.gate_proj": "mlp.fc12",
        "mlp.down_proj": "mlp.fc2",
        "post_attention_layernorm": "norm1",
        "post_mlp_layernorm": "norm2",
    }
    for layer in range(config["num_hidden_layers"]):
        stem = f"layers.{layer}"
        qkv = [state.pop(f"{stem}.self_attn.{x}_proj.weight") for x in "qkv"]
        state[f"{stem}.attn.Wqkv.weight"] = torch.cat(qkv)
    for old, new in names.items():
        state = {key.replace(old, new): value for key, value in state.items()}
    state = {("encoder." + k if k.startswith("layers.") else k): v for k, v in state.items()}
    config = dict(
        architectures=["NomicBertModel"],
        model_type="nomic_bert",
        n_embd=64,
        n_head=4,
        n_inner=96,
        n_layer=config["num_hidden_layers"],
        n_positions=64,
        activation_function="swiglu",
        layer_norm_epsilon=1e-12,
        rotary_emb_base=1000,
        rotary_emb_fraction=1.0,
        rotary_emb_interleaved=False,
        qkv_proj_bias=False,
        mlp_fc1_bias=False,
        mlp_fc2_bias=False,
        prenorm=False,
        causal=False,
        type_vocab_size=2,
        vocab_size=VOCAB,
    )
    return config, state


def make_model(model_class, config, seed):
    torch.manual_seed(seed)
    model, draws = model_class(config).eval(), Draws(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                draws.spread(parameter, 0.3)
            elif parameter.dim() == 1:
                # Gemma stores norms minus one.
                offset = 1.0 if "Gemma" in model_class.__name__ else 0.0
                draws.uniform(parameter, 0.5 - offset, 1.5 - offset)
            elif "embed" in name:
                draws.spread(parameter, 1.0)
            else:
                draws.spread(parameter, 1.5 / parameter.shape[1] ** 0.5)
    return model, draws


def pooled(hidden):
    n = hidden.shape[0]
    weights = torch.arange(1, n + 1, dtype=torch.float32)[:, None]
    return dict(
        cls=hidden[0],
        mean=hidden.sum(0) / n,
        max=hidden.max(0).values,
        lasttoken=hidden[-1],
        mean_sqrt_len_tokens=hidden.sum(0) / n**0.5,
        weightedmean=(hidden * weights).sum(0) / weights.sum(),
    )


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    for seed, name in enumerate(CASES, 700):
        if name not in wanted(CASES):
            continue
        model_class, config_class, fields = CASES[name]
        config = config_class(**fields, attn_implementation="eager")
        model, draws = make_model(model_class, config, seed)
        generator = torch.Generator().manual_seed(seed)
        # The padding token is none of them: a text that is not padded has none.
        texts = [torch.randint(6, VOCAB, (n,), generator=generator) for n in LENGTHS]
        hidden = [model(text[None]).last_hidden_state[0].float() for text in texts]
        by_kind = [pooled(rows) for rows in hidden]
        reference = {kind: torch.stack([p[kind] for p in by_kind]) for kind in by_kind[0]}
        reference |= dict(
            tokens=torch.cat(texts).int(),
            lengths=torch.tensor(LENGTHS).int(),
            hidden=torch.cat(hidden),
        )
        state = {
            key: value.bfloat16().contiguous()
            for key, value in model.state_dict().items()
            if "pooler" not in key and value.is_floating_point()
        }
        config.architectures = [model_class.__name__]
        written = json.loads(config.to_json_string())
        if name == "embedding-gemma":
            # As published: transformers halves it when it reads the config, and writes the half.
            written["sliding_window"] = fields["sliding_window"]
        if name == "nomic-bert":
            written, state = to_published_nomic(written, state)
        write(HERE / name, written, state, reference, draws=draws)
        print(f"{name}: {len(state)} tensors, largest {reference['hidden'].abs().max():.2f}")


if __name__ == "__main__":
    main()
