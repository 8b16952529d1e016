"""Many values at once: read as one by one, and refused as one by one."""

from typing import Any

import pytest

from idl.mapping import InvalidValue, SequenceOf, Structure, Text
from idl.marshal import COLUMN_MIN, codec_of
from idl.mq import USEC_PER_SEC, mqTimestamp

TIMES = codec_of(SequenceOf(Structure(mqTimestamp)))
MANY = 3 * COLUMN_MIN


class NoReferences:
    """These values name no objects."""

    def export(self, target: object, interface: type) -> str:
        raise AssertionError

    def resolve(self, name: str, interface: type) -> object:
        raise AssertionError


def read(plain: tuple[Any, ...]) -> Any:
    assert TIMES.read is not None
    return TIMES.read(plain, NoReferences())


def test_many_structures_are_read_as_if_one_by_one() -> None:
    plain = tuple((position, 7 * position) for position in range(MANY))
    assert read(plain) == tuple(mqTimestamp(*each) for each in plain)


@pytest.mark.parametrize(
    "wrong",
    [
        (-1, 0),
        (0, 2**32),
        (0, USEC_PER_SEC),
        (True, 0),
        # Equal to all the others, and not the same.
        (True, 1),
        (1.0, 1),
        (0.0, 0),
        ("0", 0),
        (0,),
        (0, 0, 0),
        [0, 0],
        None,
    ],
)
def test_one_wrong_structure_among_many_is_refused_as_it_would_be_alone(wrong: Any) -> None:
    with pytest.raises(InvalidValue) as alone:
        read((wrong,))
    with pytest.raises(InvalidValue) as among_many:
        read((*[(1, 1)] * MANY, wrong))
    assert str(among_many.value) == str(alone.value)


def test_structures_that_are_equal_are_read_and_written_as_one() -> None:
    plain = ((5, 6),) * MANY + ((7, 8),)
    times = read(plain)
    assert times == tuple(mqTimestamp(*each) for each in plain)
    assert len(set(map(id, times))) == 2
    assert TIMES.write is not None
    assert TIMES.write(times, NoReferences()) == plain


@pytest.mark.parametrize("wrong", ["a\0b", "longer than five", "\ud800", 5, None])
def test_one_wrong_text_among_many_is_named_by_its_place(wrong: Any) -> None:
    kind = SequenceOf(Text(5))
    kind.check(("fine",) * MANY, "names")
    kind.check(("größe",) * MANY, "names")
    with pytest.raises(InvalidValue, match=rf"names\[{MANY}\]"):
        kind.check((*["fine"] * MANY, wrong), "names")
