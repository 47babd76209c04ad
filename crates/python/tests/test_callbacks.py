"""Code of the user inside a request, signals, threads, and streams that are left early."""

import asyncio
import os
import signal
import threading

import numpy as np
import pytest

from pelton import AsyncLLM, SamplingParams

PROMPT = "Once upon a time"
LONG = 200


def test_a_callback_changes_logits_in_place_or_returns_others(llm):
    plain = llm.generate(PROMPT, SamplingParams(temperature=0))[0].outputs[0].token_ids
    seen = []

    def in_place(output, logits):
        assert logits.dtype == np.float32 and logits.flags.writeable
        seen.append((list(output), logits.copy()))
        logits[1::2] = -np.inf

    def other(prompt, output, logits):
        assert list(prompt) == llm.get_tokenizer().encode(PROMPT)
        return np.where(np.arange(len(logits)) % 2 == 1, np.float32(-np.inf), logits)

    answers = []
    for processor in (in_place, other):
        params = SamplingParams(temperature=0, ignore_eos=True, logits_processors=[processor])
        answers.append(llm.generate(PROMPT, params)[0].outputs[0].token_ids)
    assert answers[0] == answers[1] != plain
    assert all(token % 2 == 0 for token in answers[0])
    assert [output for output, _ in seen] == [answers[0][:i] for i in range(16)]
    assert np.array_equal(seen[0][1], llm.logits(PROMPT))


def test_a_callback_that_raises_ends_its_request_alone(llm, idle):
    def broken(output, logits):
        if len(output) == 2:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        llm.generate([PROMPT, "The king"], SamplingParams(logits_processors=[broken]))
    with pytest.raises(KeyError, match="mine"):
        list(llm.stream(PROMPT, SamplingParams(logits_processors=[broken])))
    idle()
    whole = llm.generate(PROMPT, SamplingParams(ignore_eos=True))[0].outputs[0]
    assert len(whole.token_ids) == 16


@pytest.mark.parametrize("answer", [np.zeros(3, np.float32), np.zeros(4), "logits", 1.0])
def test_a_callback_that_returns_no_logits_is_named(llm, answer):
    params = SamplingParams(logits_processors=[lambda output, logits: answer])
    with pytest.raises(ValueError, match="logits processor return"):
        llm.generate(PROMPT, params)


def test_the_lock_is_free_while_the_model_computes(llm):
    # The engine's thread needs the lock for the callback, and the callback waits for another
    # thread: both would wait for ever if `generate` or the callback's caller kept it.
    asked, answered = threading.Event(), threading.Event()

    def other():
        asked.wait()
        answered.set()

    def callback(output, logits):
        asked.set()
        assert answered.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    llm.generate(PROMPT, SamplingParams(max_tokens=2, logits_processors=[callback]))
    thread.join()


@pytest.mark.parametrize("how", ["generate", "stream"])
def test_ctrl_c_ends_a_generation(llm, idle, how):
    # A shell starts what runs in its background with this signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    # The callback holds the engine until the main thread has heard the signal.
    heard = threading.Event()

    def press(output, logits):
        if len(output) == 3:
            os.kill(os.getpid(), signal.SIGINT)
            assert heard.wait(60)

    params = SamplingParams(max_tokens=LONG, ignore_eos=True, logits_processors=[press])
    try:
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPT, params) if how == "generate" else list(llm.stream(PROMPT, params))
    finally:
        heard.set()
        signal.signal(signal.SIGINT, before)
    idle()


class Gate:
    """A processor that holds the engine after three tokens, and notes how far it came."""

    def __init__(self):
        self.open = threading.Event()
        self.most = 0

    def __call__(self, output, logits):
        self.most = max(self.most, len(output))
        if len(output) == 3:
            assert self.open.wait(60)


@pytest.mark.parametrize("how", ["break", "close", "del", "abort"])
def test_a_stream_that_is_left_early_frees_its_request(llm, idle, how):
    gate = Gate()
    params = SamplingParams(max_tokens=LONG, ignore_eos=True, logits_processors=[gate])
    if how == "break":
        for output in llm.stream(PROMPT, params):
            if len(output.outputs[0].token_ids) == 3:
                break
    else:
        stream = llm._engine().stream((PROMPT, params, 0)) if how == "abort" else llm.stream(PROMPT, params)
        for _ in range(3):
            next(stream)
        if how == "close":
            stream.close()
        elif how == "abort":
            stream.abort()
            assert list(stream) == []
        else:
            del stream
    gate.open.set()
    idle()
    assert gate.most <= 4, "the step that was under way, and none after it"


def test_threads_that_drop_streams_in_the_middle_leave_nothing_behind(llm, idle):
    params = SamplingParams(temperature=0, max_tokens=LONG, ignore_eos=True)
    expected = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=40))[0].outputs[0]
    wrong = []

    def work(number):
        for round in range(4):
            n_tokens = 1 + (7 * number + 3 * round) % 30
            for output in llm.stream(PROMPT, params):
                tokens = output.outputs[0].token_ids
                if len(tokens) >= n_tokens:
                    if tokens != expected.token_ids[: len(tokens)]:
                        wrong.append((number, tokens))
                    break

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    idle()


@pytest.fixture(scope="module")
def async_llm():
    llm = AsyncLLM(max_model_len=256, max_num_seqs=8)
    yield llm
    llm.shutdown()


def test_many_asynchronous_answers_grow_together(async_llm, llm):
    params = SamplingParams(temperature=0, max_tokens=30)
    prompts = [f"Story number {i}:" for i in range(12)]
    expected = [each.outputs[0].text for each in llm.generate(prompts, params)]

    async def read(prompt, name):
        deltas = []
        async for output in async_llm.generate(prompt, params, name):
            assert output.request_id == name
            deltas.append(output.outputs[0].delta)
        assert output.finished
        return "".join(deltas)

    async def main():
        return await asyncio.gather(*(read(prompt, f"r{i}") for i, prompt in enumerate(prompts)))

    assert asyncio.run(main()) == expected
    # Another loop of the same process.
    assert asyncio.run(main()) == expected


def test_a_cancelled_task_ends_its_request(async_llm):
    gate = Gate()
    params = SamplingParams(max_tokens=LONG, ignore_eos=True, logits_processors=[gate])
    n_read = 0

    async def read():
        nonlocal n_read
        async for _ in async_llm.chat([{"role": "user", "content": "Hello"}], params):
            n_read += 1

    async def main():
        task = asyncio.create_task(read())
        while n_read < 3:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open.set()
        while sum(async_llm._llm._engine().load()[:2]) > 0:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert gate.most <= 4


def test_an_exception_of_a_callback_reaches_the_task(async_llm):
    def broken(output, logits):
        raise KeyError("mine")

    async def main():
        async for _ in async_llm.generate(PROMPT, SamplingParams(logits_processors=[broken])):
            pass

    with pytest.raises(KeyError, match="mine"):
        asyncio.run(main())
