"""One rewriter for several retrievers: every question gets the prompt of its own retriever."""

from querylect.configs.schema import RewriterConfig, RunConfig
from querylect.data.types import Document, Question
from querylect.envs.client.connect import MixedClient
from querylect.envs.presets import PRESETS
from querylect.envs.schemas import EnvironmentInfo
from querylect.errors import ConfigError
from querylect.rewriters.delegating import MixedRewriter
from querylect.rewriters.registry import make_rewriter
from querylect.rewriters.retriever_info import RetrieverInfo
from querylect.rollouts.tree_sampler import rewriter_for

from ..raising import refused

NAMES = {"lexical": "bm25", "semantic": "all-minilm-l6-v2"}


class Clients(MixedClient):
    """Lists the retrievers that are served, as running services would."""

    def infos(self):
        shared = {"corpus_size": 1, "corpus_hash": "c", "index_hash": "i", "settings_hash": "s"}
        shared |= {"splits": {}}
        return {
            name: EnvironmentInfo(name=name, retriever=PRESETS[recipe].model_dump(mode="json"), **shared)
            for name, recipe in NAMES.items()
        }


def run(**of_semantic):
    """A run over both, whose second member has the rewriter settings `of_semantic`."""
    plain = {
        "rewriter": {"name": "explore"},
        "mix": {"environments": {"lexical": {}, "semantic": {"env": {"index": "x"}, "rewriter": of_semantic}}},
    }
    return RunConfig.model_validate(plain)


def mixed_of(config):
    """The rewriter of that run."""
    return rewriter_for(config.rewriter, config.mix, Clients({}), config.search_depth)


def test_each_question_is_asked_as_its_own_environment_alone_would_ask_it():
    mixed = mixed_of(run())
    documents = [Document("d", "Title", "text")]
    for name, recipe in NAMES.items():
        retriever = RetrieverInfo.from_service(PRESETS[recipe].model_dump())
        alone = make_rewriter(RewriterConfig(name="explore"), retriever)
        mixed_question, question = Question(f"{name}/q/1", "Who?"), Question("q/1", "Who?")
        assert mixed.first(mixed_question) == alone.first(question)
        assert mixed.follow_up(mixed_question, documents, 2) == alone.follow_up(question, documents, 2)
        answer = "<think></think><rewrite>x</rewrite>"
        assert mixed.parse(mixed_question, answer, 1) == alone.parse(question, answer, 1)


def test_levels_may_differ_but_not_what_begins_an_answer():
    mixed = mixed_of(run(name="direct"))
    assert isinstance(mixed, MixedRewriter)
    assert [mixed.members[name].name for name in NAMES] == ["explore", "direct"]
    with refused(ConfigError, "'semantic': '<think></think><rewrite>'"):
        mixed_of(run(name="few_shot"))
