"""`import oncemq`: the public names of `clients`, under the name that people write.

Holds no code of its own; what a name means is said where it is defined.
"""

from clients import __version__

__all__ = ["__version__"]
