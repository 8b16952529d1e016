"""The pages for newcomers: every piece of Python in them runs, in its order, as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oncemq import current_transaction

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guide"
PIECE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["first-steps.md", "client.md"])
def test_what_a_guide_shows_works(
    page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    pieces = PIECE.findall((GUIDES / page).read_text())
    assert len(pieces) >= 3
    names: dict[str, object] = {"__name__": page}
    for piece in pieces:
        exec(compile(piece, page, "exec"), names)
    assert current_transaction() is None
    shown = capsys.readouterr().out
    assert ("invoice for a lamp" if page == "first-steps.md" else "1 0") in shown
