"""What an export shows as its example. No model is loaded."""

from querylect.export.source import EXAMPLE, example_question


def test_a_damaged_first_line_gives_no_example_question(tmp_path):
    (tmp_path / "eval.jsonl").write_bytes(b'{"question": "caf\xe9"}\n')
    assert example_question(tmp_path, "").text == EXAMPLE
    (tmp_path / "rollouts.jsonl").write_text('{"question": "Why?", "history": [{"role": "user", "text": "Hello."}]}\n')
    question = example_question(tmp_path, "")
    assert (question.text, [utterance.text for utterance in question.history]) == ("Why?", ["Hello."])
