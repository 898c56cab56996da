"""Question ids across several environments: `NAME/ID`, so that equal ids of two environments stay distinct.

An environment name contains no slash; the id may.
"""

from collections.abc import Sequence
from dataclasses import replace

from .types import Question


def join_id(environment: str, question_id: str) -> str:
    return f"{environment}/{question_id}"


def split_id(mixed_id: str) -> tuple[str, str]:
    """Split a mixed id into environment name and question id."""
    environment, _, question_id = mixed_id.partition("/")
    return environment, question_id


def joined(environment: str, questions: Sequence[Question]) -> list[Question]:
    """The questions of one environment under their mixed ids."""
    return [replace(question, id=join_id(environment, question.id)) for question in questions]
