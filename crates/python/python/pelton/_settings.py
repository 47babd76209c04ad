"""Settings of a model: those of ``pelton serve --config``, and vLLM's names for them."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from typing import Any

from pelton import _pelton

# vLLM's name, and ours.
_ALIASES = {
    "max_model_len": "max_context",
    "max_num_seqs": "max_running",
    "max_num_batched_tokens": "max_batch_tokens",
    "enable_prefix_caching": "prefix_cache",
    "served_model_name": "served_name",
    "num_threads": "threads",
}

# What vLLM takes and Pelton does not: values that ask for nothing, and the fix for others.
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "tokenizer": ((None,), "the model's own tokenizer is used"),
    "tokenizer_mode": (("auto",), "the model's own tokenizer is used"),
    "skip_tokenizer_init": ((False,), "pass token ids as prompts instead"),
    "trust_remote_code": ((False, None), "Pelton never runs code of a model; leave it out"),
    "tensor_parallel_size": ((1,), "one machine computes; leave it out"),
    "pipeline_parallel_size": ((1,), "one machine computes; leave it out"),
    "dtype": (("auto",), "weights stay as stored; `compute='f32'` computes in 32 bits"),
    "kv_cache_dtype": (("auto",), "use `kv_dtype`, such as `kv_dtype='f16'`"),
    "quantization": ((None,), "the format of the files is used; `quantize='q4_k'` rounds floats"),
    "load_format": (("auto",), "the format of the files is found"),
    "gpu_memory_utilization": ((0.9, 0.92), "there is no GPU; `kv_memory='4GiB'` limits the cache"),
    "cpu_offload_gb": ((0,), "there is no GPU; leave it out"),
    "enforce_eager": ((False, True), ""),
    "disable_log_stats": ((False, True), ""),
    "enable_lora": ((False,), "LoRA is not supported"),
    "speculative_config": ((None,), "use `spec`, such as `spec='suffix'` or `spec='draft:MODEL'`"),
    "hf_overrides": ((None,), "change `config.json` instead"),
    "limit_mm_per_prompt": ((None,), "only text is supported"),
}

# vLLM's words for models that make vectors, and for models that generate text.
_VECTORS = {"pooling": True, "embed": True, "embedding": True, "generate": False}


def read(model: str | os.PathLike[str] | None, given: dict[str, Any]) -> list[tuple[str, str]]:
    """Settings as keys and texts."""
    known = _pelton.setting_keys()
    settings = {} if model is None else {"model": os.fspath(model)}
    revision = given.pop("revision", None)
    if revision is not None:
        settings["model"] = f"{settings.get('model', '')}@{revision}"
    swap = given.pop("swap_space", None)
    if swap is not None:
        settings["swap_memory"] = str(int(swap * 2**30))
    for name, value in given.items():
        if name in _REFUSED:
            nothing, fix = _REFUSED[name]
            if value not in nothing:
                raise ValueError(f"`{name}={value!r}` is not supported by Pelton: {fix}")
            continue
        key = _ALIASES.get(name, name)
        if key not in known:
            raise TypeError(_unknown(name, known))
        if value is not None:
            settings[key] = _text(value)
    return list(settings.items())


def vectors(task: str | None, runner: str | None) -> bool | None:
    """Whether the model is for vectors; ``None`` for what its files say."""
    word = next((word for word in (runner, task) if word not in (None, "auto")), None)
    if word is None:
        return None
    if word not in _VECTORS:
        raise ValueError(f"`{word}` is no kind of model: expected {', '.join(_VECTORS)} or auto")
    return _VECTORS[word]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return json.dumps(dict(value))
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, [*known, *_ALIASES], n=1, cutoff=0.75)
    hint = f"; did you mean `{near[0]}`?" if near else f"; there are {', '.join(known)}"
    return f"`{name}` is no setting of LLM{hint}"
