"""`nnrp-sched chat`: one chat, answered on stdout."""

import json
import math
from functools import partial
from typing import Any

import anyio
import click
import msgspec

from nnrp_sched.cli.security import Dial, connecting
from nnrp_sched.client import Outcome, connect
from nnrp_sched.profile import OutputTextDelta
from nnrp_sched.transport import ClientSecurity


def _finite(_ctx: click.Context, _param: click.Parameter, value: float | None) -> float | None:
    """Refuse `nan` and `inf`, which are floats to Python and no numbers to JSON."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number")
    return value


def _sendable(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Refuse text that came as other bytes than UTF-8, which Python holds as lone surrogates."""
    try:
        (value or "").encode()
    except UnicodeEncodeError:
        raise click.BadParameter(f"{value!r} is not valid UTF-8") from None
    return value


@click.command("chat")
@click.argument("text", callback=_sendable)
@connecting
@click.option(
    "--model", callback=_sendable, help="Model id; default: the first one the server has."
)
@click.option("--system", callback=_sendable, help="A system message before the text.")
@click.option("--max-tokens", type=click.IntRange(1), default=256, help="Length of the answer.")
@click.option(
    "--temperature",
    type=float,
    default=0.0,
    callback=_finite,
    help="0 gives the same answer every time.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, min_open=True),
    callback=_finite,
    help="Limit in seconds.",
)
@click.option("--stream/--no-stream", default=True, help="Print the answer as it comes.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole outcome as one JSON object.")
def command(
    text: str,
    endpoint: str,
    security: ClientSecurity,
    model: str | None,
    system: str | None,
    max_tokens: int,
    temperature: float,
    timeout_s: float | None,
    stream: bool,
    as_json: bool,
) -> int:
    """Send TEXT to a server and print the answer.

    Exits with 1 when the server answers with an error.

    \b
    Example:
      nnrp-sched chat "What is the capital of France?"
    """
    messages = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    body: dict[str, Any] = {
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "stream": stream,
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
    timeout_ms = max(1, round(timeout_s * 1000)) if timeout_s is not None else None
    outcome = anyio.run(
        partial(
            _chat,
            partial(connect, endpoint, security=security),
            body,
            model,
            timeout_ms=timeout_ms,
            echo=stream and not as_json,
        )
    )
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(outcome)))
    elif not stream and outcome.status == "completed":
        click.echo(outcome.text)
    if outcome.status == "completed":
        return 0
    why = outcome.error.message if outcome.error is not None else outcome.reason
    click.echo(f"nnrp-sched: the chat ended as {outcome.status}: {why}", err=True)
    return 1


async def _chat(
    dial: Dial, body: dict[str, Any], model: str | None, *, timeout_ms: int | None, echo: bool
) -> Outcome:
    async with dial() as connection, connection.session() as session:
        if model is None:
            capabilities = await session.capabilities()
            model = str(capabilities["models"][0]["id"])
        chat = session.chat({"model": model, **body}, timeout_ms=timeout_ms)
        async for event in chat:
            if echo and isinstance(event, OutputTextDelta) and event.index == 0:
                click.echo(event.delta, nl=False)
        if echo:
            click.echo()
        return await chat.result()
