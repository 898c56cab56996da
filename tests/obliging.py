"""A model that answers in the format that a prompt requires, with arbitrary content."""

import json
import re

HYPOTHESIS = {
    "discriminating_features": ["migraine"],
    "reasoning": "known",
    "confirming_evidence": ["a trial of triptan"],
    "best_guess": "A",
    "best_guess_text": "triptan",
}
FORMS = {
    "H_plus": {"H_plus": "triptan against migraine", "H_minus": "statin for cholesterol"},
    "discriminating_features": HYPOTHESIS,
    "missing_knowledge": {"thought": "?", "judge": True, "missing_knowledge": ["dose"], "query": ["insulin glucose"]},
    '"passages"': {"passages": [1]},
    '"pieces"': {"pieces": [{"passage": 1, "information": "something"}]},
    '"sufficient"': {"sufficient": False, "missing": ["more"]},
    '"queries"': {"queries": ["insulin glucose"]},
}
"""The answer by a word of the prompt that identifies the format."""


def obliging(prompt: str) -> str:
    """The answer to the last message of a prompt; to what has no form a word of the corpus."""
    for word, form in FORMS.items():
        if word in prompt:
            return json.dumps(form)
    labels = list(dict.fromkeys(re.findall(r"^((?:Sub-query|Query) \d):", prompt, re.MULTILINE)))
    if labels:
        return "\n".join(f"{label}: triptan migraine {label}" for label in labels)
    if "answer_choice" in prompt:
        return json.dumps({"step_by_step_thinking": "", "answer_choice": "A"})
    if "</rewrite>" in prompt:
        return "<think>so</think><rewrite>triptan</rewrite>"
    return "Answer: triptan"
