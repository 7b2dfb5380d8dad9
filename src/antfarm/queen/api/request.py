"""What clients send: OpenAI's request bodies, with the extensions of llama.cpp and vLLM.

Unknown fields are tolerated, since clients add new ones all the time. A field that would change
the answer's meaning and isn't supported is refused: silence would be a wrong answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainValidator, ValidationInfo

from antfarm.messages import Wanted
from antfarm.queen.api.conversation import (
    MAX_TOOLS,
    ChatMessageBody,
    ChosenTool,
    ResponseFormatBody,
    ToolBody,
    ToolChoice,
    distinct,
)
from antfarm.queen.api.fields import (
    MAX_INT,
    MAX_STOPS,
    NOT_SUPPORTED,
    AnyPrompts,
    Biases,
    Body,
    Prompt,
    Seconds,
    Stops,
    Text,
    Unsupported,
    prompts,
    refusing,
)
from antfarm.types import Sampling

MAX_CHOICES = 16  # answers to one prompt
MAX_ALTERNATIVES = 20  # reported with each token
COMPLETION_TOKENS = 16  # OpenAI's default for plain completions
SMALLEST_TOP_P = 1e-9  # stands for 0: the likeliest token alone
SEED_MASK = 2**63 - 1


def _beside_logprobs(value: int, info: ValidationInfo) -> int:
    if value and not info.data.get("logprobs", True):  # which is not there when it is wrong itself
        raise ValueError("needs logprobs: true")
    return value


def _as_n(value: int | None, info: ValidationInfo) -> int | None:
    if value not in (None, 1, info.data.get("n", value)):
        raise ValueError("choosing among more answers than n is not supported; leave it out")
    return value


class StreamOptions(Body):
    include_usage: bool = Field(default=False, description="Send token counts in one more chunk at the end.")


class CompletionBody(Body):
    """The fields that chat and plain completions share."""

    model: Text = Field(
        "", description="A loaded model. May be empty or `default` when exactly one is loaded."
    )
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    n: int = Field(1, ge=1, le=MAX_CHOICES, description="Answers to each prompt.")
    max_tokens: int | None = Field(
        None, ge=1, le=MAX_INT, description="More than the context has room for means: all of that room."
    )
    temperature: float = Field(1.0, ge=0, le=2, description="0 always takes the likeliest token.")
    top_p: float = Field(1.0, ge=0, le=1, description="0 always takes the likeliest token.")
    top_k: int = Field(0, ge=-1, le=MAX_INT, description="Extension. 0 or -1 is off.")
    min_p: float = Field(0.0, ge=0, le=1, description="Extension.")
    repetition_penalty: float = Field(1.0, ge=0.01, le=10, description="Extension. 1 is off.")
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    seed: int | None = Field(
        None, ge=-(2**63), lt=2**63, description="The same seed and request give the same text."
    )
    stop: Stops = Field(
        (), description=f"Up to {MAX_STOPS} strings; the answer ends before the first that appears."
    )
    logit_bias: Biases = Field(
        {}, description="Token ids, as strings, with what is added to their logits: -100 to 100."
    )
    timeout: Seconds = None
    ignore_eos: bool = Field(False, description="Extension. Go on after the model's end token.")
    response_format: ResponseFormatBody | None = None
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

    def wanted(self) -> Wanted:
        """What the answer must be."""
        return Wanted(schema=self.schema_text())

    def schema_text(self) -> str | None:
        return self.response_format.text() if self.response_format else None

    def sampling(self, choice: int) -> Sampling:
        """For the `choice`-th answer to a prompt: they share a seed, so each adds its own index."""
        return Sampling(
            temperature=self.temperature,
            top_k=max(0, self.top_k),
            top_p=self.top_p or SMALLEST_TOP_P,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=None if self.seed is None else (self.seed + choice) & SEED_MASK,
            max_tokens=self.token_limit(),
            stop=self.stop,
            logprobs=self.alternatives(),
            ignore_eos=self.ignore_eos,
            logit_bias=self.logit_bias,
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
    top_logprobs: Annotated[int, AfterValidator(_beside_logprobs)] = Field(
        0, ge=0, le=MAX_ALTERNATIVES, description="Beside `logprobs`."
    )
    tools: Annotated[list[ToolBody], AfterValidator(distinct)] = Field([], max_length=MAX_TOOLS)
    tool_choice: ToolChoice = Field("auto", description="`required` and a function's name bind the answer.")
    parallel_tool_calls: bool = Field(True, description="False ends the answer with its first call.")
    functions: Unsupported = None
    function_call: Annotated[Any, refusing("none"), NOT_SUPPORTED] = None
    modalities: Annotated[Any, refusing([], ["text"]), Field(description="`text` only.")] = None
    audio: Unsupported = None
    web_search_options: Annotated[Any, refusing(), NOT_SUPPORTED] = None

    def wanted(self) -> Wanted:
        tools = () if self.tool_choice == "none" else tuple(tool.tool() for tool in self.tools)
        return Wanted(
            schema=self.schema_text(),
            tools=tools,
            tool_choice="auto" if self.tool_choice in ("none", "auto") else "required",
            tool=self.tool_choice.function.name if isinstance(self.tool_choice, ChosenTool) else "",
            parallel_calls=self.parallel_tool_calls,
        )

    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def alternatives(self) -> int | None:
        return self.top_logprobs if self.logprobs else None


class TextRequest(CompletionBody):
    """`POST /v1/completions`"""

    prompt: Annotated[
        Sequence[Prompt], PlainValidator(lambda value: prompts(value), json_schema_input_type=AnyPrompts)
    ]
    max_tokens: int | None = Field(COMPLETION_TOKENS, ge=1, le=MAX_INT)
    logprobs: int | None = Field(None, ge=0, le=MAX_ALTERNATIVES)
    best_of: Annotated[int | None, AfterValidator(_as_n)] = Field(
        None, ge=1, le=MAX_CHOICES, description="Not supported: refused unless it is 1 or `n`."
    )
    echo: Unsupported = None
    suffix: Unsupported = None

    def alternatives(self) -> int | None:
        return self.logprobs
