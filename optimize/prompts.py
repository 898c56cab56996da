"""A few-shot prompt as the texts that GEPA changes, and back: what does not make a usable prompt is refused."""

import hashlib
from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from ..configs.optimize import PromptComponent
from ..configs.yaml12 import InvalidYAMLError, parse_yaml, write_yaml
from ..errors import ConfigError
from ..rewriters.small import FewShotPrompt

_PLACEHOLDERS = ("{question}", "{documents}", "{retriever}", "{history}")


def components_of(prompt: FewShotPrompt, names: Sequence[PromptComponent]) -> dict[str, str]:
    """The texts of these components; examples as YAML."""
    values = prompt.model_dump(mode="json", exclude_defaults=True)
    return {name: write_yaml(values[name]) if name == "examples" else getattr(prompt, name) for name in names}


def prompt_of(start: FewShotPrompt, texts: Mapping[str, str]) -> FewShotPrompt:
    """The prompt `start` with other texts of its components.

    Raises ConfigError, whose message says in one sentence what is wrong with a text.
    """
    values = start.model_dump(mode="json", exclude_defaults=True)
    for name, text in texts.items():
        if not text.strip():
            raise ConfigError(f"{name} is empty")
        values[name] = text
        if name == "examples":
            try:
                values[name] = parse_yaml(text)
            except InvalidYAMLError as error:
                raise ConfigError(f"examples is not valid YAML: {error}") from error
    try:
        prompt = FewShotPrompt.model_validate(values)
        readable = FewShotPrompt.model_validate(parse_yaml(prompt_yaml(prompt))) == prompt
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        location = ".".join(map(str, problem["loc"]))
        reason = problem["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{location}: {reason}" if location else reason) from error
    except (InvalidYAMLError, ValueError) as error:
        raise ConfigError(f"the text cannot be written to a YAML file: {error}") from error
    if not readable:
        raise ConfigError("the text has characters that a YAML file cannot hold")
    _refuse_stray_placeholders(prompt)
    return prompt


def _refuse_stray_placeholders(prompt: FewShotPrompt) -> None:
    """Raise ConfigError for placeholders that nothing replaces, or that would be replaced twice."""
    examples = " ".join(example.model_dump_json() for example in prompt.examples)
    for name, text in (("system", prompt.system), ("examples", examples)):
        stray = [placeholder for placeholder in _PLACEHOLDERS if placeholder in text]
        if stray:
            raise ConfigError(f"{name} holds {stray[0]}, which nothing replaces there")
    once = (("{question}", prompt.question), ("{history}", prompt.question), ("{documents}", prompt.documents))
    for placeholder, text in once:
        if text.count(placeholder) > 1:
            raise ConfigError(f"{placeholder} is in its template {text.count(placeholder)} times, expected once")


def prompt_yaml(prompt: FewShotPrompt) -> str:
    """The content of a prompt file."""
    return write_yaml(prompt.model_dump(mode="json", exclude_defaults=True))


def digest_of(prompt: FewShotPrompt) -> str:
    """16 hex digits that stand for a prompt in the records of a run."""
    return hashlib.sha256(prompt_yaml(prompt).encode()).hexdigest()[:16]
