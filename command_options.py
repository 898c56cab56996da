"""Options that several commands share."""

from typing import Annotated

import typer

MixMember = Annotated[
    str | None, typer.Option("--env", metavar="NAME", help="One environment of a config that mixes several.")
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Also run code that a folder of another user, or from the Hub, names.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the resolved config and stop.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log details.")]
