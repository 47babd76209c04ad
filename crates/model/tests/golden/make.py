"""Makes the golden fixtures: tiny random checkpoints and their reference logits.

    python crates/model/tests/golden/make.py

Each fixture is a folder:

    config.json            as transformers writes it (plus the fields named in `CASES`)
    model.safetensors      bf16 weights; a variant that only changes the config has `weights.txt`
                           instead, which names the folder whose weights it uses
    reference.safetensors  `prompt` i32 [48]; `logits` f32 [48 + 15, 256], row i predicts token i + 1;
                           `greedy` i32 [16]
    case.json              `max_context` for scalings that depend on the length served

The reference is computed in f32 with eager attention from the bf16 weights, so a correct engine in
f32 differs by rounding only. Greedy tokens whose margin is close to a tie would test luck: seeds are
tried until every step's best logit leads by 1 % of the row's largest magnitude.
"""

import json
import pathlib
import shutil

import safetensors.torch
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

HERE = pathlib.Path(__file__).parent
N_PROMPT, N_GREEDY, VOCAB = 48, 16, 256

BASE = dict(
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=128,
    rms_norm_eps=1e-5,
    bos_token_id=0,
    eos_token_id=1,
    tie_word_embeddings=False,
)
LONG = [round(1.0 + 0.75 * i, 2) for i in range(8)]
SHORT = [round(1.0 + 0.1 * i, 2) for i in range(8)]


def rope(**parameters):
    return dict(rope_parameters=dict(rope_theta=10000.0, **parameters))


# name: (model class, config class, config fields, weights taken from, max_context)
L = (transformers.LlamaForCausalLM, transformers.LlamaConfig)
CASES = {
    "llama": (*L, rope(rope_type="default"), None, None),
    "llama-linear": (*L, rope(rope_type="linear", factor=4.0), "llama", None),
    "llama-dynamic": (
        *L,
        rope(rope_type="dynamic", factor=4.0) | dict(max_position_embeddings=32),
        "llama",
        64,
    ),
    "llama-yarn": (
        *L,
        rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32),
        "llama",
        None,
    ),
    "llama-yarn-mscale": (
        *L,
        rope(
            rope_type="yarn",
            factor=8.0,
            original_max_position_embeddings=16,
            mscale=1.0,
            mscale_all_dim=0.5,
            beta_fast=16.0,
            beta_slow=2.0,
            truncate=False,
        ),
        "llama",
        None,
    ),
    "llama3": (
        *L,
        rope(
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
        "llama",
        None,
    ),
    "llama-longrope": (
        *L,
        rope(
            rope_type="longrope",
            short_factor=SHORT,
            long_factor=LONG,
            original_max_position_embeddings=32,
            factor=4.0,
        ),
        "llama",
        None,
    ),
    "llama-longrope-short": (
        *L,
        rope(
            rope_type="longrope",
            short_factor=SHORT,
            long_factor=LONG,
            original_max_position_embeddings=64,
            factor=2.0,
        ),
        "llama",
        64,
    ),
    "llama-tied-bias": (
        *L,
        rope(rope_type="default")
        | dict(
            tie_word_embeddings=True,
            attention_bias=True,
            mlp_bias=True,
            num_key_value_heads=4,
            intermediate_size=64,
        ),
        None,
        None,
    ),
    "mistral": (
        transformers.MistralForCausalLM,
        transformers.MistralConfig,
        rope(rope_type="default") | dict(sliding_window=8),
        None,
        None,
    ),
    "qwen2": (
        transformers.Qwen2ForCausalLM,
        transformers.Qwen2Config,
        rope(rope_type="default") | dict(tie_word_embeddings=True),
        None,
        None,
    ),
    "qwen3": (
        transformers.Qwen3ForCausalLM,
        transformers.Qwen3Config,
        # head_dim is not hidden_size / num_attention_heads, as in the published models.
        rope(rope_type="default") | dict(head_dim=32, num_key_value_heads=1),
        None,
        None,
    ),
}


def make_model(model_class, config, seed):
    """A model with weights large enough that attention is not uniform, rounded to bf16."""
    torch.manual_seed(seed)
    model = model_class(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.3)
            elif "embed" in name:
                # A tied head must not simply see the token that came in.
                parameter.normal_(0.0, 0.2 if config.tie_word_embeddings else 1.0)
            else:
                parameter.normal_(0.0, 0.9 / parameter.shape[1] ** 0.5)
            parameter.copy_(parameter.bfloat16().float())
    return model


def fix_length(model, config, max_context):
    """Holds length-dependent frequencies at those of `max_context` (None: the config's own)."""
    rotary = model.model.rotary_emb
    if rotary.rope_type not in ("dynamic", "longrope"):
        return
    length = max_context or config.max_position_embeddings
    inv_freq, scaling = ROPE_INIT_FUNCTIONS[rotary.rope_type](config, seq_len=length)
    rotary.rope_type, rotary.attention_scaling = "default", scaling
    rotary.inv_freq.copy_(inv_freq)


@torch.no_grad()
def reference(model, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, VOCAB, (N_PROMPT,), generator=generator)
    prompt, margin = tokens.clone(), float("inf")
    for step in range(N_GREEDY):
        # The whole sequence again every time: no cache of the reference is in play.
        logits = model(tokens[None], use_cache=False).logits[0]
        best = logits[-1].topk(2).values
        margin = min(margin, ((best[0] - best[1]) / logits[-1].abs().max()).item())
        tokens = torch.cat([tokens, logits[-1].argmax()[None]])
    return prompt, logits.float(), tokens[N_PROMPT:], margin


def main():
    torch.set_num_threads(1)
    models = {}
    seeds = {}
    for name, (model_class, config_class, fields, weights, max_context) in CASES.items():
        config = config_class(**(BASE | fields), attn_implementation="eager")
        for seed in range(100, 400):
            model = make_model(model_class, config, seeds[weights] if weights else seed)
            fix_length(model, config, max_context)
            prompt, logits, greedy, margin = reference(model, seed)
            if margin > 0.01:
                break
        else:
            raise SystemExit(f"{name}: no seed without a near tie")
        seeds[name] = seed
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        fresh = config_class(**(BASE | fields))
        fresh.architectures = [model_class.__name__]
        fresh.dtype = "bfloat16"
        (folder / "config.json").write_text(fresh.to_json_string())
        if weights:
            (folder / "weights.txt").write_text(weights + "\n")
        else:
            tied = config.tie_word_embeddings
            state = {
                key: value.bfloat16().contiguous()
                for key, value in model.state_dict().items()
                if not (tied and key == "lm_head.weight")
            }
            safetensors.torch.save_file(
                state, folder / "model.safetensors", metadata={"format": "pt"}
            )
        safetensors.torch.save_file(
            dict(prompt=prompt.int(), logits=logits.contiguous(), greedy=greedy.int()),
            folder / "reference.safetensors",
        )
        (folder / "case.json").write_text(
            json.dumps(dict(seed=seed, margin=round(margin, 4), max_context=max_context)) + "\n"
        )
        print(f"{name}: seed {seed}, margin {margin:.4f}, largest logit {logits.abs().max():.2f}")
    versions = dict(torch=torch.__version__, transformers=transformers.__version__)
    (HERE / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")


if __name__ == "__main__":
    main()
