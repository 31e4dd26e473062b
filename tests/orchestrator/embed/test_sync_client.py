"""`OpenAI`, the blocking client, with an event loop of its own beside the caller's thread."""

import gc
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from openai import OpenAI

from nnrp_sched.server import ServerLimits
from nnrp_sched_orchestrator.embed.openai_client import openai_client
from nnrp_sched_orchestrator.embed.records import EmbedSettings
from nnrp_sched_orchestrator.errors import EndpointsUnavailable
from tests.support.embedding import asked, until_called, until_idle
from tests.support.server_stage import Host, stage
from tests.support.serving import body, script
from tests.support.stepped_engine import SteppedEngine, stepped

ENDLESS = script(text="x", hold=True)
THREAD = "nnrp-openai"


class Background:
    """A server in a thread of its own."""

    def __init__(self, portal: BlockingPortal, host: Host, engine: SteppedEngine) -> None:
        self.portal = portal
        self.host = host
        self.engine = engine

    def let(self, steps: int) -> None:
        self.portal.call(self.engine.let, steps)

    def idle(self) -> None:
        self.portal.call(until_idle, self.host)


@pytest.fixture
def served() -> Iterator[Background]:
    engine = SteppedEngine()
    with start_blocking_portal() as portal:
        place = stage(prepare=lambda: (engine, ServerLimits()), tcp=True)
        with portal.wrap_async_context_manager(place) as hosts:
            yield Background(portal, hosts[0], engine)


@pytest.fixture
def client(served: Background) -> Iterator[OpenAI]:
    with openai_client(served.host.name) as made:
        yield made


def ask(client: OpenAI, document: dict[str, Any], **members: Any) -> Any:
    """The answer to a chat body with some more members, whole or as it comes."""
    create: Any = client.chat.completions.create
    return create(**asked(document), **members)


def running() -> list[str]:
    """The threads of clients that were not closed."""
    return [thread.name for thread in threading.enumerate() if thread.name == THREAD]


def test_a_whole_answer(client: OpenAI) -> None:
    answer = ask(client, body("hello"))
    assert answer.choices[0].message.content == "You said: hello"
    assert answer._request_id == "openai#1"


def test_a_stream(client: OpenAI, served: Background) -> None:
    stream = ask(client, body("hello"), stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "You said: hello"
    served.idle()


def test_the_models(client: OpenAI) -> None:
    assert next(model.id for model in client.models.list()) == "example-model"


def leave_the_block(client: OpenAI) -> None:
    with ask(client, ENDLESS, stream=True) as stream:
        next(iter(stream))


def forget(client: OpenAI) -> None:
    for _ in ask(client, ENDLESS, stream=True):
        break
    gc.collect()


def fail(client: OpenAI) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        ask(client, ENDLESS, stream=True) as stream,
    ):
        for _ in stream:
            raise ZeroDivisionError


@pytest.mark.parametrize("leave", [leave_the_block, forget, fail])
def test_a_stream_that_is_left_is_stopped(
    client: OpenAI, served: Background, leave: Callable[[OpenAI], None]
) -> None:
    leave(client)
    served.idle()
    assert len(served.engine.calls) == 1


def test_2c4_the_retry_of_a_timed_out_call_takes_it_over(served: Background) -> None:
    with openai_client(served.host.name, timeout=0.05, max_retries=1) as client:
        with pytest.raises(openai.APITimeoutError):
            ask(client, stepped("a"))
        served.let(1)
        answer = ask(client, stepped("a"))
        assert answer.choices[0].message.content == "a"
        assert len(served.engine.calls) == 1


def test_errors_have_their_status(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        ask(client, {**body(), "model": "other"})
    assert unknown.value.code == "unsupported_model"


def test_many_threads_share_it(client: OpenAI, served: Background) -> None:
    def number_of(number: int) -> str | None:
        answer = ask(client, body(f"number {number}"))
        said: str | None = answer.choices[0].message.content
        return said

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(number_of, range(40)))
    assert answers == [f"You said: number {number}" for number in range(40)]
    served.idle()


def test_an_interrupt_of_the_waiting_thread_stops_the_call(
    client: OpenAI, served: Background
) -> None:
    class Interrupted(BaseException):
        pass

    def interrupt(*_: Any) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    waiting = threading.get_ident()

    async def once_it_runs() -> None:
        await until_called(served.engine, 1)
        signal.pthread_kill(waiting, signal.SIGUSR1)

    try:
        served.portal.start_task_soon(once_it_runs)
        with pytest.raises(Interrupted):
            ask(client, ENDLESS)
    finally:
        signal.signal(signal.SIGUSR1, before)
    served.idle()


def test_closing_it_ends_its_thread_and_what_it_had_going(served: Background) -> None:
    client = openai_client(served.host.name)
    stream = ask(client, ENDLESS, stream=True)
    next(iter(stream))
    assert running() == [THREAD]
    client.close()
    client.close()
    assert running() == []
    served.idle()
    with pytest.raises(RuntimeError, match="closed"):
        ask(client, body())


def test_one_that_nobody_closes_is_closed_when_it_is_forgotten(served: Background) -> None:
    client = openai_client(served.host.name)
    ask(client, body())
    assert running() == [THREAD]
    del client
    gc.collect()
    assert running() == []


def test_an_endpoint_that_nobody_answers_at_leaves_no_thread(served: Background) -> None:
    name = served.host.name
    served.portal.call(served.host.kill)
    with pytest.raises(EndpointsUnavailable):
        openai_client(name)
    assert running() == []


def test_what_has_timed_out_is_stopped_when_no_retry_comes(served: Background) -> None:
    soon = EmbedSettings(retry_seconds=0.01)
    with openai_client(served.host.name, settings=soon, timeout=0.02, max_retries=0) as client:
        with pytest.raises(openai.APITimeoutError):
            ask(client, ENDLESS)
        served.idle()


FORKS = """
import gc, os, signal, sys
import openai
from nnrp_sched_orchestrator.embed.openai_client import openai_client

client = openai_client(sys.argv[1], max_retries=0)

def ask(client, **members):
    messages = [{"role": "user", "content": "hi"}]
    return client.chat.completions.create(model="example-model", messages=messages, **members)

def refused(use):
    try:
        use()
    except openai.APIConnectionError as error:
        assert "before a fork" in str(error.__cause__), error.__cause__
    else:
        raise AssertionError("it was answered")

stream = ask(client, stream=True)

def everything():
    refused(lambda: ask(client))
    try:
        next(stream)
    except Exception as error:
        assert "before a fork" in str(error) + str(error.__cause__)
    stream.close()
    client.close()
    with openai_client(sys.argv[1]) as another:
        assert ask(another).choices[0].message.content == "You said: hi"

def forgetting():
    global client, stream
    del client, stream
    gc.collect()

for use in (everything, forgetting, lambda: None):
    child = os.fork()
    if not child:
        signal.alarm(15)
        use()
        sys.exit(0)  # In order, finalizers and all.
    assert os.waitpid(child, 0)[1] == 0, use
stream.close()
assert ask(client).choices[0].message.content == "You said: hi"
client.close()
"""


def test_a_fork_of_its_process_is_told_so_and_ends_and_harms_nothing(served: Background) -> None:
    script = [sys.executable, "-W", "ignore", "-c", FORKS, served.host.name]
    ran = subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    served.idle()
