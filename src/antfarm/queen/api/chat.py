"""Task events as `/v1/chat/completions` says them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from antfarm.messages import TaskTokens, TokenLogprob
from antfarm.model.toolform import ToolForm
from antfarm.model.toolparser import Arguments, Called, Piece, Said, ToolParser
from antfarm.queen.api import response as body
from antfarm.queen.api.request import ChatRequest
from antfarm.queen.api.tally import Head, Tally, bounded, timings, usage
from antfarm.queen.tasks import TaskRequest


def tasks(request: ChatRequest, model: str) -> list[TaskRequest]:
    """One task for each answer asked for."""
    messages, wanted = tuple(each.message() for each in request.messages), request.wanted()
    return [
        TaskRequest(
            model=model,
            sampling=request.sampling(choice),
            messages=messages,
            wanted=wanted,
            deadline=request.timeout,
        )
        for choice in range(request.n)
    ]


class ChatForm:
    """A `tally.Format`. `logprobs` and `counts` say whether the client asked for them; `most_calls` is how
    many calls of tools it wants at most, and `only_calls` that it wants nothing else."""

    def __init__(
        self,
        head: Head,
        *,
        logprobs: bool,
        counts: bool,
        most_calls: int | None = None,
        only_calls: bool = False,
    ) -> None:
        self._head = head
        self._logprobs = logprobs
        self._counts = counts
        self._most_calls = most_calls
        self._only_calls = only_calls
        self._parsers: dict[int, ToolParser] = {}  # of streamed answers that may call tools, by their index

    def opening(self, tally: Tally) -> Iterable[body.ChatChunk]:
        if tally.tools:
            self._parsers[tally.index] = self._parser(tally)
        yield self._chunk(self._choice(tally, body.Delta(role="assistant", content="")))

    def piece(self, tally: Tally, event: TaskTokens) -> Iterable[body.ChatChunk]:
        parser = self._parsers.get(tally.index)
        deltas = [body.Delta(content=event.text)]
        if parser:
            deltas = [self._delta(tally, piece) for piece in parser.push(event.text)]
        if event.logprobs and self._logprobs:
            first = deltas[0] if deltas else body.Delta()
            yield self._chunk(self._choice(tally, first, event.logprobs))
            deltas = deltas[1:]
        for delta in deltas:
            yield self._chunk(self._choice(tally, delta))

    def closing(self, tally: Tally) -> Iterable[body.ChatChunk]:
        parser = self._parsers.get(tally.index)
        for piece in parser.flush() if parser else ():
            yield self._chunk(self._choice(tally, self._delta(tally, piece)))
        last = self._choice(tally, body.Delta())
        last.finish_reason = _finish(tally, parser.calls if parser else 0)
        yield self._chunk(last)

    def usage(self, tallies: Sequence[Tally]) -> body.ChatChunk:
        return self._chunk().model_copy(update={"usage": usage(tallies), "timings": timings(tallies)})

    def whole(self, tallies: Sequence[Tally]) -> body.ChatCompletion:
        return body.ChatCompletion(
            id=self._head.id,
            object="chat.completion",
            created=self._head.created,
            model=self._head.model,
            system_fingerprint=self._head.fingerprint,
            choices=[self._message(tally) for tally in tallies],
            usage=usage(tallies),
            timings=timings(tallies),
        )

    def _message(self, tally: Tally) -> body.ChatChoice:
        said, calls = tally.text, list[body.ToolCall]()
        if tally.tools:
            parser = self._parser(tally)
            said, calls = self._collected(tally, parser.push(tally.text) + parser.flush())
        message = body.AssistantMessage(role="assistant", content=said, refusal=None)
        if calls:
            message.content, message.tool_calls = said or None, calls
        return body.ChatChoice(
            index=tally.index,
            message=message,
            logprobs=_logprobs(tally.logprobs) if self._logprobs else None,
            finish_reason=_finish(tally, len(calls)) or "stop",
        )

    def _parser(self, tally: Tally) -> ToolParser:
        return ToolParser(ToolForm(tally.tools), most=self._most_calls, only=self._only_calls)

    def _collected(self, tally: Tally, pieces: Sequence[Piece]) -> tuple[str, list[body.ToolCall]]:
        said, calls = "", list[body.ToolCall]()
        for piece in pieces:
            match piece:
                case Said():
                    said += piece.text
                case Called():
                    function = body.FunctionCall(name=piece.name, arguments="")
                    calls.append(
                        body.ToolCall(
                            id=self._call_id(tally, piece.index), type="function", function=function
                        )
                    )
                case Arguments():
                    calls[piece.index].function.arguments += piece.text
        return said, calls

    def _delta(self, tally: Tally, piece: Piece) -> body.Delta:
        match piece:
            case Said():
                return body.Delta(content=piece.text)
            case Called():
                call = body.ToolCallDelta(
                    index=piece.index,
                    id=self._call_id(tally, piece.index),
                    type="function",
                    function=body.FunctionDelta(name=piece.name, arguments=""),
                )
            case Arguments():
                call = body.ToolCallDelta(
                    index=piece.index, function=body.FunctionDelta(arguments=piece.text)
                )
        return body.Delta(tool_calls=[call])

    def _call_id(self, tally: Tally, index: int) -> str:
        return f"call_{self._head.id[-24:]}_{tally.index}_{index}"

    def _choice(
        self, tally: Tally, delta: body.Delta, logprobs: Sequence[TokenLogprob] = ()
    ) -> body.ChunkChoice:
        return body.ChunkChoice(
            index=tally.index,
            delta=delta,
            logprobs=_logprobs(logprobs) if logprobs else None,
            finish_reason=None,
        )

    def _chunk(self, *choices: body.ChunkChoice) -> body.ChatChunk:
        chunk = body.ChatChunk(
            id=self._head.id,
            object="chat.completion.chunk",
            created=self._head.created,
            model=self._head.model,
            system_fingerprint=self._head.fingerprint,
            choices=list(choices),
        )
        if self._counts:
            chunk.usage = None  # said aloud as null, as OpenAI does once counts are asked for
        return chunk


def _finish(tally: Tally, calls: int) -> body.Finish | None:
    return "tool_calls" if calls and tally.finish == "stop" else tally.finish


def _logprobs(tokens: Sequence[TokenLogprob]) -> body.ChatLogprobs:
    return body.ChatLogprobs(
        content=[
            body.TokenLogprob(
                **_alternative(token).model_dump(),
                top_logprobs=[_alternative(other) for other in token.top],
            )
            for token in tokens
        ],
        refusal=None,
    )


def _alternative(token: TokenLogprob) -> body.Alternative:
    return body.Alternative(token=token.text, bytes=list(token.bytes), logprob=bounded(token.logprob))
