"""Talking to a model over the OpenAI API: `antc ask`, `antc chat`."""

from __future__ import annotations

import sys
from contextlib import closing, suppress
from io import TextIOWrapper
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antfarm.cli.options import within
from antfarm.cli.output import complain, document, note, put
from antfarm.cli.session import home_of
from antfarm.errors import AntfarmError, Reason, RequestError, cut

if TYPE_CHECKING:
    from antfarm.client.answers import Answers

app = typer.Typer()

COMMANDS = "Ctrl-C stops an answer, /reset forgets what was said, /bye or Ctrl-D leaves"
LEAVE = ("/bye", "/exit", "/quit")

Model = Annotated[
    str,
    typer.Option(
        "-m",
        "--model",
        metavar="NAME",
        show_default=False,
        help="Which one.  [default: the one that is loaded]",
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        metavar="N", callback=within(1), show_default=False, help="At most so many.  [default: no limit]"
    ),
]
Temperature = Annotated[
    float, typer.Option(metavar="T", callback=within(0, 2), help="0 always takes the likeliest token.")
]
Seed = Annotated[
    int | None, typer.Option(metavar="N", show_default=False, help="The same seed gives the same text.")
]
System = Annotated[
    str, typer.Option(metavar="TEXT", show_default=False, help="A system message to begin with.")
]


@app.command()
def ask(
    context: typer.Context,
    question: Annotated[
        str, typer.Argument(metavar="QUESTION", help='The question; "-" reads it from stdin.')
    ],
    model: Model = "",
    max_tokens: MaxTokens = None,
    temperature: Temperature = 0.7,
    seed: Seed = None,
    system: System = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the API's answer, as one JSON document.")
    ] = False,
) -> None:
    """Ask one question.

    The answer streams to stdout; its rate goes to stderr.
    """
    from antfarm.client.answers import Answers

    _take_stdin_as_it_is()
    text = sys.stdin.read() if question == "-" else question
    if not text.strip():
        raise RequestError(
            Reason.INVALID_REQUEST,
            "the question is empty",
            hint='write it as the argument, or to stdin for "-"',
        )
    body = _settings(model, max_tokens, temperature, seed) | {"messages": [*_opening(system), _user(text)]}
    with Answers.of(home_of(context)) as api:
        if as_json:
            document(api.whole(body))
        else:
            _answer(api, body)


@app.command()
def chat(
    context: typer.Context,
    model: Model = "",
    max_tokens: MaxTokens = None,
    temperature: Temperature = 0.7,
    seed: Seed = None,
    system: System = "",
) -> None:
    """Hold a conversation.

    Ctrl-C stops an answer, /reset forgets what was said, /bye or Ctrl-D leaves. A line that begins with
    / is a command; with //, it goes to the model with one / less.
    """
    from antfarm.client.answers import Answers

    _take_stdin_as_it_is()
    settings = _settings(model, max_tokens, temperature, seed)
    history = _opening(system)
    with Answers.of(home_of(context)) as api:
        note(COMMANDS)
        while (line := _read_line()) is not None and line not in LEAVE:
            if line == "/reset":
                history = _opening(system)
                note("forgotten")
            elif line in ("/help", "/?"):
                note(f"{COMMANDS}; what begins with // goes to the model, with one / less")
            elif line.startswith("/") and not line.startswith("//"):
                note(f"there is no command {cut(line)}: {COMMANDS}, /help tells more")
            elif line:
                history += _turn(api, settings, history, line.removeprefix("/"))


def _turn(
    api: Answers, settings: dict[str, Any], history: list[dict[str, str]], line: str
) -> list[dict[str, str]]:
    """What one exchange adds to the conversation: nothing when it failed, so that it can be tried again."""
    try:
        answer = _answer(api, settings | {"messages": [*history, _user(line)]}, stoppable=True)
    except AntfarmError as error:
        complain(error)
        overflow = error.reason is Reason.CONTEXT_OVERFLOW
        note("/reset makes room" if overflow else "your last message is not part of the conversation")
        return []
    return [_user(line), {"role": "assistant", "content": answer}]


def _answer(api: Answers, body: dict[str, Any], *, stoppable: bool = False) -> str:
    """Print an answer as it comes and its summary; returns the text. `stoppable`: Ctrl-C ends it, not us."""
    text = ""
    last: dict[str, Any] = {}
    try:
        with closing(api.stream(body)) as chunks:
            for last in chunks:
                for choice in last["choices"]:
                    piece = choice["delta"].get("content") or ""
                    text += piece
                    put(piece)
    except KeyboardInterrupt:
        if not stoppable:
            raise
    finally:
        if last:
            put("\n")
    note(_summary(last))
    return text


def _summary(chunk: dict[str, Any]) -> str:
    usage, timings = chunk.get("usage"), chunk.get("timings")
    if not usage or not timings:
        return "(stopped)"
    return (
        f"({usage['completion_tokens']} tokens, {timings['answer_tokens_per_second']:.1f} tokens/s; "
        f"prompt {usage['prompt_tokens']} tokens, {timings['prompt_tokens_per_second']:.1f} tokens/s)"
    )


def _read_line() -> str | None:
    """One line from the person; None when they leave. Ctrl-C at the prompt leaves, too."""
    with suppress(ImportError):
        import readline  # noqa: F401 - gives input() its editing and history
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None


def _settings(model: str, max_tokens: int | None, temperature: float, seed: int | None) -> dict[str, Any]:
    given = {"model": model, "max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    return {name: value for name, value in given.items() if value not in (None, "")}


def _opening(system: str) -> list[dict[str, str]]:
    return [_message("system", system)] if system else []


def _user(text: str) -> dict[str, str]:
    return _message("user", text)


def _message(role: str, text: str) -> dict[str, str]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            Reason.INVALID_REQUEST, f"a {role} message is not UTF-8 text", hint="`iconv` converts it"
        ) from error
    return {"role": role, "content": text}


def _take_stdin_as_it_is() -> None:
    """What is not UTF-8 is found in the message then, as in an argument, not while it is read."""
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
