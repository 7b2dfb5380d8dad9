"""What clients send: OpenAI's request bodies, with the extensions of llama.cpp and vLLM.

Unknown fields are tolerated, since clients add new ones all the time. A field that would change
the answer's meaning and isn't supported is refused: silence would be a wrong answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from antfarm.types import Sampling

MAX_CHOICES = 16  # answers to one prompt
MAX_TASKS = 64  # answers to all prompts of one request
MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_ALTERNATIVES = 20  # reported with each token
COMPLETION_TOKENS = 16  # OpenAI's default for plain completions
MAX_INT = 2**31 - 1
SEED_MASK = 2**63 - 1

Prompt = str | tuple[int, ...]
"""One prompt of a plain completion: text, or token ids."""


class Body(BaseModel):
    """A JSON object. Types are strict: "1" is no number, and NaN is none either. Null means "not set"."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: object) -> object:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data


def _encodable(value: str) -> str:
    """JSON can spell half a surrogate pair, which no UTF-8 text holds."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError("not valid Unicode text") from error
    return value


Text = Annotated[str, AfterValidator(_encodable)]


class TextPart(Body):
    type: Literal["text"]
    text: Text


_PARTS = TypeAdapter(list[TextPart])
_STRING = TypeAdapter(Text, config=ConfigDict(strict=True))
_STRINGS = TypeAdapter(list[Text], config=ConfigDict(strict=True))
_TEXT_OR_TOKENS: TypeAdapter[str | list[int]] = TypeAdapter(
    Text | list[Annotated[int, Field(ge=0, le=MAX_INT)]], config=ConfigDict(strict=True)
)


def _refuse(value: object) -> None:
    if value not in (False, "", [], {}):
        raise ValueError("not supported yet; leave it out")


def _text_format(value: object) -> None:
    if value != {"type": "text"}:
        raise ValueError('only {"type": "text"} is supported yet')


def _content(value: object) -> str:
    try:
        return _STRING.validate_python(value)
    except ValidationError:
        pass
    try:
        return "".join(part.text for part in _PARTS.validate_python(value))
    except ValidationError as error:
        raise ValueError('a string, or a list of text parts: {"type": "text", "text": "..."}') from error


def _stops(value: object) -> tuple[str, ...]:
    try:
        stops = _STRINGS.validate_python([value] if isinstance(value, str) else value)
    except ValidationError as error:
        raise ValueError("a string or a list of strings") from error
    if len(stops) > MAX_STOPS:
        raise ValueError(f"at most {MAX_STOPS} stop strings, not {len(stops)}")
    if not all(1 <= len(stop) <= MAX_STOP_CHARS for stop in stops):
        raise ValueError(f"each stop string has 1 to {MAX_STOP_CHARS} characters")
    return tuple(stops)


def _prompts(value: object) -> tuple[Prompt, ...]:
    """The four forms that OpenAI takes: text, texts, token ids, lists of token ids."""
    one = isinstance(value, str) or (isinstance(value, list) and value and isinstance(value[0], int))
    given: object = [value] if one else value
    if not isinstance(given, list) or not given:
        raise ValueError("a string, a list of strings, token ids, or a list of lists of token ids")
    if len(given) > MAX_TASKS:
        raise ValueError(f"at most {MAX_TASKS} prompts, not {len(given)}")
    return tuple(_prompt(item) for item in given)


def _prompt(value: object) -> Prompt:
    try:
        prompt = _TEXT_OR_TOKENS.validate_python(value)
    except ValidationError as error:
        raise ValueError("each prompt is a string or a list of token ids") from error
    if not prompt:
        raise ValueError("a prompt can't be empty")
    return prompt if isinstance(prompt, str) else tuple(prompt)


Unsupported = Annotated[
    Any, AfterValidator(_refuse), Field(description="Not supported yet: refused when set.")
]


class StreamOptions(Body):
    include_usage: bool = Field(default=False, description="Send token counts in one more chunk at the end.")


class ChatMessageBody(Body):
    """One message of a conversation."""

    role: Annotated[
        Literal["system", "user", "assistant"],
        BeforeValidator(lambda role: "system" if role == "developer" else role),
    ] = Field(description="`developer` is taken as `system`.")
    content: Annotated[str, PlainValidator(_content, json_schema_input_type=str | list[TextPart])]
    tool_calls: Unsupported = None
    function_call: Unsupported = None


class CompletionBody(Body):
    """The fields that chat and plain completions share."""

    model: Text = Field(
        "", description="A loaded model. May be empty or `default` when exactly one is loaded."
    )
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    n: int = Field(1, ge=1, le=MAX_CHOICES, description="Answers to each prompt.")
    max_tokens: int | None = Field(None, ge=1, le=MAX_INT)
    temperature: float = Field(1.0, ge=0, le=2, description="0 always takes the likeliest token.")
    top_p: float = Field(1.0, ge=0, le=1)
    top_k: int = Field(0, ge=-1, le=MAX_INT, description="Extension. 0 or -1 is off.")
    min_p: float = Field(0.0, ge=0, le=1, description="Extension.")
    repetition_penalty: float = Field(1.0, gt=0, le=10, description="Extension. 1 is off.")
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    seed: int | None = Field(
        None, ge=-(2**63), lt=2**63, description="The same seed and request give the same text."
    )
    stop: Annotated[tuple[str, ...], PlainValidator(_stops, json_schema_input_type=str | list[str])] = Field(
        (), description=f"Up to {MAX_STOPS} strings; the answer ends before the first that appears."
    )
    ignore_eos: bool = Field(False, description="Extension. Go on after the model's end token.")
    response_format: Annotated[Any, AfterValidator(_text_format)] = None
    logit_bias: Unsupported = None
    grammar: Unsupported = None
    json_schema: Unsupported = None
    guided_json: Unsupported = None
    guided_regex: Unsupported = None
    guided_choice: Unsupported = None
    guided_grammar: Unsupported = None
    structured_outputs: Unsupported = None

    @property
    def counts(self) -> bool:
        """Whether a stream ends with token counts."""
        return self.stream_options.include_usage

    def sampling(self, choice: int) -> Sampling:
        """For the `choice`-th answer to a prompt: they share a seed, so each adds its own index."""
        return Sampling(
            temperature=self.temperature,
            top_k=max(0, self.top_k),
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=None if self.seed is None else (self.seed + choice) & SEED_MASK,
            max_tokens=self.token_limit(),
            stop=self.stop,
            logprobs=self.alternatives(),
            ignore_eos=self.ignore_eos,
        )

    def token_limit(self) -> int | None:
        return self.max_tokens

    def alternatives(self) -> int | None:
        """How many alternatives to report with each token; None reports no probabilities at all."""
        raise NotImplementedError


class ChatRequest(CompletionBody):
    """`POST /v1/chat/completions`"""

    messages: list[ChatMessageBody] = Field(min_length=1, max_length=4096)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_INT, description="Goes before `max_tokens`.")
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MAX_ALTERNATIVES)
    tools: Unsupported = None
    functions: Unsupported = None
    web_search_options: Unsupported = None

    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def alternatives(self) -> int | None:
        return self.top_logprobs if self.logprobs else None


class TextRequest(CompletionBody):
    """`POST /v1/completions`"""

    prompt: Annotated[
        Sequence[Prompt],
        PlainValidator(_prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
    ]
    max_tokens: int | None = Field(COMPLETION_TOKENS, ge=1, le=MAX_INT)
    logprobs: int | None = Field(None, ge=0, le=MAX_ALTERNATIVES)
    echo: Unsupported = None
    suffix: Unsupported = None

    def alternatives(self) -> int | None:
        return self.logprobs
