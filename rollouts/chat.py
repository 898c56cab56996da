"""Chat text to ids, so that the ids of a later turn continue those of the turns before it.

A first turn is the chat template applied to the rewriter's messages. What a later turn adds (end of the sampled turn,
the user message that shows documents, the opening of the next assistant turn) is cut out of the template's own
rendering of a stand-in conversation: so templates that rewrite or strip earlier assistant turns cannot change what was
sampled. Questions and documents cannot speak for the template either: its control tokens are taken out of them.
"""

from collections.abc import Sequence
from typing import Any

from ..errors import ModelError
from ..rewriters.base import Message

_STAND_IN = "QUERYLECTSAMPLEDTURN"


class Chat:
    """Renders turns for one tokenizer."""

    def __init__(self, tokenizer: Any, stop_ids: set[int]) -> None:
        self.tokenizer, self.stop_ids = tokenizer, stop_ids
        self._control = sorted(set(tokenizer.all_special_tokens), key=len, reverse=True)

    def first(self, messages: Sequence[Message]) -> list[int]:
        """Ids of the chat up to the opening of the assistant's turn."""
        text = self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        return self._ids(text)

    def continuation(self, messages: Sequence[Message], message: str, completion: Sequence[int]) -> list[int]:
        """Ids that follow a sampled turn: its end (unless sampled), the user's `message`, the next opening."""
        conversation = [
            *messages,
            {"role": "assistant", "content": _STAND_IN},
            {"role": "user", "content": message},
        ]
        text = self.tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
        if text.count(_STAND_IN) != 1:
            raise ModelError(
                "the chat template of the policy drops or repeats assistant turns; several turns need them whole. "
                "Choose another policy, or one turn (rollout.branching: [16])."
            )
        ids = self._ids(text.split(_STAND_IN)[1])
        sampled_end = completion[-1] if completion and completion[-1] in self.stop_ids else None
        return ids[1:] if sampled_end is not None and ids[0] == sampled_end else ids

    def text(self, completion: Sequence[int]) -> str:
        """The sampled text of one turn without its end-of-turn id."""
        ids = list(completion[:-1]) if completion and completion[-1] in self.stop_ids else list(completion)
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def cut(self, text: str, tokens: int) -> str:
        """The first `tokens` tokens of `text`, on one line."""
        text = " ".join(self.plain(text).split())
        ids = self._ids(text)
        if len(ids) <= tokens:
            return text
        return str(self.tokenizer.decode(ids[:tokens], clean_up_tokenization_spaces=False)).rstrip("\ufffd ") + "…"

    def plain(self, text: str) -> str:
        """`text` without the tokenizer's control tokens: outside text may not open or close a turn."""
        while any(token in text for token in self._control):
            for token in self._control:
                text = text.replace(token, " ")
        return text

    def count(self, text: str) -> int:
        """Number of tokens of `text`."""
        return len(self._ids(text)) if text else 0

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
