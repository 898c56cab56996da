"""Haystack: a rewriter as a component.

    pipeline.add_component("rewriter", QuerylectRewriter("runs/demo"))
    pipeline.connect("rewriter.query", "retriever.query")

Needs the extra `haystack`. Outputs: `query` is the first query, `queries` are all queries, `failure` is the reason of a
format failure or None. On a failure both hold the raw question and a warning is logged. The optional input `history`
takes the chat messages before the query.
"""

from haystack import component
from haystack.dataclasses import ChatMessage

from ..rewriter import Rewriter
from . import queries_of, utterances


@component
class QuerylectRewriter:
    """Rewrites the query of a pipeline.

    `path_or_id`, `checkpoint`, `turn` and `settings` are those of `Rewriter.from_pretrained`. `env` selects the
    environment or retriever of a policy trained for several. A rewriter of two turns searches in between, in the
    environment that `settings` configure.
    """

    def __init__(
        self,
        path_or_id: str,
        checkpoint: str | None = None,
        env: str | None = None,
        turn: int | None = None,
        settings: list[str] | None = None,
    ) -> None:
        self.path_or_id, self.checkpoint, self.env = path_or_id, checkpoint, env
        self.turn, self.settings = turn, settings
        self._rewriter: Rewriter | None = None

    def warm_up(self) -> None:
        """Load the policy, once."""
        if self._rewriter is None:
            self._rewriter = Rewriter.from_pretrained(
                self.path_or_id, checkpoint=self.checkpoint, turn=self.turn, settings=self.settings or ()
            )

    @component.output_types(query=str, queries=list[str], failure=str | None)  # type: ignore[untyped-decorator]
    def run(self, query: str, history: list[ChatMessage] | None = None) -> dict[str, object]:
        """Rewrite the query; `history` is what was said before it."""
        self.warm_up()
        assert self._rewriter is not None, "it was loaded"
        conversation = utterances((message.role.value, message.text) for message in history or ())
        result = self._rewriter.rewrite(query, retriever=self.env, history=conversation)
        queries = queries_of(result)
        return {"query": queries[0], "queries": queries, "failure": result.failure}
