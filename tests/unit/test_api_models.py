"""The model that a request names, and what is said when it is not there."""

from __future__ import annotations

import pytest
from support.scripted import ScriptedQueen, model

from antfarm.errors import AntfarmError, Reason
from antfarm.queen.api import models
from antfarm.queen.api.errors import error_body


@pytest.mark.parametrize(("name", "reason"), [("never", Reason.MODEL_UNKNOWN), ("old", Reason.MODEL_RETIRED)])
def test_a_model_that_is_not_there_says_what_became_of_it(name: str, reason: Reason) -> None:
    queen = ScriptedQueen([], [model("tiny")])
    queen.retired = {"old"}
    with pytest.raises(AntfarmError) as caught:
        models.chosen(queen, name)
    detail = error_body(caught.value).error
    assert (detail.code, detail.param) == (reason, "model")
    assert "loaded: tiny" in detail.message


@pytest.mark.parametrize("gone", [False, True])
def test_a_name_without_end_is_not_told_to_its_end(gone: bool) -> None:
    queen, name = ScriptedQueen([], [model("tiny")]), "x" * 100_000
    queen.retired = {name} if gone else set()
    with pytest.raises(AntfarmError) as caught:
        models.chosen(queen, name)
    assert "'xxxx" in caught.value.message
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("name", ["", "default"])
def test_the_only_model_needs_no_name(name: str) -> None:
    assert models.chosen(ScriptedQueen([], [model("tiny")]), name).model == "tiny"
