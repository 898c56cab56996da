"""Ids of questions of several environments: `NAME/ID`, so that equal ids of two of them stay two questions.

A name holds no slash, so the first one ends it; the id itself may hold any.
"""

from collections.abc import Sequence
from dataclasses import replace

from .types import Question


def join_id(environment: str, question_id: str) -> str:
    """The id of a question among those of all environments."""
    return f"{environment}/{question_id}"


def split_id(mixed_id: str) -> tuple[str, str]:
    """The environment's name and the question's id in it."""
    environment, _, question_id = mixed_id.partition("/")
    return environment, question_id


def joined(environment: str, questions: Sequence[Question]) -> list[Question]:
    """The questions of one environment under their mixed ids."""
    return [replace(question, id=join_id(environment, question.id)) for question in questions]
