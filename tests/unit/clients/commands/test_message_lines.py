"""Messages as lines of JSON, and as a few words for people."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.commands.message_lines import beginning, line_of, message_of
from clients.messages import Message
from idl.mapping import InvalidValue

NUMBERS = st.integers(0, 65535)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=9)


@given(
    st.binary(max_size=50), NUMBERS, NUMBERS, st.lists(st.tuples(TEXTS, TEXTS), max_size=3), TEXTS
)
def test_what_is_written_is_read_again(
    payload: bytes, priority: int, group: int, attributes: list[tuple[str, str]], sender: str
) -> None:
    message = Message(payload, priority, group, tuple(attributes), sender)
    assert message_of(line_of(message).encode(), "here") == message


def test_what_is_no_text_is_written_in_base64() -> None:
    assert json.loads(line_of(Message(b"\xff\0")))["payload_base64"] == "/wA="
    assert json.loads(line_of(Message("grün".encode())))["payload"] == "grün"


def test_attributes_may_be_an_object() -> None:
    line = b'{"payload": "x", "attributes": {"type": "mail"}, "key": "12", "time": "ignored"}'
    assert message_of(line, "here").attributes == (("type", "mail"),)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"hello", "here: no line of JSON"),
        (b"[1]", "write an object"),
        (b"{}", "either payload or payload_base64"),
        (b'{"payload": "a", "payload_base64": ""}', "either payload or payload_base64"),
        (b'{"payload": {"a": 1}}', "payload is a text"),
        (b'{"payload_base64": "*"}', "payload_base64"),
        (b'{"payload": "a", "prioritty": 1}', "there is no field 'prioritty'"),
        (b'{"payload": "a", "priority": 70000}', "priority 70000 is not between"),
        (b'{"payload": "a", "priority": "9"}', "priority is an int"),
        (b'{"payload": "a", "attributes": [["a"]]}', "an attribute is a pair"),
        (b'{"payload": "\\ud800"}', "here: "),
    ],
)
def test_a_line_that_cannot_be_says_where_and_why(line: bytes, told: str) -> None:
    with pytest.raises(InvalidValue, match=r"^here: ") as raised:
        message_of(line, "here")
    assert told in str(raised.value)


def test_the_beginning_of_a_payload_does_nothing_to_a_terminal() -> None:
    assert beginning(b"\x1b[2Jhello\n", 60) == "\\x1b[2Jhello\\n"
    assert beginning(b"a" * 100, 10) == "aaaaaaa..."
    assert beginning(b"\0\1\2", 60) == "(3 bytes, binary)"
    assert beginning("grün".encode(), 60) == "grün"
