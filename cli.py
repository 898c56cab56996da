"""The command line. Heavy imports stand inside the commands, so that `querylect --help` answers at once."""

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    """Entry point of `querylect`."""
    app()
