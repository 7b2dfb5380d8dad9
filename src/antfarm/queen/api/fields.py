"""What request bodies are made of: a strict base, and the fields that need more than a type."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema

from antfarm.errors import cut

MAX_TASKS = 64  # answers to all prompts of one request
MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_BIASES = 1024
MAX_BIAS = 100.0
MAX_INT = 2**31 - 1
MAX_SECONDS = 86_400.0
NEEDED = "a value is needed"  # of a field that is not there, or null

Prompt = str | tuple[int, ...]
"""One prompt of a plain completion: text, or token ids."""


class Body(BaseModel):
    """A JSON object. Types are strict: "1" is no number, and NaN is none either. Null means "not set"."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: object) -> object:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema = handler(core_schema)
        own = handler.resolve_ref_schema(schema)
        for name, field in own.get("properties", {}).items():
            if name not in own.get("required", ()):
                own["properties"][name] = _or_null(field)
        return schema


def _or_null(field: dict[str, Any]) -> dict[str, Any]:
    """A field's JSON schema that allows null as well."""
    told = {key: value for key, value in field.items() if key in ("title", "description", "default")}
    kind = {key: value for key, value in field.items() if key not in told}
    choices = kind.get("anyOf", [kind])
    if {"type": "null"} in choices or {} in choices:
        return field
    return {**told, "anyOf": [*choices, {"type": "null"}]}


def encodable(value: str) -> str:
    """The text itself. Raises ValueError: JSON can spell half a surrogate pair, which no UTF-8 text holds."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError("not valid Unicode text: half of a surrogate pair is in it") from error
    return value


def no_object(value: object) -> str:
    """What is said of a value that should be a JSON object."""
    kind = {list: "a list", str: "a string", int: "a number", float: "a number"}.get(type(value))
    return f"a JSON object is needed, not {kind or json.dumps(value)}"


def json_text(value: object) -> str:
    """A JSON object as text. Raises ValueError for what is none, or can't be written."""
    if not isinstance(value, dict):
        raise ValueError(no_object(value))
    try:
        return encodable(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def own_words(error: ValidationError, otherwise: str) -> ValueError:
    """What one of our own checks says of a part of a value, if one does."""
    own = (str(one["ctx"]["error"]) for one in error.errors() if one["type"] == "value_error")
    return ValueError(next(own, otherwise))


Text = Annotated[str, AfterValidator(encodable)]
TokenId = Annotated[int, Field(ge=0, le=MAX_INT)]

_STRINGS = TypeAdapter(list[Text], config=ConfigDict(strict=True))
_TEXT_OR_TOKENS: TypeAdapter[str | list[int]] = TypeAdapter(
    Text | list[TokenId], config=ConfigDict(strict=True)
)


def refusing(*harmless: object) -> AfterValidator:
    """Takes no other values than these, which change nothing."""

    def refuse(value: object) -> None:
        if value not in harmless:
            raise ValueError("not supported; leave it out")

    return AfterValidator(refuse)


def _stops(value: object) -> tuple[str, ...]:
    try:
        stops = _STRINGS.validate_python([value] if isinstance(value, str) else value)
    except ValidationError as error:
        raise own_words(error, "a string or a list of strings") from error
    if len(stops) > MAX_STOPS:
        raise ValueError(f"at most {MAX_STOPS} stop strings, not {len(stops)}")
    if not all(1 <= len(stop) <= MAX_STOP_CHARS for stop in stops):
        raise ValueError(f"each stop string has 1 to {MAX_STOP_CHARS} characters")
    return tuple(stops)


def _biases(value: object) -> dict[int, float]:
    if not isinstance(value, dict) or len(value) > MAX_BIASES:
        raise ValueError(f"an object of up to {MAX_BIASES} token ids with numbers")
    return dict(_bias(token, bias) for token, bias in value.items())


def _bias(token: str, bias: object) -> tuple[int, float]:
    if not (token.isascii() and token.isdigit() and int(token[:20]) <= MAX_INT):
        raise ValueError(f"{cut(token, 20)!r} is no token id")
    if isinstance(bias, bool) or not isinstance(bias, int | float) or not math.isfinite(bias):
        raise ValueError(f"the bias of token {cut(token, 20)} is no number")
    if abs(bias) > MAX_BIAS:
        raise ValueError(f"the bias of token {cut(token, 20)} is outside -100 to 100")
    return int(token), float(bias)


def prompts(value: object, most: int = MAX_TASKS) -> tuple[Prompt, ...]:
    """The four forms that OpenAI takes: text, texts, token ids, lists of token ids."""
    one = isinstance(value, str) or (isinstance(value, list) and value and isinstance(value[0], int))
    given: object = [value] if one else value
    if not isinstance(given, list) or not given:
        raise ValueError("a string, a list of strings, token ids, or a list of lists of token ids")
    if len(given) > most:
        raise ValueError(f"at most {most} at once, not {len(given)}")
    return tuple(_prompt(item) for item in given)


def _prompt(value: object) -> Prompt:
    try:
        prompt = _TEXT_OR_TOKENS.validate_python(value)
    except ValidationError as error:
        raise own_words(error, "each is a string or a list of token ids") from error
    if not prompt:
        raise ValueError("none can be empty")
    return prompt if isinstance(prompt, str) else tuple(prompt)


_Words = Annotated[str, Field(min_length=1)]
_Ids = Annotated[list[TokenId], Field(min_length=1)]
AnyPrompts = _Words | Annotated[list[_Words], Field(min_length=1)] | _Ids | list[_Ids]
"""What `prompts` takes, for the OpenAPI page."""

NOT_SUPPORTED = Field(description="Not supported: refused when set.")
Unsupported = Annotated[Any, refusing(False, "", [], {}), NOT_SUPPORTED]
_Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
_AnyStops = _Stop | Annotated[list[_Stop], Field(max_length=MAX_STOPS)]
Seconds = Annotated[
    float | None,
    Field(
        gt=0, le=MAX_SECONDS, description="Extension. Then it ends with `timeout`: 504. Null sets no bound."
    ),
]
Stops = Annotated[tuple[str, ...], PlainValidator(_stops, json_schema_input_type=_AnyStops)]
JsonText = Annotated[str, PlainValidator(json_text, json_schema_input_type=dict[str, Any])]
Biases = Annotated[dict[int, float], PlainValidator(_biases, json_schema_input_type=dict[str, float])]


class TextPart(Body):
    type: Literal["text"]
    text: Text
