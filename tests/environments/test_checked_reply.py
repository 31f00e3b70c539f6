"""What an environment may return."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vigneron.environments.reply import BadReply, Reply, checked_reply


@given(
    st.dictionaries(
        st.text(max_size=3) | st.integers(),
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=120) | st.just([1]),
        max_size=12,
    )
)
def test_a_short_dict_is_kept_as_json_would_give_it_back(log: dict[Any, Any]) -> None:
    try:
        expected = json.loads(json.dumps(log, allow_nan=False))
        json.dumps(log, ensure_ascii=False).encode()
    except ValueError:
        expected = None
    if not all(isinstance(key, str) for key in log):
        expected = None
    if expected is None:
        with pytest.raises(BadReply):
            checked_reply(Reply("x", log=log))
    else:
        assert checked_reply(Reply("x", log=log)).log == expected
