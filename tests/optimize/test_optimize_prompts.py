"""Texts that a reflection model writes: which make a usable prompt, and why the others are refused."""

import pytest
from querylect.data.types import Question
from querylect.errors import ConfigError
from querylect.optimize.prompts import digest_of, prompt_yaml, with_system
from querylect.optimize.reflection import feedback
from querylect.optimize.scoring import ScoredAnswer
from querylect.rewriters.few_shot import load_prompt

from ..command import mistake
from ..raising import refused


def test_another_system_message_changes_nothing_else_and_survives_its_file(tmp_path):
    start = load_prompt("wordnet")
    changed = with_system(start, 'Give "words" for: this\n- and # that.')
    assert changed.system == 'Give "words" for: this\n- and # that.'
    assert changed.model_copy(update={"system": start.system}) == start
    (tmp_path / "prompt.yaml").write_text(prompt_yaml(changed))
    assert load_prompt(str(tmp_path / "prompt.yaml")) == changed
    assert digest_of(load_prompt(str(tmp_path / "prompt.yaml"))) == digest_of(changed) != digest_of(start)


@pytest.mark.parametrize(("text", "fact"), [("  \n", "empty"), ("Rewrite {question}", "{question}")])
def test_a_text_that_makes_no_usable_prompt_is_refused_with_a_reason(text, fact):
    with refused(ConfigError, fact):
        with_system(load_prompt("wordnet"), text)


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
