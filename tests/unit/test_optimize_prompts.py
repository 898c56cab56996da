"""Texts that a reflection model writes: which make a usable prompt, and why the others are refused."""

import pytest
from querylect.configs.yaml12 import parse_yaml
from querylect.data.types import Question
from querylect.errors import ConfigError
from querylect.optimize.prompts import components_of, digest_of, prompt_of, prompt_yaml
from querylect.optimize.reflection import feedback
from querylect.optimize.scoring import ScoredAnswer
from querylect.rewriters.small import FewShotPrompt, load_prompt

from ..command import mistake
from ..raising import refused

ALL = ["system", "question", "documents", "examples"]


@pytest.mark.parametrize("name", ["wordnet", "hpo", "claims", "wordnet_conversations"])
def test_a_packaged_prompt_is_the_same_from_its_components_and_from_its_file(name, tmp_path):
    prompt = load_prompt(name)
    assert prompt_of(prompt, components_of(prompt, ALL)) == prompt
    (tmp_path / "prompt.yaml").write_text(prompt_yaml(prompt))
    assert load_prompt(str(tmp_path / "prompt.yaml")) == prompt
    assert digest_of(load_prompt(str(tmp_path / "prompt.yaml"))) == digest_of(prompt)


def test_a_changed_component_changes_nothing_else():
    start = load_prompt("wordnet")
    changed = prompt_of(start, {"system": 'Give "words" for: this\n- and # that.'})
    assert changed.system == 'Give "words" for: this\n- and # that.'
    assert changed.model_copy(update={"system": start.system}) == start
    assert FewShotPrompt.model_validate(parse_yaml(prompt_yaml(changed))) == changed


@pytest.mark.parametrize(
    ("texts", "fact"),
    [
        ({"system": "  \n"}, "system is empty"),
        ({"system": "Rewrite {question}"}, "{question}"),
        ({"system": "After {history}"}, "{history}"),
        ({"question": "{history}{history}{question}"}, "2 times"),
        ({"question": "Define it."}, "{question}"),
        ({"question": "{question} or {question}"}, "2 times"),
        ({"documents": "Found nothing useful."}, "{documents}"),
        ({"examples": "- question: [open"}, "not valid YAML"),
        ({"examples": "many examples"}, "examples"),
        ({"examples": "- question: a\n  turns: [{rewrite: ''}]"}, "examples"),
        ({"examples": "- question: a\n  turns: [{think: so, rewrite: b}]"}, "'plain'"),
        ({"examples": "- question: a\n  turns: [{rewrite: '{question}'}]"}, "{question}"),
    ],
)
def test_a_text_that_makes_no_usable_prompt_is_refused_with_a_reason(texts, fact):
    with refused(ConfigError, fact):
        prompt_of(load_prompt("wordnet"), texts)


def test_feedback_names_both_rewards_the_retrieved_and_the_relevant():
    answer = ScoredAnswer("k", "c", "train", "q", ("hammer",), True, 0.5, {}, ("Mallet", "Sledge"), 1, 4, 0.1)
    fields = feedback(Question("q", "a tool"), answer, 0.25, ["Hammer"])
    assert (fields["Question"], fields["Query"]) == ("a tool", "hammer")
    for fact in ("0.50", "0.25", "Mallet | Sledge", "Relevant: Hammer"):
        assert fact in fields["Feedback"]
    failed = ScoredAnswer("k", "c", "train", "q", ("",), False, 0.0, {}, (), 0, 4, 0.1)
    assert "required form" in feedback(Question("q", "a tool"), failed, 0.25, [])["Feedback"]
    assert "Relevant" not in feedback(Question("q", "a tool"), failed, 0.25, [])["Feedback"]


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [(["paper_bm25"], "rewriter.prompt"), (["demo", "rewriter.stop=true"], "stop"), (["answers"], "reward")],
)
def test_a_dry_run_refuses_what_the_run_would_refuse(arguments, fact, capsys):
    assert mistake("optimize", *arguments, "--dry-run") is ConfigError
    printed = capsys.readouterr()
    assert not printed.out
    assert fact in printed.err
