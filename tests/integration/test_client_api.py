"""`Colony.connect(URL)` and the blocking `Answers` against the real API, its answers from a script."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable

import pytest
from support.scripted import said
from support.served import DEADLINE_S, served

from antfarm import AntfarmError, Colony, Reason
from antfarm.client.answers import Answers
from antfarm.client.blocking import Blocking
from antfarm.messages import ChatMessage, Failure, TaskFinished


async def aside(work: Callable[[], None]) -> None:
    """Blocking calls go to a thread: the server lives in this one."""
    await asyncio.wait_for(asyncio.to_thread(work), DEADLINE_S)


async def test_ask_and_stream_without_an_event_loop() -> None:
    async with served(said("Blue ", "light.")) as api:

        def talk() -> None:
            with Colony.connect(f"{api.url}/v1") as colony:
                answer = colony.model().ask("Why?", temperature=0, seed=4, stop=["\n"])
                assert str(answer) == answer.text == "Blue light."
                assert answer.finish_reason == "stop"
                assert (answer.prompt_tokens, answer.completion_tokens) == (7, 2)
                assert (answer.tokens_per_second, answer.prompt_tokens_per_second) == (0.5, 14.0)
                assert list(colony.model("tiny").stream("Why?")) == ["Blue ", "light."]

        await aside(talk)
    first = api.queen.requests[0]
    assert first.messages == (ChatMessage("user", "Why?"),)
    assert (first.sampling.temperature, first.sampling.seed, first.sampling.stop) == (0, 4, ("\n",))


async def test_ask_and_stream_with_one() -> None:
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    async with served(said("Blue.")) as api, Colony.connect(api.url) as colony:
        model = colony.model("tiny")
        assert (await model.aask(talk)).text == "Blue."
        assert [piece async for piece in model.astream(talk)] == ["Blue."]
    assert api.queen.requests[1].messages == (ChatMessage("system", "Be brief."), ChatMessage("user", "Why?"))


@pytest.mark.parametrize("blocking", [True, False])
async def test_leaving_a_stream_early_ends_the_task(blocking: bool) -> None:
    async with served([*said("Blue", "light")[:2], asyncio.Event()]) as api:

        def leave() -> None:
            with Colony.connect(api.url) as colony:
                for _ in colony.model().stream("Why?"):
                    break

        if blocking:
            await aside(leave)
        else:
            async with Colony.connect(api.url) as colony:
                stream = colony.model().astream("Why?")
                await anext(stream)
                await stream.aclose()
        await asyncio.wait_for(api.queen.ended.wait(), DEADLINE_S)


async def test_errors_come_back_as_they_were_raised() -> None:
    refusal = AntfarmError(Reason.CONTEXT_OVERFLOW, "600 tokens do not fit 512", hint="ask for less")
    async with served([refusal]) as api, Colony.connect(api.url) as colony:
        with pytest.raises(AntfarmError) as raised:
            await colony.model().aask("x" * 600)
        assert raised.value.reason is Reason.CONTEXT_OVERFLOW
        assert "600 tokens do not fit 512 (ask for less)" in raised.value.message
        lost = Failure(Reason.FORAGER_LOST, "gone")
        api.queen.script = [*said("Blue")[:2], TaskFinished(task="t", index=1, finish="error", failure=lost)]
        with pytest.raises(AntfarmError) as raised:
            await colony.model().aask("Why?")
        assert raised.value.reason is Reason.FORAGER_LOST
        with pytest.raises(AntfarmError) as raised:
            await colony.model("nobody").aask("Why?")
        assert raised.value.reason is Reason.MODEL_UNKNOWN


async def test_the_key_is_sent() -> None:
    async with served(said("Yes."), api_key="sesame") as api:
        async with Colony.connect(api.url, api_key="sesame") as colony:
            assert str(await colony.model().aask("Open?")) == "Yes."
            assert colony.api_key == "sesame"
            assert colony.base_url == f"{api.url}/v1"
        async with Colony.connect(api.url) as colony:
            with pytest.raises(AntfarmError) as raised:
                await colony.model().aask("Open?")
    assert raised.value.reason is Reason.UNAUTHORIZED


async def test_blocking_answers_of_the_command_line() -> None:
    async with served(said("Blue ", "light.")) as api:

        def talk() -> None:
            body = {"messages": [{"role": "user", "content": "Why?"}]}
            with Answers(api.url) as answers:
                assert answers.whole(body)["choices"][0]["message"]["content"] == "Blue light."
                *said, last = answers.stream(body)
                assert len(said) == 4
                assert last["usage"]["total_tokens"] == 9
                assert last["timings"]["answer_s"] == 2.0

        await aside(talk)


async def test_nothing_there_is_colony_down() -> None:
    async with Colony.connect("http://127.0.0.1:9") as colony:
        with pytest.raises(AntfarmError) as raised:
            await colony.model().aask("Why?")
        assert raised.value.reason is Reason.COLONY_DOWN
        with pytest.raises(AntfarmError, match="aask"):
            colony.model().ask("Why?")
        with pytest.raises(AntfarmError, match="can't load"):
            await colony.aload("tiny")
    with pytest.raises(AntfarmError, match="not open"):
        colony.model()


def test_an_interrupted_call_is_cancelled() -> None:
    """As Ctrl-C does: what waits in the main thread is interrupted, the work must not go on unseen."""
    blocking = Blocking()
    begun, cancelled = threading.Event(), threading.Event()

    async def forever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    main = threading.get_ident()

    def interrupt() -> None:
        if begun.wait(DEADLINE_S):
            signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        blocking.run(forever())
    assert cancelled.wait(DEADLINE_S)
    blocking.close()


def test_an_interrupted_stream_is_closed_before_the_caller_goes_on() -> None:
    blocking = Blocking()
    main = threading.get_ident()
    closed = threading.Event()

    async def pieces() -> AsyncGenerator[str, None]:
        try:
            yield "Blue "
            signal.pthread_kill(main, signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)  # as a connection that takes a moment to close
            closed.set()

    with pytest.raises(KeyboardInterrupt):
        for _ in blocking.iterate(pieces()):
            pass
    assert closed.is_set()
    blocking.close()


def test_importing_antfarm_is_cheap() -> None:
    script = "import sys, antfarm; print(any(m in sys.modules for m in ('httpx', 'msgspec', 'asyncio')))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
