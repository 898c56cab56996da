"""The base model of a policy: its public name and its licence."""

import logging
from dataclasses import dataclass
from pathlib import Path

from yaml import YAMLError

from ..errors import ConfigError
from ..sources import resolve_model

log = logging.getLogger(__name__)

UNKNOWN = "unknown"
"""The Hub's value for an unstated licence."""


@dataclass(frozen=True, slots=True)
class Licence:
    """A licence as in the Hub's model card metadata."""

    id: str = UNKNOWN
    name: str | None = None
    """Set only where `id` is `other`."""
    link: str | None = None


@dataclass(frozen=True, slots=True)
class BaseModelSource:
    """The base model of a run, described without anything specific to this machine."""

    name: str
    """The Hub id, or the name of the local folder or package."""
    hub_id: str | None
    """None if the model exists only on this machine."""
    dequantised: bool
    """Whether the weights came from a quantised GGUF file, so that no published safetensors file has the same ones."""
    licence: Licence


def base_of(model: str, base_id: str | None = None, licence: str | None = None) -> BaseModelSource:
    """The base model behind `policy.model`.

    `base_id` is the Hub id of a model given as a folder or package; `licence` overrides the one that is looked up.
    Raises ModelError if the model cannot be resolved, ConfigError if `base_id` contradicts a Hub id.
    """
    path = Path(resolve_model(model))
    is_local = path.is_dir()
    if not is_local and base_id not in (None, model):
        raise ConfigError(
            f"--base-model is {base_id!r}, and the run was trained on {model!r} of the Hub. Leave it out."
        )
    hub_id = base_id if is_local else model
    name = hub_id or (model if model.startswith("package:") else path.resolve().name)
    gguf = None
    if is_local and not any(path.glob("*.safetensors")):
        gguf = next(iter(sorted(path.glob("*.gguf"))), None)
    base_licence = Licence(licence) if licence else _licence(path if is_local else None, gguf, hub_id)
    if base_licence.id == UNKNOWN:
        log.warning("%s does not say its licence; the card says `unknown`. State it with --license ID", name)
    return BaseModelSource(name=name, hub_id=hub_id, dequantised=gguf is not None, licence=base_licence)


def _licence(folder: Path | None, gguf: Path | None, hub_id: str | None) -> Licence:
    if folder is not None and (folder / "README.md").is_file():
        return licence_of_card((folder / "README.md").read_text(encoding="utf-8", errors="replace"))
    if gguf is not None:
        return _licence_of_gguf(gguf)
    return _licence_on_the_hub(hub_id) if hub_id is not None else Licence()


def licence_of_card(text: str) -> Licence:
    """The licence in the YAML metadata at the top of a model card."""
    from huggingface_hub import ModelCard

    try:
        data = ModelCard(text, ignore_metadata_errors=True).data
    except (ValueError, YAMLError):
        return Licence()
    identifier = data.get("license")
    if not isinstance(identifier, str):
        return Licence()
    return Licence(identifier, data.get("license_name"), data.get("license_link"))


def _licence_of_gguf(path: Path) -> Licence:
    from gguf import GGUFReader

    field = GGUFReader(path).fields.get("general.license")
    value = field.contents() if field is not None else None
    return Licence(str(value).lower()) if value else Licence()


def _licence_on_the_hub(hub_id: str) -> Licence:
    """The licence in the card of a Hub model, from the local cache or downloaded."""
    from huggingface_hub import errors, hf_hub_download

    try:
        card = Path(hf_hub_download(hub_id, "README.md"))
    except (OSError, errors.HTTPError, errors.EntryNotFoundError, errors.HFValidationError) as error:
        log.debug("the card of %s could not be read: %s", hub_id, error)
        return Licence()
    return licence_of_card(card.read_text(encoding="utf-8", errors="replace"))
