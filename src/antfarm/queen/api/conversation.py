"""The parts of a chat request that are more than numbers: messages, tools, and the form of the answer."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from antfarm.errors import cut
from antfarm.messages import ChatMessage, Tool, ToolCall
from antfarm.queen.api.fields import (
    NEEDED,
    Body,
    JsonText,
    Text,
    TextPart,
    Unsupported,
    encodable,
    json_text,
    own_words,
)

MAX_TOOLS = 128
NAME = r"^[a-zA-Z0-9_-]{1,64}$"
CONTENT = 'a string, or a list of text parts: {"type": "text", "text": "..."}'

Name = Annotated[str, Field(pattern=NAME)]

_PARTS = TypeAdapter(list[TextPart])


def _content(value: object, info: ValidationInfo) -> str:
    if value is None:
        if info.data.get("tool_calls"):
            return ""
        raise ValueError("a text is needed; null goes only beside an assistant's tool_calls")
    if isinstance(value, str):
        return encodable(value)
    try:
        return "".join(part.text for part in _PARTS.validate_python(value))
    except ValidationError as error:
        raise _no_content(error) from error


def _no_content(error: ValidationError) -> ValueError:
    first = error.errors()[0]
    if first["type"] == "literal_error":
        kind = cut(str(first["input"]), 20)
        return ValueError(f"parts of type {kind!r} are not supported; it is {CONTENT}")
    return own_words(error, CONTENT)


class FunctionCallBody(Body):
    name: Name
    arguments: Text = Field("{}", description="JSON text, as the model wrote it.")


class ToolCallBody(Body):
    id: Text = ""
    type: Literal["function"] = "function"
    function: FunctionCallBody


class ChatMessageBody(Body):
    """One message of a conversation."""

    role: Annotated[
        Literal["system", "developer", "user", "assistant", "tool"],
        AfterValidator(lambda role: "system" if role == "developer" else role),
    ] = Field(description="`developer` is taken as `system`.")
    tool_calls: list[ToolCallBody] = Field([], description="Of an assistant's message: what it called.")
    tool_call_id: Text = Field("", description="Of a tool's message: the call whose result it is.")
    name: Text = ""
    content: Annotated[str, PlainValidator(_content, json_schema_input_type=str | list[TextPart] | None)] = (
        Field(None, validate_default=True, description="May be left out beside `tool_calls` only.")
    )
    function_call: Unsupported = None

    @field_validator("tool_calls")
    @classmethod
    def _of_assistants(cls, calls: list[ToolCallBody], info: ValidationInfo) -> list[ToolCallBody]:
        if calls and info.data.get("role") != "assistant":
            raise ValueError("only an assistant's message has them")
        return calls

    def message(self) -> ChatMessage:
        calls = [ToolCall(call.id, call.function.name, call.function.arguments) for call in self.tool_calls]
        return ChatMessage(self.role, self.content, tuple(calls), self.tool_call_id, self.name)


def _parameters(value: object) -> str:
    text = json_text(value)
    if isinstance(value, dict) and value.get("type", "object") != "object":
        raise ValueError('a JSON schema of "type": "object"')
    return text if value else ""


class FunctionBody(Body):
    name: Name
    description: Text = ""
    parameters: Annotated[
        str | None, PlainValidator(_parameters, json_schema_input_type=dict[str, Any] | None)
    ] = Field(None, description="A JSON schema of an object. Left out, the function takes no arguments.")
    strict: bool = Field(False, description="Calls follow the schema under `tool_choice: auto`, too.")


class ToolBody(Body):
    type: Literal["function"]
    function: FunctionBody

    def tool(self) -> Tool:
        of = self.function
        return Tool(of.name, of.description, of.parameters or "", of.strict)


class ChosenFunction(Body):
    name: Name


class ChosenTool(Body):
    type: Literal["function"]
    function: ChosenFunction


_CHOICES = ("none", "auto", "required")


def _choice(value: object, info: ValidationInfo) -> str | ChosenTool:
    """One of `_CHOICES`, or the function that must be called, which must be among the tools."""
    if isinstance(value, str) and value in _CHOICES:
        choice: str | ChosenTool = value
    else:
        try:
            choice = ChosenTool.model_validate(value)
        except ValidationError as error:
            shape = '{"type": "function", "function": {"name": "..."}}'
            raise ValueError(f"one of {', '.join(_CHOICES)}, or {shape}") from error
    names = [tool.function.name for tool in info.data.get("tools", [])]
    if isinstance(choice, ChosenTool) and choice.function.name not in names:
        raise ValueError(f"no tool is named {choice.function.name!r}")
    if choice == "required" and not names:
        raise ValueError("there are no tools")
    return choice


ToolChoice = Annotated[
    str | ChosenTool,
    PlainValidator(_choice, json_schema_input_type=Literal["none", "auto", "required"] | ChosenTool),
]


def distinct(tools: list[ToolBody]) -> list[ToolBody]:
    """Raises ValueError when two tools have the same name."""
    (name, count) = Counter(tool.function.name for tool in tools).most_common(1)[0] if tools else ("", 0)
    if count > 1:
        raise ValueError(f"{count} tools are named {name!r}")
    return tools


class JsonSchemaBody(Body):
    name: Name = "answer"
    description: Text = ""
    schema_: JsonText = Field(alias="schema", description="A JSON schema, as llguidance reads it.")


class ResponseFormatBody(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaBody | None = Field(None, validate_default=True)

    @field_validator("json_schema")
    @classmethod
    def _beside_its_type(cls, schema: JsonSchemaBody | None, info: ValidationInfo) -> JsonSchemaBody | None:
        if info.data.get("type") == "json_schema" and schema is None:
            raise ValueError(NEEDED)
        return schema

    def text(self) -> str | None:
        """The schema that an answer must follow, as JSON text."""
        if self.type == "json_object":
            return '{"type": "object"}'
        return self.json_schema.schema_ if self.json_schema else None
