"""Makes the fixtures of encoder-decoder models: tiny random checkpoints, and reference logits.

    python crates/model/tests/seq2seq/make.py [name ..]

Each fixture is a folder:

    config.json            as transformers writes it
    weights.json           bf16 weights, drawn from a seed; `stored.py` has the format
    reference.safetensors  `source` i32 [s]: the tokens that the encoder reads; `first` i32 [f]: those that
                           the decoder begins with; `greedy` i32 [g]: those that it goes on with;
                           `logits` f32 [f + g - 1, 256]: of the decoder's rows
    case.json              the seed, and how clearly the greedy tokens lead

The reference is computed in f32 with eager attention from the bf16 weights.
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
N_GREEDY = 26

T5 = dict(
    vocab_size=VOCAB,
    d_model=64,
    d_kv=16,
    d_ff=96,
    num_heads=4,
    num_layers=2,
    decoder_start_token_id=0,
    pad_token_id=0,
    eos_token_id=1,
)
# Distances beyond the last bucket lie inside of the short texts.
NEAR = dict(relative_attention_num_buckets=8, relative_attention_max_distance=20)

BART = dict(
    vocab_size=VOCAB,
    d_model=64,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=96,
    decoder_ffn_dim=80,
    max_position_embeddings=64,
    pad_token_id=1,
    bos_token_id=0,
    eos_token_id=2,
    decoder_start_token_id=2,
    forced_eos_token_id=None,
)

# name: (model class, config class, config fields, tokens of the source)
CASES = {
    "t5": (t.T5ForConditionalGeneration, t.T5Config, T5 | NEAR, 45),
    # Heads that are wider together than the model, a deeper decoder, and the published distances.
    "t5-gated": (
        t.T5ForConditionalGeneration,
        t.T5Config,
        T5
        | dict(
            d_model=32,
            num_heads=2,
            d_kv=32,
            d_ff=64,
            num_decoder_layers=3,
            feed_forward_proj="gated-gelu",
        ),
        150,
    ),
    "mt5": (
        t.MT5ForConditionalGeneration,
        t.MT5Config,
        T5 | NEAR | dict(num_layers=1, feed_forward_proj="gated-gelu"),
        16,
    ),
    "bart": (t.BartForConditionalGeneration, t.BartConfig, BART, 41),
    "mbart": (
        t.MBartForConditionalGeneration,
        t.MBartConfig,
        BART | dict(encoder_layers=1, scale_embedding=True, activation_function="relu"),
        23,
    ),
}


# Published models with gates have a head of their own, and say so in their configs. Classes of
# transformers tie the head unless a checkpoint has one.
UNTIED = ["t5-gated", "mt5"]


def make_model(name, model_class, config, seed):
    """A model with weights large enough that attention is not uniform, rounded to bf16."""
    torch.manual_seed(seed)
    model, draws = model_class(config).eval(), Draws(seed)
    if name in UNTIED:
        model.lm_head.weight = torch.nn.Parameter(torch.empty(VOCAB, config.d_model))
        model.config.scale_decoder_outputs = False
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":
                draws.spread(buffer, 0.3)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                draws.spread(parameter, 0.05)
            elif "embed_positions" in name:
                draws.spread(parameter, 0.5)
            elif "norm" in name:
                draws.uniform(parameter, 0.5, 1.5)
            elif "relative_attention_bias" in name:
                draws.spread(parameter, 1.0)
            elif name.endswith("shared.weight"):
                # The decoder must not simply say again the token that came in.
                draws.spread(parameter, 0.2)
            elif name.endswith(".q.weight"):
                # Scores are not divided by the root of the width of a head.
                draws.spread(parameter, 1.5 / (parameter.shape[1] * config.d_kv) ** 0.5)
            else:
                draws.spread(parameter, 1.5 / parameter.shape[1] ** 0.5)
    return model, draws


def reference(model, config, n_source, seed):
    """A random source, and what the decoder makes of it; see the margin of `fixtures.reference`."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(2, VOCAB, (n_source,), generator=generator)
    first = torch.tensor([config.decoder_start_token_id])
    own, margin = first.clone(), float("inf")
    for _ in range(N_GREEDY):
        logits = model(input_ids=source[None], decoder_input_ids=own[None], use_cache=False).logits[0]
        best = logits[-1].topk(2).values
        margin = min(margin, ((best[0] - best[1]) / logits[-1].abs().max()).item())
        own = torch.cat([own, logits[-1].argmax()[None]])
    greedy = own[len(first) :]
    tensors = dict(source=source.int(), first=first.int(), greedy=greedy.int(), logits=logits.float())
    return tensors, margin


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    for name in wanted(CASES):
        model_class, config_class, fields, n_source = CASES[name]
        config = config_class(**fields, attn_implementation="eager")
        for seed in range(100, 1000):
            model, draws = make_model(name, model_class, config, seed)
            tensors, margin = reference(model, config, n_source, seed)
            # The end of an answer is a token like any other here, but does not end it.
            n_distinct = len(set(tensors["greedy"].tolist()))
            has_ended = config.eos_token_id in tensors["greedy"]
            if margin > 0.01 and n_distinct > 5 and not has_ended:
                break
        else:
            raise SystemExit(f"{name}: no seed without a near tie")
        fresh = config_class(**fields)
        fresh.architectures = [model_class.__name__]
        fresh.dtype = "bfloat16"
        written = json.loads(fresh.to_json_string())
        shared = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
        skipped = shared + tuple(f"model.{key}" for key in shared)
        if name in UNTIED:
            written["tie_word_embeddings"] = False
            written.pop("scale_decoder_outputs", None)
        else:
            skipped += ("lm_head.weight",)
        state = {
            key: value.bfloat16().contiguous()
            for key, value in model.state_dict().items()
            if key not in skipped
        }
        case = dict(seed=seed, margin=round(margin, 4))
        write(HERE / name, written, state, tensors, case, draws)
        print(f"{name}: seed {seed}, margin {margin:.4f}, {n_distinct} tokens")


if __name__ == "__main__":
    main()
