"""Raw texts are read right: versions, requirements, mounts and connection strings."""

import pytest

from clients import machine

MOUNTS = """\
/dev/vda / ext4 rw,relatime 0 0
tmpfs /srv tmpfs rw 0 0
server:/export /srv/mq nfs4 rw 0 0
/dev/vdb /srv/my\\040data xfs rw 0 0
/dev/vdc /srv/mq btrfs rw 0 0
garbage
"""


@pytest.mark.parametrize(
    ("version", "least", "expected"),
    [
        ("4.2.0", "4.2", True),
        ("4.2", "4.2.0", True),
        ("4.10", "4.9", True),
        ("4.1.9", "4.2", False),
        ("4.2.0rc1", "4.2", True),
        ("unknown", "1", False),
        ("0.29.0", "0.15", True),
    ],
)
def test_versions_are_compared_number_by_number(version: str, least: str, expected: bool) -> None:
    assert machine.is_at_least(version, least) is expected


@pytest.mark.parametrize(
    ("output", "version", "feature"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime', "17.0.15", 17),
        ('Picked up _JAVA_OPTIONS: -Xmx1g\nopenjdk version "21" 2023-09-19', "21", 21),
        ('java version "1.8.0_392"', "1.8.0_392", 8),
        ('openjdk version "22-ea" 2024-03-19', "22-ea", 22),
        ('java version "odd"', "odd", 0),
    ],
)
def test_java_tells_its_version_in_several_ways(output: str, version: str, feature: int) -> None:
    assert machine.java_version(output) == version
    assert machine.java_feature(version) == feature


def test_output_without_a_version_has_none() -> None:
    assert machine.java_version("Unable to locate a Java Runtime.") is None


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("Pyro5>=5.16,<6", ("Pyro5", "5.16")),
        ("psycopg[binary]<4,>=3.2", ("psycopg", "3.2")),
        ("typing-extensions", ("typing-extensions", "0")),
        ("typer >= 0.15 ; python_version >= '3.11'", ("typer", "0.15")),
        ("pyspark>=4.2; extra == 'spark'", None),
    ],
)
def test_a_requirement_is_a_name_and_a_least_version(
    text: str, parsed: tuple[str, str] | None
) -> None:
    assert machine.requirement(text) == parsed


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me", "ext4"),
        ("/", "ext4"),
        ("/srv", "tmpfs"),
        ("/srvx", "ext4"),
        ("/srv/my data/queue", "xfs"),
        ("/srv/mq/deep/down", "btrfs"),
    ],
)
def test_the_innermost_and_latest_mount_holds_a_path(path: str, kind: str) -> None:
    assert machine.file_system_of(path, MOUNTS) == kind


def test_without_mounts_the_file_system_is_not_known() -> None:
    assert machine.file_system_of("/srv", "") is None


@pytest.mark.parametrize(
    ("parts", "is_sound"),
    [
        ({"host": "db", "port": "5432", "dbname": "shop", "password": "a@b/c"}, True),
        ({"host": "a,b", "port": "5432,5433"}, True),
        ({}, True),
        ({"user": "me@tenant", "host": "db"}, True),
        # What libpq makes of postgresql://u:pa@ss@db/shop and of postgresql://u:pa/ss@db/shop.
        ({"user": "u", "password": "pa", "host": "ss@db", "dbname": "shop"}, False),
        ({"host": "u", "port": "pa", "dbname": "ss@db/shop"}, False),
        ({"host": "u", "port": "12", "dbname": "ss@db/shop"}, False),
    ],
)
def test_a_connection_string_whose_password_has_spilt_over_is_not_sound(
    parts: dict[str, object], is_sound: bool
) -> None:
    assert machine.is_sound_target(parts) is is_sound


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (
            {"host": "db", "port": 5432, "dbname": "shop", "user": "u", "password": "p"},
            "shop on db:5432",
        ),
        ({"hostaddr": "10.0.0.1"}, "10.0.0.1"),
        ({}, "the local server"),
    ],
)
def test_a_server_is_named_without_user_or_password(parts: dict[str, object], name: str) -> None:
    assert machine.target_name(parts) == name


def test_a_refusal_is_one_line_without_secrets() -> None:
    message = "connection failed: no entry  for tops3cret\n\tIs the server running?\n"
    assert machine.refusal(message, {"password": "tops3cret"}) == "no entry for ***"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("(postgresql://me:tops3cret@db/shop)", "(postgresql://me:***@db/shop)"),
        ("'postgresql://me:to@ps3/cret@db/shop'", "'postgresql://me:***@db/shop'"),
        ("host=db password=tops3cret user=me", "host=db password=*** user=me"),
        ("host=db PASSWORD = 'top s3cret' user=me", "host=db PASSWORD = *** user=me"),
        ("postgresql://me@db/shop", "postgresql://me@db/shop"),
    ],
)
def test_what_looks_like_a_password_is_blotted_out(text: str, clean: str) -> None:
    assert machine.without_passwords(text) == clean


def test_percentiles_are_values_of_the_sample() -> None:
    sample = [float(number) for number in range(100, 0, -1)]
    assert machine.percentile(sample, 0.5) == 50
    assert machine.percentile(sample, 0.99) == 99
    assert machine.percentile([7.0], 0.5) == 7.0
