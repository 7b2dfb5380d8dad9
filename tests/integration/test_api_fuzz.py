"""The API against its own OpenAPI page: whatever the page allows or forbids, answers are as it says, and
no request makes the server fail."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import numpy as np
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from support.scripted import ScriptedQueen, said

from antfarm.messages import TaskAccepted, TaskEvent, TaskFinished, TaskOutput
from antfarm.queen.api import create_app
from antfarm.queen.tasks import TaskRequest

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]


class AnyQueen(ScriptedQueen):
    """Answers everything."""

    async def run(self, request: TaskRequest) -> AsyncGenerator[TaskEvent, None]:
        vector = np.ones(8, "<f4").tobytes()
        output = TaskOutput("t", vector, tokens=np.array([1, 2], "<i4").tobytes(), text="x")
        nothing = [TaskAccepted("t", 1), output, TaskFinished("t", 0, "stop")]
        self.script = said("Hel", "lo", logprobs=True) if request.wanted.kind == "answer" else nothing
        async for event in super().run(request):
            yield event


schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(AnyQueen([])))


@schema.parametrize()
@settings(
    max_examples=40,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_the_api_is_as_its_page_says(case: schemathesis.Case) -> None:
    case.call_and_validate(checks=CHECKS)
