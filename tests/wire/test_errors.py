"""WireError says what is wrong and where."""

from __future__ import annotations

import copy
import pickle

from jupyter_cmdop.wire.errors import WireError


def test_the_text_says_reason_and_offset():
    error = WireError("no delimiter", 7)
    assert (error.reason, error.offset) == ("no delimiter", 7)
    assert "no delimiter" in str(error)
    assert "7" in str(error)


def test_without_an_offset_the_text_is_the_reason():
    assert str(WireError("no delimiter")) == "no delimiter"
    assert WireError("no delimiter").offset is None


def test_it_is_a_value_error_with_the_fields_kept_by_copies():
    error = WireError("no delimiter", 7)
    assert isinstance(error, ValueError)
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (twin.reason, twin.offset, str(twin)) == (error.reason, error.offset, str(error))
