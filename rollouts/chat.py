"""Chat text to ids, so that the ids of a later turn continue those of the turns before it.

A first turn is the chat template applied to the rewriter's messages. What a later turn adds (end of the sampled turn,
the user message that shows documents, the opening of the next assistant turn) is cut out of the template's own
rendering of a stand-in conversation: so templates that rewrite or strip earlier assistant turns cannot change what was
sampled. Questions and documents cannot speak for the template either: its control tokens are taken out of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..data.history import newest
from ..data.types import Question
from ..errors import ModelError
from ..llms.base import THINK_OPEN, Message

if TYPE_CHECKING:
    from transformers import AddedToken

_STAND_IN = "QUERYLECTSAMPLEDTURN"


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer, whose own annotations allow more than our calls give and get."""

    chat_template: str | dict[str, str] | None
    eos_token_id: int
    pad_token_id: int
    bos_token_id: int | None
    all_special_tokens: list[str]
    added_tokens_decoder: Mapping[int, "AddedToken"]

    def __call__(self, text: str, *, add_special_tokens: bool) -> Mapping[str, list[int]]: ...

    def decode(self, ids: Sequence[int], **options: bool) -> str: ...

    def apply_chat_template(self, messages: list[Message], **options: bool) -> str: ...

    def save_pretrained(self, save_directory: str | Path) -> object: ...


class Chat:
    """Renders turns for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, stop_ids: set[int]) -> None:
        self.tokenizer, self.stop_ids = tokenizer, stop_ids
        template = str(tokenizer.chat_template)
        # Some tokenizers name only a few of the tokens that open a turn; the template shows the others.
        added = {str(t) for t in tokenizer.added_tokens_decoder.values() if t.special or str(t) in template}
        control = {token for token in {*tokenizer.all_special_tokens, *added} if token.strip()}
        self._control = sorted(control, key=len, reverse=True)

    def first(self, messages: Sequence[Message], opening: str = "") -> list[int]:
        """Ids of the chat up to the assistant's turn and what its answer begins with.

        Raises ModelError for a template that writes the beginning of the answer itself: what it writes is not sampled,
        and without it no answer keeps the format.
        """
        text = self._render(messages)
        if text.rstrip().endswith(THINK_OPEN):
            raise ModelError(
                f"the chat template of the policy ends every prompt with {THINK_OPEN}, so no answer could begin with "
                "it and all would fail the format. Choose a policy whose template leaves the whole answer to the "
                "model, or take that end out of its chat_template."
            )
        return [*self._ids(text), *self._ids(opening)]

    def first_of_prompted(self, messages: Sequence[Message], opening: str = "") -> tuple[list[int], str]:
        """`first` for a model that is not trained, and what its answer begins with: `opening`, or the tag of a template
        that opens the thinking."""
        text = self._render(messages)
        if text.rstrip().endswith(THINK_OPEN):
            return self._ids(text), THINK_OPEN
        return [*self._ids(text), *self._ids(opening)], opening

    def continuation(
        self, messages: Sequence[Message], message: str, completion: Sequence[int], opening: str = ""
    ) -> list[int]:
        """Ids that follow a sampled turn: its end (unless sampled), the user's `message`, the next answer's opening."""
        stand_in = _STAND_IN
        while any(stand_in in text for text in [message, *(earlier["content"] for earlier in messages)]):
            stand_in += _STAND_IN
        turns: list[Message] = [{"role": "assistant", "content": stand_in}, {"role": "user", "content": message}]
        text = self._render([*messages, *turns])
        if text.count(stand_in) != 1:
            raise ModelError(
                "the chat template of the policy drops or repeats assistant turns; several turns need them whole. "
                "Choose another policy, or one turn (rollout.branching: [16])."
            )
        ids = [*self._ids(text.split(stand_in)[1]), *self._ids(opening)]
        sampled_end = completion[-1] if completion and completion[-1] in self.stop_ids else None
        return ids[1:] if sampled_end is not None and ids[0] == sampled_end else ids

    def text(self, completion: Sequence[int]) -> str:
        """The sampled text of one turn without its end-of-turn id."""
        ids = list(completion[:-1]) if completion and completion[-1] in self.stop_ids else list(completion)
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def answer(self, text: str) -> list[int]:
        """Ids of a turn that says `text` and ends, as if it had been sampled."""
        return [*self._ids(text), self.tokenizer.eos_token_id]

    def cut(self, text: str, tokens: int) -> str:
        """The beginning of `text` on one line, in at most `tokens` tokens, the mark "…" of a cut included."""
        text = " ".join(self.plain(text).split())
        ids = self._ids(text)
        if len(ids) <= tokens:
            return text
        for length in range(tokens - 1, 0, -1):
            start = self.tokenizer.decode(ids[:length], clean_up_tokenization_spaces=False).rstrip("\ufffd ")
            if self.count(f"{start}…") <= tokens:
                return f"{start}…"
        return ""

    def plain(self, text: str) -> str:
        """`text` without the tokenizer's control tokens: outside text may not open or close a turn."""
        while any(token in text for token in self._control):
            for token in self._control:
                text = text.replace(token, " ")
        return text

    def plain_question(self, question: Question, history_tokens: int = 0) -> Question:
        """The question as a prompt shows it, with the newest utterances of its history that fit `history_tokens`."""
        history = tuple(replace(utterance, text=self.plain(utterance.text)) for utterance in question.history)
        return replace(
            question,
            text=self.plain(question.text),
            options=tuple(map(self.plain, question.options)),
            history=newest(history, history_tokens, self.count, self.cut),
        )

    def count(self, text: str) -> int:
        return len(self._ids(text))

    def _render(self, messages: Sequence[Message]) -> str:
        return self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []
