"""The model that a policy was trained from: under which name others find it, and under which licence it stands."""

import logging
from dataclasses import dataclass
from pathlib import Path

import yaml

from ..errors import ConfigError
from ..sources import resolve_model

log = logging.getLogger(__name__)

UNKNOWN = "unknown"
"""The Hub's word for a licence that nobody stated."""


@dataclass(frozen=True, slots=True)
class Licence:
    """A licence as the Hub's metadata have it."""

    id: str = UNKNOWN
    name: str | None = None
    """Of a licence that the Hub calls `other`."""
    link: str | None = None


@dataclass(frozen=True, slots=True)
class Base:
    """The base model of a run, told to people who cannot see this machine."""

    name: str
    """The Hub id; of a folder or a package their name."""
    hub_id: str | None
    """Where others get it; None where it is only here."""
    dequantised: bool
    """Whether its weights were read from a quantised GGUF file, and so are in no safetensors file of others."""
    licence: Licence


def base_of(model: str, said: str | None = None, licence: str | None = None) -> Base:
    """The base model behind `policy.model`.

    `said` is the Hub id of what lies in a folder or package, `licence` an identifier that wins over what is found.
    Raises ModelError where a name leads nowhere, ConfigError where `said` contradicts a Hub id.
    """
    place = Path(resolve_model(model))
    here = place.is_dir()
    if not here and said not in (None, model):
        raise ConfigError(f"--base-model is {said!r}, and the run was trained on {model!r} of the Hub. Leave it out.")
    hub_id = said if here else model
    name = hub_id or (model if model.startswith("package:") else place.resolve().name)
    gguf = None
    if here and not any(place.glob("*.safetensors")):
        gguf = next(iter(sorted(place.glob("*.gguf"))), None)
    found = Licence(licence) if licence else _licence(place if here else None, gguf, hub_id)
    if found.id == UNKNOWN:
        log.warning("%s does not say its licence; the card says `unknown`. State it with --license ID", name)
    return Base(name=name, hub_id=hub_id, dequantised=gguf is not None, licence=found)


def _licence(place: Path | None, gguf: Path | None, hub_id: str | None) -> Licence:
    if place is not None and (place / "README.md").is_file():
        return licence_of_card((place / "README.md").read_text(encoding="utf-8", errors="replace"))
    if gguf is not None:
        return _licence_of_gguf(gguf)
    return _licence_on_the_hub(hub_id) if hub_id is not None else Licence()


def licence_of_card(text: str) -> Licence:
    """The licence in the metadata that a model card begins with."""
    parts = text.split("---\n", 2)
    if len(parts) < 3 or parts[0].strip():
        return Licence()
    try:
        values = yaml.safe_load(parts[1])
    except yaml.YAMLError:
        return Licence()
    said = values.get("license") if isinstance(values, dict) else None
    if isinstance(said, list):
        said = said[0] if len(said) == 1 else None
    if not isinstance(said, str):
        return Licence()
    name, link = (values.get(key) for key in ("license_name", "license_link"))
    return Licence(said, str(name) if name else None, str(link) if link else None)


def _licence_of_gguf(path: Path) -> Licence:
    from gguf import GGUFReader

    field = GGUFReader(path).fields.get("general.license")
    said = field.contents() if field is not None else None
    return Licence(str(said).lower()) if said else Licence()


def _licence_on_the_hub(hub_id: str) -> Licence:
    """From the card of a model on the Hub: the copy that is here, else it is fetched."""
    from huggingface_hub import errors, hf_hub_download

    try:
        card = Path(hf_hub_download(hub_id, "README.md"))
    except (OSError, errors.HTTPError, errors.EntryNotFoundError, errors.HFValidationError) as error:
        log.debug("the card of %s could not be read: %s", hub_id, error)
        return Licence()
    return licence_of_card(card.read_text(encoding="utf-8", errors="replace"))
