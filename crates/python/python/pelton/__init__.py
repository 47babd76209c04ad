"""Run language models on the processor you have.

    from pelton import LLM, SamplingParams

    llm = LLM()                                  # the small story model inside the package
    llm = LLM("Qwen/Qwen3-0.6B")                 # or a folder, a .gguf file, a model of the hub
    outputs = llm.generate(["Once upon a time"], SamplingParams(max_tokens=50))
    print(outputs[0].outputs[0].text)

The names are those of vLLM's offline class. What Pelton cannot do is refused by name.
"""

from pelton._async import AsyncLLM
from pelton._llm import LLM, Tokenizer
from pelton.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from pelton.outputs import (
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    Logprob,
    RequestOutput,
)
from pelton.sampling_params import RequestOutputKind, SamplingParams
from pelton.structured_outputs import GuidedDecodingParams, StructuredOutputsParams

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "GuidedDecodingParams",
    "Logprob",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
    "Tokenizer",
]
