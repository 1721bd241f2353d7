from __future__ import annotations

import json

import pytest

from jupyter_cmdop.core.refusal import HTTP_STATUS, Refusal


@pytest.mark.parametrize("code", HTTP_STATUS)
def test_each_code_has_a_client_error_or_not_implemented(code: str) -> None:
    assert 400 <= HTTP_STATUS[code] < 500 or HTTP_STATUS[code] == 501


def test_code_outside_the_set_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="closed set"):
        Refusal("no_idea", "?")


def test_shape_is_that_of_the_documentation() -> None:
    refusal = Refusal(
        "not_driver", "bob drives", driver="bob", since=3.0, generation=4, next=("take", "wait")
    )
    assert json.loads(json.dumps(refusal.to_dict())) == {
        "code": "not_driver",
        "message": "bob drives",
        "driver": "bob",
        "since": 3.0,
        "generation": 4,
        "retry_after": None,
        "next": ["take", "wait"],
    }
