"""What is used of a transformers tokenizer: its own annotations allow more than our calls give and get."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..llms.base import Message

if TYPE_CHECKING:
    from transformers import AddedToken


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer, as `load_policy` gives it."""

    chat_template: str | dict[str, str] | None
    eos_token_id: int
    pad_token_id: int
    bos_token_id: int | None
    all_special_tokens: list[str]
    special_tokens_map: Mapping[str, str | list[str]]
    added_tokens_decoder: Mapping[int, "AddedToken"]

    def __call__(self, text: str, *, add_special_tokens: bool) -> Mapping[str, list[int]]: ...

    def decode(self, ids: Sequence[int], **options: bool) -> str: ...

    def batch_decode(self, ids: Sequence[Sequence[int]]) -> list[str]: ...

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]: ...

    def get_chat_template(self) -> str: ...

    def apply_chat_template(self, messages: list[Message], **options: bool) -> str: ...

    def save_pretrained(self, save_directory: str | Path) -> object: ...
