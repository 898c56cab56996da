"""From a checkpoint of a run to a folder that others can use."""

from dataclasses import dataclass
from pathlib import Path

from .base import Base
from .describe import describe
from .exported import Exported, ExportedResults, write_exported
from .source import Source
from .weights import Loaded, load, refuse_lone_adapter, write_adapter, write_merged


@dataclass(frozen=True, slots=True)
class Wishes:
    """How a checkpoint is to leave."""

    merge_lora: bool = False
    """Whole weights instead of an adapter."""
    example: str | None = None
    """The question of the card; None takes one that the run folder holds."""


def write_folder(
    place: Path, source: Source, base: Base, results: dict[str, ExportedResults], wishes: Wishes
) -> Exported:
    """Write the model files and `querylect.json` of one checkpoint into `place`.

    Raises ConfigError for an adapter that no one else could use, and as `load_policy`.
    """
    adapter = source.is_adapter and not wishes.merge_lora
    if adapter:
        refuse_lone_adapter(base, source.checkpoint)
    loaded: Loaded = load(source.config, source.checkpoint, dtype=None)
    place.mkdir(parents=True, exist_ok=True)
    exported = describe(source, base, loaded, results, place, adapter=adapter, example=wishes.example)
    new_tokens = exported.rollout.max_new_tokens[0]
    if adapter:
        write_adapter(place, loaded, source.checkpoint, base, new_tokens)
    else:
        write_merged(place, loaded, new_tokens)
    write_exported(place, exported)
    return exported
