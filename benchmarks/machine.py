"""What a run was measured with, in words: figures of different interpreters are not comparable.

It knows the interpreter and the machine, and nothing of what is measured.
"""

from __future__ import annotations

import os
import platform
import sys
import sysconfig

DISTRIBUTION = "/usr"
UNKNOWN = "a distribution"


def python_told() -> str:
    """The interpreter that runs this: implementation, version, and how it was built."""
    arguments = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    name = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{name} ({build_told(sys.base_prefix, arguments, _distribution())})"


def build_told(prefix: str, arguments: str, distribution: str) -> str:
    """How an interpreter with this prefix, and these arguments of `configure`, was built.

    Distributions train their builds and do not say so among the arguments.
    """
    if prefix == DISTRIBUTION:
        return f"the optimised build of {distribution}"
    if "--enable-optimizations" in arguments:
        return "compiled with optimisations"
    return "compiled without optimisations, which takes about half as long again"


def computer_told() -> str:
    """The system, and how many processors it has."""
    return f"{platform.system()}, {os.cpu_count()} processors"


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("NAME", UNKNOWN)
    except OSError:
        return UNKNOWN
