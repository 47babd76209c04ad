"""One model for all tests: the story model inside the package."""

import time

import pytest

from pelton import LLM


@pytest.fixture(scope="session")
def llm():
    return LLM(max_model_len=256, max_num_seqs=8)


@pytest.fixture
def idle(llm):
    """Waits until the engine has no request; fails when it keeps one."""

    def wait():
        deadline = time.monotonic() + 60
        while True:
            n_waiting, n_running, _ = llm._engine().load()
            if n_waiting + n_running == 0:
                return
            assert time.monotonic() < deadline, f"{n_waiting} wait, {n_running} run"
            time.sleep(0.01)

    return wait
