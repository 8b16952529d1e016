"""Everything a user imports or runs; the public names, which `oncemq` re-exports.

Talks to servers only through `idl`. `__version__` is read from the installed distribution when it
is first asked for, because reading it costs more than the rest of this import.
"""

from typing import TYPE_CHECKING

__all__ = ["__version__"]

__version__: str

# Hidden from type checkers, which would otherwise believe that every misspelt name exists.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> str:
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import metadata

        try:
            return metadata.version("oncemq")
        except metadata.PackageNotFoundError:
            # A source tree that nobody installed has no version of its own.
            return "0+source"
