"""The command `querylect doctor`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..command_options import Verbose
from ..configs.load import load_config
from ..logs import set_up_logging

app = typer.Typer()


@app.command()
def doctor(
    config: Annotated[
        str | None, typer.Argument(metavar="[CONFIG]", help="Also estimate the memory of a run of this config.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings of CONFIG to change.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    gpus: Annotated[
        int | None, typer.Option("--gpus", min=1, help="Only estimate the memory of CONFIG on this many GPUs.")
    ] = None,
    gpu_memory: Annotated[
        float, typer.Option("--gpu-memory", min=1, max=100_000, help="With --gpus: GB of each GPU, as in its name.")
    ] = 80,
    gpu: Annotated[bool, typer.Option("--gpu", help="Compute on the GPU too: packed gradients, vLLM.")] = False,
    verbose: Verbose = False,
) -> None:
    """Say what this machine can run and what is missing; exit code 2 where the memory does not suffice for CONFIG, or a
    check of the GPU fails."""
    set_up_logging(verbose)
    settings = load_config(config, list(overrides or ())) if config is not None else None
    from .checks import as_text, available_bytes, gpu_findings, machine, probe

    if gpus is not None:
        if settings is None:
            raise typer.BadParameter("it estimates a CONFIG: name one", param_hint="--gpus")
        from .memory import USABLE, memory

        findings = [memory(settings, {"gpus": [["", gpu_memory * USABLE]] * gpus, "bf16": True})]
    else:
        report = probe()
        findings = machine(settings.run_folder.parent if settings else Path("."), report)
        if settings is not None:
            from .memory import memory

            findings.append(memory(settings, report.get("torch", {}), available_bytes()))
    if gpu:
        findings += gpu_findings()
    ready = all(finding.state != "failed" for finding in findings)
    data = {"ready": ready, "findings": [asdict(finding) for finding in findings]}
    typer.echo(json.dumps(data, indent=2) if as_json else as_text(findings))
    if not ready:
        raise typer.Exit(2)
