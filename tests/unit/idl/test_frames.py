"""Our frames are Pyro5's frames, whole or refused, however the network cuts them into pieces."""

from __future__ import annotations

import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator

import pytest
from Pyro5 import protocol
from Pyro5.serializers import MsgpackSerializer

from idl import wire
from idl.orb import frames
from idl.orb.guard import Policy
from tests.byte_tables import check_table, tables_of

KEY = bytes(range(16))
POLICY = Policy(
    kinds=frozenset({frames.INVOKE}),
    serializer=frames.MSGPACK,
    flags_allowed=frames.HAS_REQUEST_ID,
    frame_bytes_max=10_000_000,
    annotation_bytes_max=4096,
    start=frames.start_of(frames.INVOKE),
)
LIFE = b"one life"
NAMED = frames.naming(LIFE)
# As a server looks at calls that are for this life of it.
AT_NODE = POLICY._replace(named=NAMED)


@pytest.fixture
def pair() -> Iterator[tuple[frames.Stream, frames.Stream]]:
    left, right = socket.socketpair()
    streams = frames.Stream(left), frames.Stream(right)
    yield streams
    for stream in streams:
        stream.close()


def soon() -> float:
    return time.monotonic() + 5.0


def test_the_table_in_the_module_is_the_layout_in_use() -> None:
    (table,) = tables_of(frames)
    check_table(table)
    whole = frames._HEADER.format + frames._DIGEST_ANNOTATION.format.lstrip("!")
    check_table(table, struct.Struct(whole))


@pytest.mark.parametrize("named", [b"", NAMED])
@pytest.mark.parametrize("transaction", [b"", b"context"])
@pytest.mark.parametrize("body", [b"", b"x", b"x" * 100_000])
def test_pyro5_reads_what_we_write(body: bytes, transaction: bytes, named: bytes) -> None:
    data = frames.encode(frames.INVOKE, 7, KEY, body, transaction, named=named)
    message = protocol.ReceivingMessage(data[:40], data[40:])
    assert (message.type, message.seq, message.serializer_id) == (frames.INVOKE, 7, 4)
    assert message.corr_id == KEY
    assert bytes(message.data) == body
    expected = {"OMQD": data[0x30:0x34], "OMQL": LIFE if named else b"", "OMQT": transaction}
    found = {name: bytes(content) for name, content in message.annotations.items()}
    assert found == {name: content for name, content in expected.items() if content}


def test_the_layout_of_a_call_is_that_of_pyro5() -> None:
    ours = wire.pack_call("object", "operation", (1, b"x"))
    assert ours == MsgpackSerializer().dumpsCall("object", "operation", (1, b"x"), {})
    assert wire.unpack_call(ours) == ("object", "operation", (1, b"x"))


@pytest.mark.parametrize("size", [0, 1, 16 * 1024 - 52, 16 * 1024, 1_000_000])
def test_a_frame_arrives_as_it_was_sent(
    pair: tuple[frames.Stream, frames.Stream], size: int
) -> None:
    sender, receiver = pair
    data = frames.encode(frames.INVOKE, 65535, KEY, b"b" * size, b"transaction")
    thread = threading.Thread(target=sender.send, args=(data, soon()))
    thread.start()
    frame = receiver.receive(POLICY, soon())
    thread.join()
    assert (frame.kind, frame.flags, frame.seq, frame.request_id) == (frames.INVOKE, 0, 65535, KEY)
    assert bytes(frame.body) == b"b" * size
    assert frame.transaction == b"transaction"
    assert receiver.is_quiet()


def test_frames_are_told_apart_however_they_are_cut(
    pair: tuple[frames.Stream, frames.Stream],
) -> None:
    sender, receiver = pair
    stream = b"".join(frames.encode(frames.INVOKE, n, KEY, b"%d" % n * n) for n in range(20))

    def trickle() -> None:
        for start in range(0, len(stream), 7):
            sender.send(stream[start : start + 7], soon())

    thread = threading.Thread(target=trickle)
    thread.start()
    bodies = [bytes(receiver.receive(POLICY, soon()).body) for _ in range(20)]
    thread.join()
    assert bodies == [b"%d" % n * n for n in range(20)]


@pytest.mark.parametrize("named", [b"", NAMED])
@pytest.mark.parametrize("transaction", [b"", b"context"])
def test_no_single_changed_byte_gets_through(transaction: bytes, named: bytes) -> None:
    body = b"a body of some length"
    data = frames.encode(frames.INVOKE, 3, KEY, body, transaction, named=named)
    let_through = []
    for position in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            changed = bytearray(data)
            changed[position] ^= flip
            if not _is_refused(bytes(changed)):
                let_through.append((position, flip))
    assert let_through == []


def _is_refused(data: bytes) -> bool:
    left, right = socket.socketpair()
    receiver = frames.Stream(right)
    with left, right:
        left.sendall(data)
        left.shutdown(socket.SHUT_WR)
        try:
            receiver.receive(POLICY._replace(named=NAMED), soon())
        except (frames.Refused, OSError):
            return True
        return False


def test_a_frame_is_refused_by_its_header_alone(pair: tuple[frames.Stream, frames.Stream]) -> None:
    sender, receiver = pair
    data = frames.encode(frames.CONNECT, 0, KEY, b"x" * 1000)
    sender.send(data[:40], soon())
    with pytest.raises(frames.Refused, match="message type 1"):
        receiver.receive(POLICY, soon())


@pytest.mark.parametrize("name", [b"OMQX", b"OMQD"])
def test_what_stands_beside_the_body_is_the_digest_and_the_transaction_only(
    pair: tuple[frames.Stream, frames.Stream], name: bytes
) -> None:
    sender, receiver = pair
    data = bytearray(frames.encode(frames.INVOKE, 0, KEY, b"body", b"context"))
    data[0x34:0x38] = name
    # The digest fits all that it covers when the foreign annotation is left out of it.
    digest = zlib.crc32(b"body", zlib.crc32(bytes(data[:0x28])))
    data[0x30:0x34] = digest.to_bytes(4)
    sender.send(bytes(data), soon())
    with pytest.raises(frames.Damaged):
        receiver.receive(POLICY, soon())


def test_nothing_is_waited_for_once_the_deadline_has_passed(
    pair: tuple[frames.Stream, frames.Stream],
) -> None:
    _, receiver = pair
    for deadline in (time.monotonic(), time.monotonic() - 0.01, 0.0):
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            receiver.receive(POLICY, deadline)
        assert time.monotonic() - begun < 2.0


def test_each_wait_has_its_own_deadline(pair: tuple[frames.Stream, frames.Stream]) -> None:
    _, receiver = pair
    for wait_s in (0.05, 0.2, 0.001):
        begun = time.monotonic()
        with pytest.raises(TimeoutError, match="in time"):
            receiver.receive(POLICY, begun + wait_s)
        assert wait_s <= time.monotonic() - begun + frames.WAIT_S_MIN < wait_s + 2.0


def test_a_long_wait_after_a_short_one_is_not_cut_short(
    pair: tuple[frames.Stream, frames.Stream],
) -> None:
    sender, receiver = pair
    with pytest.raises(TimeoutError, match="in time"):
        receiver.receive(POLICY, time.monotonic() + 0.02)
    data = frames.encode(frames.INVOKE, 3, KEY, b"late")
    timer = threading.Timer(0.2, sender.send, args=(data, soon()))
    timer.start()
    assert receiver.receive(POLICY, soon()).body == b"late"
    timer.join()


def test_a_frame_must_be_over_soon_after_it_has_begun(
    pair: tuple[frames.Stream, frames.Stream],
) -> None:
    sender, receiver = pair
    sender.send(frames.encode(frames.INVOKE, 0, KEY, b"x")[:20], soon())
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        receiver.receive(POLICY, begun + 60.0, message_s=0.2)
    assert time.monotonic() - begun < 2.0


def test_a_peer_that_does_not_read_is_given_up(pair: tuple[frames.Stream, frames.Stream]) -> None:
    sender, _ = pair
    with pytest.raises(TimeoutError, match="does not read"):
        sender.send(bytes(50_000_000), time.monotonic() + 0.2)


def test_an_interrupted_stream_ends_the_wait(pair: tuple[frames.Stream, frames.Stream]) -> None:
    _, receiver = pair
    timer = threading.Timer(0.1, receiver.interrupt)
    timer.start()
    with pytest.raises(OSError, match="closed the connection"):
        receiver.receive(POLICY, soon())
    timer.join()


def test_a_stream_is_quiet_until_something_arrives(
    pair: tuple[frames.Stream, frames.Stream],
) -> None:
    sender, receiver = pair
    assert receiver.is_quiet()
    sender.interrupt()
    assert not receiver.is_quiet()


@pytest.mark.parametrize(
    "body",
    [
        b"\xdd\x00\x0f\x42\x40" * 800,
        b"\xdd\xff\xff\xff\xff" + b"\x01" * 2000,
        b"\xdf\xff\xff\xff\xff" + b"\x01" * 2000,
        b"\x80" * 2000,
        b"\x91" * 2000 + b"\x01",
        b"\xdc\xff\xff" + b"\x80" * 65535,
        b"\xdd\x00\x0f\x42\x41" + b"\x01" * 1_000_001,
        b"\x93" + (b"\xdd\x00\x0f\x42\x40" + b"\x01" * 1_000_000) * 3,
        b"\xc7\x00\x05",
        b"\xd6\xff\x00\x00\x00\x00",
        b"",
        b"\x01\x01",
    ],
    ids=range(12),
)
def test_a_body_that_announces_or_holds_too_much_is_unreadable(body: bytes) -> None:
    if body == b"\xdc\xff\xff" + b"\x80" * 65535:
        # As many empty maps as fit the budget are let through, and are not a call.
        assert len(wire.unpack(body)) == 65535
    with pytest.raises(wire.Unreadable):
        wire.unpack_call(body)


@pytest.mark.parametrize("named", [b"", NAMED])
@pytest.mark.parametrize("start", [b"", frames.start_of(frames.INVOKE)])
def test_the_usual_frame_is_the_same_however_it_is_looked_at(
    pair: tuple[frames.Stream, frames.Stream], start: bytes, named: bytes
) -> None:
    sender, receiver = pair
    sender.send(frames.encode(frames.INVOKE, 9, KEY, b"a body", named=named), soon())
    frame = receiver.receive(POLICY._replace(start=start, named=named), soon())
    assert (*frame[:4], bytes(frame.body), frame.transaction) == (
        frames.INVOKE,
        0,
        9,
        KEY,
        b"a body",
        b"",
    )


@pytest.mark.parametrize("position", range(0x44 + 6))
def test_a_usual_frame_of_which_a_byte_has_changed_is_refused(
    pair: tuple[frames.Stream, frames.Stream], position: int
) -> None:
    sender, receiver = pair
    data = bytearray(frames.encode(frames.INVOKE, 9, KEY, b"a body", named=NAMED))
    data[position] ^= 1
    sender.send(bytes(data), soon())
    sender.close()
    with pytest.raises((frames.Refused, ConnectionResetError)):
        receiver.receive(AT_NODE, soon())


@pytest.mark.parametrize("named", [b"", NAMED])
@pytest.mark.parametrize("kind", [frames.INVOKE, frames.RESULT])
@pytest.mark.parametrize("size", [0, 1, 100, 4039, 4040, 4041, 4055, 4056, 8000, 100_000])
def test_a_usual_frame_is_written_like_any_other(kind: int, size: int, named: bytes) -> None:
    body = b"b" * size
    one = frames.encode(kind, 9, KEY, body, named=named)
    assert one == frames._encode(kind, 9, KEY, body, b"", 0, named)


@pytest.mark.parametrize("named", [b"", NAMED])
@pytest.mark.parametrize("size", [0, 1, 100, 4039, 4040, 4041, 4056, 8000, 16 * 1024 - 68])
def test_what_has_arrived_whole_is_received_at_once(
    pair: tuple[frames.Stream, frames.Stream], size: int, named: bytes
) -> None:
    sender, receiver = pair
    policy = AT_NODE._replace(named=named)
    assert receiver.receive_at_once(policy) is None
    sender.send(frames.encode(frames.INVOKE, 9, KEY, b"b" * size, named=named), soon())
    frame = receiver.receive_at_once(policy)
    assert frame == (frames.INVOKE, 0, 9, KEY, b"b" * size, b"")
    assert not receiver.has_more


def test_a_frame_with_another_flag_is_let_in_only_where_that_is_allowed(
    pair: tuple[frames.Stream, frames.Stream],
) -> None:
    sender, receiver = pair
    data = frames.encode(frames.INVOKE, 9, KEY, b"a body", flags=frames.EXCEPTION)
    sender.send(data * 2, soon())
    allowed = POLICY._replace(flags_allowed=frames.HAS_REQUEST_ID | frames.EXCEPTION)
    assert receiver.receive(allowed, soon()).flags == frames.EXCEPTION
    with pytest.raises(frames.Refused, match="flags"):
        receiver.receive(POLICY, soon())


def test_a_usual_frame_that_is_too_large_is_refused(
    pair: tuple[frames.Stream, frames.Stream],
) -> None:
    sender, receiver = pair
    sender.send(frames.encode(frames.INVOKE, 0, KEY, b"x" * 100), soon())
    with pytest.raises(frames.Refused, match="112 bytes"):
        receiver.receive(POLICY._replace(frame_bytes_max=111), soon())


# --- For which life of the server a call is


@pytest.mark.parametrize("transaction", [b"", b"context"])
@pytest.mark.parametrize("size", [0, 100, 10_000, 100_000])
def test_a_call_for_another_life_is_refused(
    pair: tuple[frames.Stream, frames.Stream], size: int, transaction: bytes
) -> None:
    sender, receiver = pair
    former = frames.naming(b"its life")
    data = frames.encode(frames.INVOKE, 9, KEY, b"b" * size, transaction, named=former)
    thread = threading.Thread(target=sender.send, args=(data, soon()))
    thread.start()
    with pytest.raises(frames.Refused, match="before a restart") as refused:
        receiver.receive(AT_NODE, soon())
    thread.join()
    # It is no damage, of which its sender would be told that nothing was done, and send it again.
    assert not isinstance(refused.value, frames.Damaged)


@pytest.mark.parametrize(
    ("policy", "reason"), [(AT_NODE, "before a restart"), (POLICY, "where there is none")]
)
def test_a_life_that_is_not_expected_makes_no_usual_frame(
    pair: tuple[frames.Stream, frames.Stream], policy: Policy, reason: str
) -> None:
    sender, receiver = pair
    former = frames.naming(b"its life")
    sender.send(frames.encode(frames.INVOKE, 9, KEY, b"a body", named=former), soon())
    assert receiver.receive_at_once(policy) is None
    assert receiver.has_more
    with pytest.raises(frames.Refused, match=reason):
        receiver.receive(policy, soon())


@pytest.mark.parametrize("transaction", [b"", b"context"])
def test_a_call_that_names_no_life_is_let_in(
    pair: tuple[frames.Stream, frames.Stream], transaction: bytes
) -> None:
    sender, receiver = pair
    sender.send(frames.encode(frames.INVOKE, 9, KEY, b"a body", transaction), soon())
    frame = receiver.receive(AT_NODE, soon())
    assert (bytes(frame.body), frame.transaction) == (b"a body", transaction)
