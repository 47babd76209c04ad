"""Beam search, as vLLM's offline class has it."""

import math

import pytest

from pelton import LLM, BeamSearchParams, SamplingParams

PROMPT = "Once upon a time"


def test_one_beam_is_greedy_decoding(llm):
    (output,) = llm.beam_search([PROMPT], BeamSearchParams(1, 12, ignore_eos=True))
    greedy = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    (best,) = output.sequences
    assert best.tokens == greedy[0].prompt_token_ids + greedy[0].outputs[0].token_ids
    assert best.text == llm.get_tokenizer().decode(best.tokens)
    assert best.finish_reason == "length"


def test_answers_come_best_first_with_the_sums_of_their_tokens(llm):
    params = BeamSearchParams(beam_width=4, max_tokens=10, length_penalty=0.5, logprobs=0)
    prompts = [PROMPT, {"prompt_token_ids": llm.get_tokenizer().encode("The cat")}]
    outputs = llm.beam_search(prompts, params)
    assert [len(output.sequences) for output in outputs] == [4, 4]
    for output in outputs:
        scores = [each.score for each in output.sequences]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(each.tokens) for each in output.sequences}) == 4
        for each in output.sequences:
            answer = each.tokens[each.n_prompt_tokens :]
            own = [found[token].logprob for token, found in zip(answer, each.logprobs)]
            assert len(own) == len(answer)
            assert math.isclose(sum(own), each.cum_logprob, abs_tol=1e-4)
            length = len(each.tokens) - (each.finish_reason == "stop")
            assert math.isclose(each.score, each.cum_logprob / length**0.5, abs_tol=1e-6)
    again = llm.beam_search(PROMPT, params)
    assert again[0] == outputs[0], "the same alone as beside another"


def test_more_beams_find_no_worse_an_answer(llm):
    def best(width):
        return llm.beam_search(PROMPT, BeamSearchParams(width, 8))[0].sequences[0].score

    assert best(8) >= best(1)


def test_each_way_to_stop_early_is_taken(llm):
    for early_stopping in (True, False, "never"):
        params = BeamSearchParams(2, 6, early_stopping=early_stopping)
        assert len(llm.beam_search(PROMPT, params)[0].sequences) == 2


def test_what_a_search_does_not_do_is_refused_by_name(llm):
    with pytest.raises(ValueError, match="include_stop_str_in_output"):
        BeamSearchParams(2, 4, include_stop_str_in_output=True)
    with pytest.raises(ValueError, match="early_stopping"):
        BeamSearchParams(2, 4, early_stopping="soon")
    for name, params in [
        ("temperature", BeamSearchParams(2, 4, temperature=0.7)),
        ("beam_width", BeamSearchParams(0, 4)),
        ("beam_width", BeamSearchParams(33, 4)),
        ("length_penalty", BeamSearchParams(2, 4, length_penalty=11.0)),
        ("max_tokens", BeamSearchParams(2, 0)),
    ]:
        with pytest.raises(ValueError, match=name):
            llm.beam_search(PROMPT, params)
    with pytest.raises(ValueError, match="use_tqdm"):
        llm.beam_search(PROMPT, BeamSearchParams(2, 4), use_tqdm=True)
    with pytest.raises(TypeError, match="BeamSearchParams"):
        llm.beam_search(PROMPT, SamplingParams())
