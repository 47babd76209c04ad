"""Makes the fixtures of classifiers: tiny random checkpoints, and what the reference makes of pairs.

    python crates/model/tests/rankers/make.py [name ..]     (torch, transformers, sentence-transformers)

Run `make_gguf.py` afterwards. Each fixture is a folder:

    config.json         as transformers writes it
    weights.json        bf16 weights, drawn from a seed; `stored.py` has the format
    reference.json      `tokenizer`: a file of `tokenizers/`; `max_tokens`; and `pairs`, each with the
                        texts `a` and `b`, the tokens `ids` and their kinds `types` as transformers
                        encodes them, cut to `max_tokens` by `longest_first`, the `logits` of the
                        labels, and, of an encoder with one label, the `score` of
                        sentence-transformers

`tokenizers/` holds one tokenizer for each template of pairs. The reference is computed in f32 with
eager attention from the bf16 weights, each pair alone.
"""

import json
import pathlib
import random
import sys
import tempfile

import sentence_transformers
import tokenizers
import torch
import transformers as t
from tokenizers.processors import TemplateProcessing

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from fixtures import Draws, wanted, write_model

WORDS = 120
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
VOCAB = len(SPECIAL) + WORDS
MAX_TOKENS = 40

BASE = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=2,
    eos_token_id=3,
)
ROBERTA = BASE | dict(type_vocab_size=1)
DISTIL = dict(
    vocab_size=VOCAB, dim=32, hidden_dim=48, n_layers=2, n_heads=2, max_position_embeddings=64,
    pad_token_id=0,
)
MODERN = BASE | dict(local_attention=8, num_hidden_layers=3, cls_token_id=2, sep_token_id=3)
DECODER = BASE | dict(num_key_value_heads=1)
IDENTITY = dict(
    sentence_transformers=dict(
        activation_fn="torch.nn.modules.linear.Identity", version="5.1.0"
    )
)

# name: (class of the model, class of the config, fields, labels, further fields, tokenizer)
CASES = {
    "bert": (t.BertForSequenceClassification, t.BertConfig, BASE, 1, {}, "bert"),
    "bert-identity": (t.BertForSequenceClassification, t.BertConfig, BASE, 1, IDENTITY, "bert"),
    "bert-labels": (t.BertForSequenceClassification, t.BertConfig, BASE, 3, {}, "bert"),
    "roberta": (t.RobertaForSequenceClassification, t.RobertaConfig, ROBERTA, 1, {}, "roberta"),
    "xlm-roberta": (
        t.XLMRobertaForSequenceClassification, t.XLMRobertaConfig, ROBERTA, 1, {}, "roberta",
    ),
    "distilbert": (
        t.DistilBertForSequenceClassification, t.DistilBertConfig, DISTIL, 1, {}, "bert",
    ),
    "modernbert": (
        t.ModernBertForSequenceClassification, t.ModernBertConfig, MODERN, 1,
        dict(classifier_bias=True), "modern",
    ),
    "modernbert-mean": (
        t.ModernBertForSequenceClassification, t.ModernBertConfig, MODERN, 2,
        dict(classifier_pooling="mean", problem_type="multi_label_classification"), "modern",
    ),
    "qwen2": (t.Qwen2ForSequenceClassification, t.Qwen2Config, DECODER, 1, {}, "plain"),
    "llama": (t.LlamaForSequenceClassification, t.LlamaConfig, DECODER, 1, {}, "plain"),
}

# name: (template of pairs, whether the model takes kinds of tokens)
TEMPLATES = {
    "bert": ("[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", True),
    "roberta": ("[CLS]:0 $A:0 [SEP]:0 [SEP]:0 $B:0 [SEP]:0", False),
    "modern": ("[CLS]:0 $A:0 [SEP]:0 $B:0 [SEP]:0", False),
    "plain": (None, False),
}


def make_tokenizer(name):
    vocab = {word: i for i, word in enumerate(SPECIAL + [f"w{i}" for i in range(WORDS)])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(SPECIAL)
    pair, has_kinds = TEMPLATES[name]
    if pair:
        single = "[CLS]:0 $A:0 [SEP]:0"
        tokenizer.post_processor = TemplateProcessing(
            single=single, pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    (HERE / "tokenizers").mkdir(exist_ok=True)
    tokenizer.save(str(HERE / "tokenizers" / f"{name}.json"), pretty=False)
    inputs = ["input_ids", "attention_mask"] + (["token_type_ids"] if has_kinds else [])
    return t.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_input_names=inputs, pad_token="[PAD]", unk_token="[UNK]",
        cls_token="[CLS]", sep_token="[SEP]", model_max_length=MAX_TOKENS,
    )


def make_model(model_class, config, seed):
    torch.manual_seed(seed)
    model, draws = model_class(config).eval(), Draws(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                draws.spread(parameter, 0.3)
            elif parameter.dim() == 1:
                draws.uniform(parameter, 0.5, 1.5)
            elif "embed" in name:
                draws.spread(parameter, 1.0)
            else:
                draws.spread(parameter, 1.5 / parameter.shape[1] ** 0.5)
    return model, draws


def make_pairs(seed):
    rng = random.Random(seed)
    text = lambda n: " ".join(f"w{rng.randrange(WORDS)}" for _ in range(n))
    # The last three are cut: the second text, the first one, and both.
    return [(text(a), text(b)) for a, b in [(1, 1), (4, 9), (9, 4), (3, 60), (60, 3), (30, 31)]]


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    for seed, (name, case) in enumerate(CASES.items(), 900):
        if name not in wanted(CASES):
            continue
        model_class, config_class, fields, n_labels, more, tokenizer_name = case
        config = config_class(**fields, **more, num_labels=n_labels, attn_implementation="eager")
        model, draws = make_model(model_class, config, seed)
        tokenizer = make_tokenizer(tokenizer_name)
        config.architectures = [model_class.__name__]
        state = {
            key: value.bfloat16().contiguous()
            for key, value in model.state_dict().items()
            if value.is_floating_point()
        }
        write_model(HERE / name, json.loads(config.to_json_string()), state, draws)
        pairs, texts = [], make_pairs(seed)
        for a, b in texts:
            encoded = tokenizer(a, b, truncation=True, return_tensors="pt")
            logits = model(**encoded).logits[0].float()
            ids = encoded["input_ids"][0].tolist()
            kinds = encoded.get("token_type_ids", torch.zeros(1, len(ids)).int())[0].tolist()
            pairs.append(dict(a=a, b=b, ids=ids, types=kinds, logits=logits.tolist()))
        if n_labels == 1 and tokenizer_name != "plain":
            with tempfile.TemporaryDirectory() as saved:
                model.save_pretrained(saved)
                tokenizer.save_pretrained(saved)
                encoder = sentence_transformers.CrossEncoder(saved, device="cpu")
                for pair, (a, b) in zip(pairs, texts):
                    pair["score"] = float(encoder.predict([(a, b)])[0])
        reference = dict(tokenizer=tokenizer_name, max_tokens=MAX_TOKENS, pairs=pairs)
        (HERE / name / "reference.json").write_text(json.dumps(reference) + "\n")
        logits = [round(pair["logits"][0], 2) for pair in pairs]
        print(f"{name}: {logits}, {[pair.get('score') for pair in pairs][:2]}")


if __name__ == "__main__":
    main()
