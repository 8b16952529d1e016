"""The tables of settings and of permissions as the documents show them, made from the code's own.

Held against `docs/OPERATIONS.md` and `docs/SECURITY.md`, which have these lines word for word.
"""

from __future__ import annotations

from idl.settings import SETTINGS, UNLIMITED, Kind, Setting
from mqserver.permissions import OPERATION_RIGHTS, Right


def setting_rows() -> list[str]:
    """A line for each setting."""
    return [
        "| setting | variable | flag | default | what it is |",
        "|---|---|---|---|---|",
        *(_setting_row(setting) for setting in SETTINGS),
    ]


def operation_rows() -> list[str]:
    """A line for each kind of object, and what its operations ask for."""
    rows = ["| object | operations | need |", "|---|---|---|"]
    for family, rules in OPERATION_RIGHTS.items():
        for rule in dict.fromkeys(rules.values()):
            names = ", ".join(f"`{name}`" for name, needs in rules.items() if needs is rule)
            need = f"right {rule.value}" if isinstance(rule, Right) else rule.value
            rows.append(f"| `{family}` | {names} | {need} |")
    return rows


def _setting_row(setting: Setting) -> str:
    flag = f"`{setting.flag}`" if setting.flag else ""
    cells = (f"`{setting.key}`", f"`{setting.variable}`", flag, _default(setting), _help(setting))
    return f"| {' | '.join(cells)} |"


def _default(setting: Setting) -> str:
    if setting.default is None or setting.default == ():
        return ""
    if isinstance(setting.default, bool):
        return f"`{str(setting.default).lower()}`"
    if isinstance(setting.default, int | float):
        return f"{setting.default:g}" if setting.kind is Kind.SECONDS else str(setting.default)
    return f"`{setting.default}`"


def _help(setting: Setting) -> str:
    if setting.kind not in (Kind.COUNT, Kind.SECONDS):
        return setting.help
    end = f" to {setting.maximum:.12g}" if setting.maximum < UNLIMITED else " or more"
    return f"{setting.help}; {setting.minimum:.12g}{end}"
