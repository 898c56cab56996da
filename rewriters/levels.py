"""The three prompt levels of Yuan et al. (section 4.3, figure 6): `general` tells the model nothing about its
retriever, `explore` what it is, `direct` what to write for it (tasks.yaml). A custom retriever has no prescribed form.
"""

from collections.abc import Mapping
from string import Template

from ..configs.schema import RewriterConfig
from ..data.types import Question
from ..errors import ConfigError
from .case import case_text
from .forms import ONE_REWRITE
from .retriever_info import RetrieverInfo
from .template import TemplateRewriter, query_plan, tag_form, tasks

_KIND_IN_WORDS = {
    "bm25": "lexical BM25",
    "dense": "dense embedding",
    "fts5": "full-text",
    "postgres": "full-text",
    "hybrid": "combined lexical and dense",
    "questions": "question-matching",
    "tantivy": "full-text",
    "custom": "custom",
}


def general(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> TemplateRewriter:
    """Five ways of rewriting are explained; the reward alone has to teach what suits the retriever, and for a native
    query also its language."""
    return level("general", config, k)


def explore(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> TemplateRewriter:
    """The retriever is introduced, for a native query also the order of its hits, and the model works out how to query
    it."""
    order = retriever.query_language.rpartition("\n")[2] if config.query == "native" else ""
    return level("explore", config, k, f"{introduce(retriever)} {order}".rstrip())


def direct(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> TemplateRewriter:
    """The form of query that suits the retriever is prescribed. Raises ConfigError where none is known."""
    query = native_form(retriever) if config.query == "native" else query_form(retriever)
    return level("direct", config, k, f"{introduce(retriever)} {query['advice']}", query["name"])


def level(name: str, config: RewriterConfig, k: int, introduction: str = "", query: str = "") -> TemplateRewriter:
    """A rewriter whose answers are `<think>…</think><rewrite>…</rewrite>`; all questions share the prompt up to the
    question. `query` is the name of a form of query."""
    native = tasks()["native"] if config.query == "native" else {}
    texts = tasks()[name] | native.get(name, {})
    task, again = (Template(texts[key]).substitute(form=query) for key in ("task", "again"))

    def prompt(question: Question, request: str) -> str:
        return "\n\n".join(filter(None, [introduction, task, request, case_text(question)]))

    form = tag_form(config, texts["reason"], texts.get("count", ONE_REWRITE))
    return TemplateRewriter(name, form, prompt, query_plan(config, k), again, **native.get("results", {}))


def native_form(retriever: RetrieverInfo) -> Mapping[str, str]:
    """The form of a query in the retriever's language."""
    return {"name": "a query in this language", "advice": f"Its query language:\n{retriever.query_language}"}


def query_form(retriever: RetrieverInfo) -> Mapping[str, str]:
    """The form of query that suits the `retriever`: its `name` and the `advice` how to write it. Raises ConfigError if
    none is prescribed."""
    name = retriever.name.lower().rsplit("/", maxsplit=1)[-1]
    forms = list(tasks()["forms"].values())
    by_name = [form for form in forms if name.startswith(tuple(form["retrievers"]))]
    for form in by_name or [form for form in forms if retriever.kind in form["kinds"]]:
        suitable: Mapping[str, str] = form
        return suitable
    raise ConfigError(
        f"rewriter.name is 'direct', and no form of query is known to suit the retriever {retriever.name!r} of kind "
        f"{retriever.kind!r}. Use rewriter.name=explore, which names the retriever and lets the policy find the form."
    )


def introduce(retriever: RetrieverInfo) -> str:
    """The sentence that introduces the retriever."""
    trained = retriever.trained.strip().rstrip(".")
    description = trained or f"{retriever.name}, a {_KIND_IN_WORDS[retriever.kind]} retriever"
    label = description if retriever.name.lower() in description.lower() else f"{retriever.name}, {description}"
    return f"Documents are found by {label}."
