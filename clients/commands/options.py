"""Options and arguments that several commands have, each written once.

What only one command takes stands with it; where to find a server, and as whom, is in `reaching`.
"""

from typing import Annotated, Any

import typer

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The name of the queue.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask whether this is meant.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
JsonForTable = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of a table.")
]


def coordinator_option(told: str) -> Any:
    """Names a coordinator other than the node's; `told` is the help."""
    return typer.Option(
        "--coordinator",
        metavar="HOST:PORT",
        show_default="the node's, or $ONCEMQ_COORDINATOR",
        help=told,
    )
