"""Options and arguments that several commands have, each written once.

What only one command takes stands with it; where to find a server, and as whom, is in `reaching`.
"""

from typing import Annotated

import typer

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The name of the queue.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask whether this is meant.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
JsonForTable = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of a table.")
]
