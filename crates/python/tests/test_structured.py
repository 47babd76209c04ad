"""Answers of a form."""

import json

import pytest

from pelton import GuidedDecodingParams, LLM, SamplingParams, StructuredOutputsParams

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def answers(llm: LLM, form: StructuredOutputsParams, n: int = 3) -> list[str]:
    params = SamplingParams(n=n, max_tokens=300, temperature=1.5, seed=1, structured_outputs=form)
    return [answer.text for answer in llm.generate(["Once"], params)[0].outputs]


def test_every_form_is_kept(llm: LLM) -> None:
    for schema in (SCHEMA, json.dumps(SCHEMA)):
        for text in answers(llm, StructuredOutputsParams(json=schema)):
            value = json.loads(text)
            assert list(value) == ["name", "age"] and isinstance(value["age"], int)
    assert set(answers(llm, StructuredOutputsParams(choice=["yes", "no"]))) <= {"yes", "no"}
    for text in answers(llm, StructuredOutputsParams(regex="[ab]{4}")):
        assert len(text) == 4 and set(text) <= set("ab")
    assert answers(llm, StructuredOutputsParams(grammar='root ::= "x"'), 1) == ["x"]
    (text,) = answers(llm, StructuredOutputsParams(json_object=True), 1)
    assert text.startswith("{")
    older = SamplingParams(guided_decoding=GuidedDecodingParams(choice=["maybe"]))
    assert llm.generate(["Once"], older)[0].outputs[0].text == "maybe"


def test_what_cannot_be_kept_is_refused_by_its_place(llm: LLM) -> None:
    with pytest.raises(ValueError, match="enum"):
        answers(llm, StructuredOutputsParams(json={"enum": []}))
    with pytest.raises(ValueError, match="exactly one"):
        StructuredOutputsParams()
    with pytest.raises(ValueError, match="regex, choice"):
        StructuredOutputsParams(regex="a", choice=["b"])
    with pytest.raises(TypeError, match="list of texts"):
        StructuredOutputsParams(choice="yes")
    with pytest.raises(TypeError, match="StructuredOutputsParams"):
        SamplingParams(structured_outputs={"regex": "a"})
    form = StructuredOutputsParams(choice=["a"])
    with pytest.raises(ValueError, match="ignore_eos"):
        llm.generate(["Once"], SamplingParams(structured_outputs=form, ignore_eos=True))
