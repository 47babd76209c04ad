"""Prompts in, answers out."""

import numpy as np
import pytest

from pelton import LLM, RequestOutputKind, SamplingParams

PROMPT = "Once upon a time"


def greedy(**more):
    return SamplingParams(temperature=0, **more)


def text(outputs):
    return outputs[0].outputs[0].text


def test_masks_and_seeds_are_those_of_the_library(llm):
    plain = llm.generate(PROMPT, greedy(max_tokens=12))[0].outputs[0]
    word = plain.text.split()[1]
    without = llm.generate(PROMPT, greedy(max_tokens=12, bad_words=[word]))[0].outputs[0]
    assert without.token_ids != plain.token_ids
    allowed = plain.token_ids[:3]
    few = llm.generate(PROMPT, greedy(max_tokens=12, allowed_token_ids=allowed))[0].outputs[0]
    assert set(few.token_ids) <= set(allowed)
    both = llm.generate(PROMPT, SamplingParams(n=2, seeds=[5, 6]))[0].outputs
    alone = [llm.generate(PROMPT, SamplingParams(seed=seed))[0].outputs[0] for seed in (5, 6)]
    assert [each.token_ids for each in both] == [each.token_ids for each in alone]


def test_every_form_of_a_prompt_gives_the_same_answer(llm):
    tokens = llm.get_tokenizer().encode(PROMPT)
    forms = [PROMPT, tokens, {"prompt": PROMPT}, {"prompt_token_ids": tokens}]
    answers = [text(llm.generate(form, greedy())) for form in forms]
    answers += [each.outputs[0].text for each in llm.generate(forms, greedy())]
    assert len(set(answers)) == 1 and answers[0]


def test_an_output_has_the_fields_of_vllm(llm):
    (output,) = llm.generate(PROMPT, greedy())
    assert output.prompt == PROMPT and output.finished
    assert output.prompt_token_ids == llm.get_tokenizer().encode(PROMPT)
    (answer,) = output.outputs
    assert (answer.index, answer.finish_reason, answer.stop_reason) == (0, "length", None)
    assert len(answer.token_ids) == 16, "as in vLLM"
    assert answer.text == llm.get_tokenizer().decode(answer.token_ids)
    assert answer.cumulative_logprob is None and answer.logprobs is None
    assert output.request_id != llm.generate(PROMPT, greedy())[0].request_id


def test_many_prompts_keep_their_order_and_their_own_parameters(llm):
    prompts = [f"Story number {i}:" for i in range(300)]
    params = [greedy(max_tokens=1 + i % 3) for i in range(300)]
    outputs = llm.generate(prompts, params)
    assert [output.prompt for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1 + i % 3 for i in range(300)]
    alone = llm.generate(prompts[7], params[7])
    assert text(alone) == outputs[7].outputs[0].text


def test_seeds_repeat_and_choices_differ(llm):
    def drawn(seed):
        return [each.text for each in llm.generate(PROMPT, SamplingParams(n=3, seed=seed))[0].outputs]

    assert drawn(1) == drawn(1) != drawn(2)
    assert len(set(drawn(1))) == 3
    assert drawn(None) != drawn(None)


def test_best_of_keeps_the_likeliest(llm):
    made = llm.generate(PROMPT, SamplingParams(n=4, seed=1, logprobs=0))[0].outputs
    best = max(made, key=lambda each: each.cumulative_logprob / len(each.token_ids))
    kept = llm.generate(PROMPT, SamplingParams(n=1, best_of=4, seed=1))[0].outputs
    assert [each.token_ids for each in kept] == [best.token_ids] and kept[0].index == 0


def test_stop_texts_and_stop_tokens_say_which_it_was(llm):
    whole = llm.generate(PROMPT, greedy(max_tokens=40))[0].outputs[0]
    stop = whole.text[10:14]
    cut = llm.generate(PROMPT, greedy(max_tokens=40, stop=stop))[0].outputs[0]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    assert cut.text == whole.text[: whole.text.index(stop)]
    token = whole.token_ids[5]
    cut = llm.generate(PROMPT, greedy(max_tokens=40, stop_token_ids=[token]))[0].outputs[0]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", token)
    assert cut.token_ids == whole.token_ids[: whole.token_ids.index(token) + 1]


def test_log_probabilities_are_those_of_the_logits(llm):
    answer = llm.generate(PROMPT, greedy(max_tokens=4, logprobs=3))[0].outputs[0]
    assert [len(each) for each in answer.logprobs] == [3] * 4
    for token, found in zip(answer.token_ids, answer.logprobs):
        assert found[token].rank == 1, "greedy"
    assert sum(f[t].logprob for t, f in zip(answer.token_ids, answer.logprobs)) == pytest.approx(
        answer.cumulative_logprob
    )
    logits = llm.logits(PROMPT)
    assert logits.dtype == np.float32 and logits.ndim == 1 and logits.flags.writeable
    assert int(logits.argmax()) == answer.token_ids[0]
    exact = logits.astype(np.float64)
    exact -= exact.max() + np.log(np.exp(exact - exact.max()).sum())
    for token, found in answer.logprobs[0].items():
        assert found.logprob == pytest.approx(exact[token], abs=1e-4)
        assert found.decoded_token == llm.get_tokenizer().decode([token])


def test_logits_of_several_prompts_are_those_of_each(llm):
    both = llm.logits([PROMPT, "The king"])
    assert np.array_equal(both[0], llm.logits(PROMPT))
    assert np.array_equal(both[1], llm.logits("The king"))
    assert both[0].base is not None, "the memory is Rust's, moved and not copied"


def test_bias_penalties_and_min_tokens_are_honoured(llm):
    token = llm.get_tokenizer().encode("king", add_special_tokens=False)[0]
    answer = llm.generate(PROMPT, greedy(max_tokens=3, logit_bias={token: 100}))[0].outputs[0]
    assert answer.token_ids == [token] * 3
    plain = llm.generate(PROMPT, greedy(max_tokens=60))[0].outputs[0]
    varied = llm.generate(PROMPT, greedy(max_tokens=60, frequency_penalty=2.0))[0].outputs[0]
    assert len(set(varied.token_ids)) > len(set(plain.token_ids))


def test_a_chat_is_laid_out_by_the_template(llm):
    messages = [{"role": "user", "content": "Tell me about a wolf."}]
    (output,) = llm.chat(messages, greedy(max_tokens=8))
    assert "Tell me about a wolf." in output.prompt
    again = llm.generate({"prompt_token_ids": output.prompt_token_ids}, greedy(max_tokens=8))
    assert text(again) == output.outputs[0].text
    both = llm.chat([messages, messages], greedy(max_tokens=8))
    assert [each.outputs[0].text for each in both] == [output.outputs[0].text] * 2


def test_another_template_and_its_arguments_are_settings_of_the_class(tmp_path):
    file = tmp_path / "own.jinja"
    file.write_text("{{ greeting }}{% for m in messages %}<{{ m.content }}>{% endfor %}")
    settings = {"chat_template": file, "chat_template_kwargs": {"greeting": "Hello"}}
    llm = LLM(max_model_len=64, max_num_seqs=1, **settings)
    messages = [{"role": "user", "content": "a"}]
    assert llm.chat(messages)[0].prompt == "Hello<a>"
    own = llm.chat(messages, chat_template_kwargs={"greeting": "Bye"})
    assert own[0].prompt == "Bye<a>"


def test_a_stream_grows_to_the_whole_answer(llm):
    params = SamplingParams(seed=3, max_tokens=24)
    whole = llm.generate(PROMPT, params)[0].outputs[0]
    outputs = list(llm.stream(PROMPT, params))
    assert len(outputs) == 24 and outputs[-1].finished and not outputs[0].finished
    assert "".join(output.outputs[0].delta for output in outputs) == whole.text
    for before, after in zip(outputs, outputs[1:]):
        assert after.outputs[0].text.startswith(before.outputs[0].text)
    assert outputs[-1].outputs[0].token_ids == whole.token_ids
    assert outputs[-1].outputs[0].finish_reason == whole.finish_reason
    params.output_kind = RequestOutputKind.DELTA
    parts = [output.outputs[0].text for output in llm.stream(PROMPT, params)]
    assert "".join(parts) == whole.text and max(map(len, parts)) < len(whole.text)
    params.output_kind = RequestOutputKind.FINAL_ONLY
    (last,) = llm.stream(PROMPT, params)
    assert last.outputs[0].text == whole.text


def test_speculation_is_a_setting_and_changes_no_token(llm):
    params = greedy(max_tokens=40, prediction="one two three four " * 4)
    drafting = LLM(spec="suffix", max_context=256, max_running=1)
    prompt = "one two three four one two three four one two"
    assert text(drafting.generate(prompt, params)) == text(llm.generate(prompt, params))
    drafting.shutdown()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda llm: llm.generate("", greedy()), ValueError, "empty"),
        (lambda llm: llm.generate(b"x", greedy()), TypeError, "`prompts` must be a str"),
        (lambda llm: llm.generate([1.5], greedy()), TypeError, "a prompt must be a str"),
        (lambda llm: llm.generate([10**6], greedy()), ValueError, "token 1000000"),
        (lambda llm: llm.generate("x " * 999, greedy()), ValueError, "context"),
        (lambda llm: llm.generate(["a", "b"], [greedy()]), ValueError, "1 entries"),
        (lambda llm: llm.generate("a", {"n": 1}), TypeError, "`sampling_params`"),
        (lambda llm: llm.generate({"text": "a"}, greedy()), ValueError, "`text` of a prompt"),
        (lambda llm: llm.generate("a", SamplingParams(temperature=-1)), ValueError, "`temperature`"),
        (lambda llm: llm.generate("a", SamplingParams(n=0)), ValueError, "`n`"),
        (lambda llm: llm.generate("a", SamplingParams(max_tokens=0)), ValueError, "`max_tokens`"),
        (lambda llm: llm.generate("a", use_tqdm=True), ValueError, "`use_tqdm`"),
        (lambda llm: llm.chat([{"role": "user"}], tools=[{}]), ValueError, "`tools`"),
        (lambda llm: llm.chat("hello"), TypeError, "`messages`"),
        (lambda llm: llm.embed("a"), ValueError, "runner='pooling'"),
        (lambda llm: next(llm.stream("a", SamplingParams(best_of=2))), ValueError, "`best_of`"),
        (lambda llm: SamplingParams(prompt_logprobs=1), ValueError, "`prompt_logprobs`"),
        (lambda llm: SamplingParams(bad_words="x"), TypeError, "`bad_words`"),
        (lambda llm: llm.generate("a", SamplingParams(bad_words=[""])), ValueError, "`bad_words`"),
        (lambda llm: llm.generate("a", SamplingParams(typical_p=0)), ValueError, "`typical_p`"),
        (lambda llm: llm.generate("a", SamplingParams(seeds=[1, 2])), ValueError, "`seeds`"),
        (lambda llm: SamplingParams(logprobs=21), ValueError, "`logprobs`"),
        (lambda llm: SamplingParams(top_k=-2), ValueError, "`top_k`"),
        (lambda llm: SamplingParams(seed=-1), ValueError, "`seed` must be a whole number"),
        (lambda llm: SamplingParams(n=1.5), ValueError, "`n` must be a whole number"),
        (lambda llm: SamplingParams(temperature="hot"), TypeError, "`temperature` must be"),
        (lambda llm: SamplingParams(stop=[1]), TypeError, "`stop` must be a text"),
        (lambda llm: SamplingParams(temprature=1), TypeError, "temprature"),
        (lambda llm: LLM("./nowhere"), ValueError, "./nowhere"),
        (lambda llm: LLM(max_contxt=3), TypeError, "did you mean `max_context`?"),
        (lambda llm: LLM(max_context="many"), ValueError, "`max_context`: expected"),
        (lambda llm: LLM(tensor_parallel_size=2), ValueError, "`tensor_parallel_size=2`"),
        (lambda llm: LLM(trust_remote_code=True), ValueError, "never runs code"),
        (lambda llm: LLM(runner="walking"), ValueError, "`walking`"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(llm, call, error, words):
    with pytest.raises(error) as caught:
        call(llm)
    assert words in str(caught.value)


def test_names_of_vllm_that_ask_for_nothing_are_taken():
    llm = LLM(
        trust_remote_code=False,
        tensor_parallel_size=1,
        dtype="auto",
        gpu_memory_utilization=0.9,
        enforce_eager=True,
        max_model_len=64,
        max_num_seqs=1,
        enable_prefix_caching=False,
        seed=4,
    )
    assert llm.info["max_model_len"] == 64
    first, second = (text(llm.generate(PROMPT, SamplingParams())) for _ in range(2))
    assert first == second, "the seed of the class is that of its requests"
    llm.shutdown()
    with pytest.raises(RuntimeError, match="stopping"):
        llm.generate(PROMPT)


def test_vectors_are_arrays_of_length_one():
    llm = LLM(runner="pooling", max_context=64)
    cat, tokens = llm.embed(["a cat", llm_tokens()])
    vector = cat.outputs.embedding
    assert vector.dtype == np.float32 and vector.shape == (llm.info["n_dimensions"],)
    assert cat.outputs.hidden_size == len(vector) and cat.n_tokens > 0
    assert np.array_equal(vector, llm.embed("a cat")[0].outputs.embedding)
    assert tokens.prompt_token_ids == llm_tokens() and tokens.n_tokens == len(llm_tokens())
    assert len(llm.embed("a cat", dimensions=8)[0].outputs.embedding) == 8
    with pytest.raises(ValueError, match="generates no text"):
        llm.generate("a cat")


def llm_tokens():
    return [5, 6, 7]
