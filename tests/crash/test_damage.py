"""The damaged images: every place is hit, one at a time, and nothing else is changed."""

from __future__ import annotations

from tests.crash import damage

IMAGE = {"log": b"L" * 1000, "data": b"D" * 600 + bytes(1000)}


def test_every_byte_is_flipped_once() -> None:
    damaged = list(damage.flipped_bytes(IMAGE))
    assert len(damaged) == 2600
    for each in damaged:
        differing = [
            place
            for name in IMAGE
            for place, (one, other) in enumerate(zip(IMAGE[name], each.files[name], strict=True))
            if one != other
        ]
        assert len(differing) == 1
        assert f"byte {differing[0]} of" in each.what
    assert len(list(damage.flipped_bytes(IMAGE, step=100))) == 26


def test_the_bits_that_turn_are_those_of_the_mask() -> None:
    first = next(damage.flipped_bytes(IMAGE, mask=1))
    assert first.files["log"][:2] == b"ML"


def test_sectors_are_zeroed_that_were_not_zeros() -> None:
    damaged = {each.what: each.files for each in damage.zeroed_sectors(IMAGE)}
    assert set(damaged) == {
        "sector 0 of log zeroed",
        "sector 1 of log zeroed",
        "sector 0 of data zeroed",
        "sector 1 of data zeroed",
    }
    assert damaged["sector 1 of log zeroed"]["log"] == b"L" * 512 + bytes(488)


def test_files_are_cut_and_never_left_whole() -> None:
    damaged = list(damage.cut_files(IMAGE, step=500))
    sizes = [(len(each.files["log"]), len(each.files["data"])) for each in damaged]
    assert sizes == [(0, 1600), (500, 1600), (1000, 0), (1000, 500), (1000, 1000), (1000, 1500)]


def test_files_are_removed_and_swapped() -> None:
    assert [set(each.files) for each in damage.removed_files(IMAGE)] == [{"data"}, {"log"}]
    swapped = [each.files for each in damage.swapped_files({**IMAGE, "same": IMAGE["log"]})]
    assert {"log": IMAGE["data"], "data": IMAGE["log"], "same": IMAGE["log"]} in swapped
    assert len(swapped) == 2


def test_all_kinds_of_damage_come_one_after_the_other() -> None:
    damaged = [each.what for each in damage.all_damages(IMAGE, byte_step=1000, cut_step=1000)]
    assert len(damaged) == 3 + 4 + 3 + 2 + 1
    assert len(set(damaged)) == len(damaged)


def test_a_damaged_image_can_be_mounted() -> None:
    disk = next(damage.removed_files(IMAGE)).disk()
    assert disk.names() == ["data"]


def test_a_file_is_replaced_by_that_of_another_store_if_they_differ() -> None:
    foreign = {"log": b"M" * 1000, "data": IMAGE["data"], "else": b""}
    [replaced] = damage.replaced_files(IMAGE, foreign)
    assert replaced.files == {**IMAGE, "log": foreign["log"]}
