"""Optional packages, the cluster, and who is logged in where; no token is ever shown."""

import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from packaging.requirements import Requirement

from ..sources import install_command, known_extras
from .findings import Finding

FOR_DEVELOPERS = ("dev",)


def surroundings() -> list[Finding]:
    """Extras, Slurm, and the logins of Weights & Biases and the Hub."""
    return [*extras(), _slurm(), _wandb(), _hub()]


def extras() -> list[Finding]:
    """For each extra of the package: whether its requirements are installed in fitting versions."""
    return [_extra(name, needed) for name, needed in sorted(known_extras().items()) if name not in FOR_DEVELOPERS]


def _extra(name: str, needed: list[Requirement]) -> Finding:
    problems = [problem for requirement in needed if (problem := _problem_of(requirement))]
    if not problems:
        installed = ", ".join(f"{requirement.name} {version(requirement.name)}" for requirement in needed)
        return Finding("packages", name, "ok", installed)
    return Finding("packages", name, "missing", ", ".join(problems), install_command(name))


def _problem_of(needed: Requirement) -> str:
    try:
        installed = version(needed.name)
    except PackageNotFoundError:
        return f"no {needed.name}"
    fits = needed.specifier.contains(installed, prereleases=True)
    return "" if fits else f"{needed.name} {installed}, which is not {needed.specifier}"


def _slurm() -> Finding:
    if shutil.which("sbatch") is None:
        return Finding("cluster", "slurm", "missing", "no sbatch in PATH")
    try:
        process = subprocess.run(
            ["sinfo", "--noheader", "--format=%P %a %D"], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        lines = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        reason = lines[0] if lines else error
        return Finding("cluster", "slurm", "missing", f"sbatch is there, and sinfo fails: {reason}")
    partitions = [line.split()[0] for line in process.stdout.splitlines() if line.strip()]
    return Finding("cluster", "slurm", "ok", f"partitions: {', '.join(partitions) or 'none'} (* is the default)")


def _wandb() -> Finding:
    try:
        import wandb
        from wandb.sdk.lib import wbauth
    except ImportError as error:
        return Finding("accounts", "wandb", "missing", f"cannot be imported: {error}", install_command("train"))
    host = wandb.setup().settings.base_url
    if wbauth.authenticate_session(host=host, source="querylect", prompt=False, update_session=False) is None:
        detail, remedy = "nobody is logged in: runs are tracked offline", "wandb login, then querylect sync"
        return Finding("accounts", "wandb", "missing", detail, remedy)
    return Finding("accounts", "wandb", "ok", "logged in")


def _hub() -> Finding:
    if find_spec("huggingface_hub") is None:
        return Finding("accounts", "hub", "missing", "no huggingface_hub", install_command("local"))
    from huggingface_hub import get_token

    if get_token() is None:
        return Finding("accounts", "hub", "missing", "nobody is logged in: enough for public models", "hf auth login")
    return Finding("accounts", "hub", "ok", "logged in")
