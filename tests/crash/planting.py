"""How a mistake is planted into the classes of the product, and of the disk below them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


def nothing(*_: object, **__: object) -> None:
    """Does nothing, in the place of something that should be done."""
