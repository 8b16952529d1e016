"""Findings become one sentence and one object; quantities become words."""

import pytest

from clients.findings import Finding, Status, duration, has_problem, moment, report, size, verdict

FINE = Finding("a", Status.OK, "fine")
IDLE = Finding("b", Status.NOT_NEEDED, "absent")
DOUBT = Finding("c", Status.WARNING, "odd", "Look.")
BAD = Finding("d", Status.PROBLEM, "wrong", "Mend it.", ("mend",))


@pytest.mark.parametrize(
    ("findings", "sentence", "is_bad"),
    [
        ([FINE, IDLE], "This machine is ready for OnceMQ.", False),
        ([FINE, DOUBT], "OnceMQ can run here, but read the 1 warning first.", False),
        ([DOUBT, DOUBT], "OnceMQ can run here, but read the 2 warnings first.", False),
        ([FINE, BAD], "1 problem to solve before OnceMQ can be relied on.", True),
        (
            [BAD, BAD, DOUBT],
            "2 problems to solve before OnceMQ can be relied on (1 warning besides).",
            True,
        ),
    ],
)
def test_the_verdict_is_one_sentence_and_only_a_problem_fails(
    findings: list[Finding], sentence: str, is_bad: bool
) -> None:
    assert verdict(findings) == sentence
    assert has_problem(findings) is is_bad


def test_a_warning_without_advice_cannot_be_made() -> None:
    with pytest.raises(AssertionError):
        Finding("e", Status.WARNING, "odd")


def test_the_report_holds_every_finding_word_for_word() -> None:
    assert report([BAD], {"free_bytes": 7}, "1.2.3") == {
        "format": 1,
        "oncemq": "1.2.3",
        "ready": False,
        "verdict": "1 problem to solve before OnceMQ can be relied on.",
        "checks": [
            {
                "name": "d",
                "status": "problem",
                "found": "wrong",
                "advice": "Mend it.",
                "commands": ["mend"],
            }
        ],
        "measured": {"free_bytes": 7},
    }


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (19e-6, "19 µs"),
        (0.0021, "2.1 ms"),
        (0.0305, "30 ms"),
        (1.25, "1.2 s"),
        (600, "10 min"),
        (7200, "2 h"),
        (3 * 86400, "3 days"),
    ],
)
def test_a_span_is_told_in_the_unit_that_suits_it(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 bytes"), (1536, "1.5 KiB"), (2**34, "16 GiB"), (2**50, "1024 TiB")]
)
def test_a_size_is_told_in_the_unit_that_suits_it(count: int, words: str) -> None:
    assert size(count) == words


def test_a_moment_is_told_in_utc() -> None:
    assert moment(0) == "1970-01-01 00:00:00 UTC"
