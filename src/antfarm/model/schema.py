"""JSON schemas from clients: how large one may be. Pure.

The compiler of grammars bounds its own work, but recurses natively along references and nesting: some
thousands of levels overflow an ordinary stack of 8 MiB and end the process. `STACK` bytes hold what is
allowed here many times over.
"""

from __future__ import annotations

import json
import re
from typing import Any

from antfarm.errors import Reason, RequestError, cut

MAX_CHARS = 100_000
MAX_DEPTH = 64
MAX_WORDS = 300  # characters of a complaint
MAX_REFS = 200
MAX_LEVELS = 2000  # that a chain of all references, each into the deepest nesting, could add up to
STACK = 64 << 20  # for the thread that compiles

# What the compiler says, and what it means to the schema's author.
_WORDS = {
    r"Unimplemented keys: \[(.*)\]": r"not supported: \1",
    r"oneOf constraints are not supported.*": "not supported: oneOf of what can't be told apart; try anyOf",
    r"Invalid type: (.*)": r"there is no type '\1'",
    r"Unknown format: (.*)": r"not supported: the format '\1'",
    r"Unsatisfiable schema: (.*)": r"no text satisfies the schema: \1",
    r"Pointer '(.*)' does not exist": r"the schema has nothing at '#\1', which a $ref names",
    r"Resource '(.*)' is not present.*": r"a $ref names '\1': only what is in the schema is read",
    r"regex parse error:.*\nerror: (.*)": r"a pattern is not supported: \1",
}


def check_schema(text: str, param: str) -> None:
    """Raise `invalid-request`, naming `param`, when a schema (JSON text) is too large to compile."""
    if len(text) > MAX_CHARS:
        raise refused(param, f"the schema has {len(text)} characters; at most {MAX_CHARS} are compiled")
    depth, refs = _measure(json.loads(text))
    if depth > MAX_DEPTH:
        raise refused(param, f"the schema is nested more than {MAX_DEPTH} levels deep")
    if refs > MAX_REFS:
        raise refused(param, f"the schema has {refs} references ($ref); at most {MAX_REFS} are followed")
    if depth * (refs + 1) > MAX_LEVELS:
        raise refused(
            param,
            f"the schema has {refs} references ($ref) to what may be {depth} levels deep, which is too much",
        )


def refused(param: str, why: str) -> RequestError:
    return RequestError(
        Reason.INVALID_REQUEST, f"{param}: {why}", hint="simplify the JSON schema", param=param
    )


def in_plain_words(complaint: str) -> str:
    """The compiler's complaint for the author of a schema."""
    for said, meant in _WORDS.items():
        if match := re.fullmatch(said, complaint.strip(), re.DOTALL):
            return cut(match.expand(meant), MAX_WORDS)
    return cut(complaint.strip(), MAX_WORDS)


def _measure(schema: Any) -> tuple[int, int]:
    """Levels of nesting, and `$ref`s of any kind."""
    depth = refs = 0
    level = [schema]
    while level and depth <= MAX_DEPTH:
        depth += 1
        objects = [each for each in level if isinstance(each, dict)]
        refs += sum(key in each for each in objects for key in ("$ref", "$dynamicRef", "$recursiveRef"))
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
        ]
    return depth, refs
