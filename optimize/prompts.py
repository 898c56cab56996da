"""The system message of a few-shot prompt, which GEPA changes: what does not make a usable prompt is refused."""

import hashlib

from ruamel.yaml.error import YAMLError

from ..configs.yaml12 import parse_yaml, write_yaml
from ..errors import ConfigError
from ..rewriters.few_shot import FewShotPrompt

COMPONENT = "system"
"""GEPA's name of the text that it changes."""
_PLACEHOLDERS = ("{question}", "{documents}", "{retriever}", "{history}")


def with_system(start: FewShotPrompt, text: str) -> FewShotPrompt:
    """The prompt `start` with another system message.

    Raises ConfigError, whose message says in one sentence what is wrong with the text.
    """
    if not text.strip():
        raise ConfigError("the system message is empty")
    if stray := [placeholder for placeholder in _PLACEHOLDERS if placeholder in text]:
        raise ConfigError(f"the system message holds {stray[0]}, which nothing replaces there")
    prompt = start.model_copy(update={"system": text})
    try:
        readable = FewShotPrompt.model_validate(parse_yaml(prompt_yaml(prompt))) == prompt
    except (YAMLError, ValueError) as error:
        raise ConfigError(f"the text cannot be written to a YAML file: {error}") from error
    if not readable:
        raise ConfigError("the text has characters that a YAML file cannot hold")
    return prompt


def prompt_yaml(prompt: FewShotPrompt) -> str:
    """The content of a prompt file."""
    return write_yaml(prompt.model_dump(mode="json", exclude_defaults=True))


def digest_of(prompt: FewShotPrompt) -> str:
    """16 hex digits that stand for a prompt in the records of a run."""
    return hashlib.sha256(prompt_yaml(prompt).encode()).hexdigest()[:16]
