"""A handbook of Markdown files, and a scripted model that writes good questions about it and judges them rightly.

Every section is about one thing that no other section names, and says what it costs; users call it otherwise.
"""

import json
import re
from pathlib import Path

from querylect.llms.base import LlmResponse, Text

from .lessons import PROMPT

THINGS = {
    "velocipede": "bike", "spectacles": "glasses", "omnibus": "bus", "aeroplane": "plane", "footwear": "shoes",
    "timepiece": "watch", "lavatory": "toilet", "refectory": "canteen", "infirmary": "nurse", "conveyance": "car",
    "telephone": "mobile", "luminaire": "lamp", "receptacle": "bin", "parasol": "umbrella", "garment": "coat",
    "beverage": "coffee", "residence": "flat", "remuneration": "pay", "vacation": "holiday", "apparatus": "tool",
}  # fmt: skip
"""What a section is about, and what users call it."""
CLARITY = "Every rule of this handbook is checked once a year by the office and then printed again for all."


def save_handbook(folder: Path) -> Path:
    """Ten files of two sections each."""
    folder.mkdir(parents=True)
    names = list(THINGS)
    for number in range(0, len(names), 2):
        sections = [
            f"## Rule {number + offset}\n\nThe {name} costs {number + offset + 3} coins a month, which the member pays "
            f"at the desk of the {name} before the first day of use. {CLARITY}"
            for offset, name in enumerate(names[number : number + 2])
        ]
        (folder / f"chapter-{number // 2}.md").write_text(f"# Chapter {number // 2}\n\n" + "\n\n".join(sections))
    return folder


def short_run(policy: Path, folder: Path) -> list[str]:
    """Settings with which `querylect adapt` trains this policy (lessons.py) for seconds; the folder gets its prompt."""
    (folder / "prompt.yaml").write_text(PROMPT)
    return [
        f"policy.model={policy}", "policy.dtype=float32", "policy.lora={r: 4, alpha: 8.0}",
        f"rewriter.prompt={folder / 'prompt.yaml'}", "rollout.branching=[2]", "rollout.max_new_tokens=6",
        "train.questions_per_step=2", "train.questions_per_micro_batch=1", "train.samples_per_update=null",
        "train.raw_reward=[0.0,1.0]", "train.save_steps=1", "eval.bootstrap=100", "eval.permutations=100",
        "tracking.wandb=disabled", "questions.writer.cache=null",
    ]  # fmt: skip


class Author:
    """Writes a question about each thing of a text, and says of a question whether a text names its thing.

    No question is nearly another one by its letters. `bad` are the things whose questions are about something else,
    `silent` those that get no reply.
    """

    identity = {"model": "author"}  # noqa: RUF012

    def __init__(self, bad=(), silent=(), stop_after=None):
        self.bad, self.silent, self.stop_after = set(bad), set(silent), stop_after
        self.written, self.judged = [], []

    def generate(self, prompts, draw, deliver):
        for index, prompt in enumerate(prompts):
            text = self.reply(prompt.messages[-1]["content"])
            deliver(index, "silent" if text is None else LlmResponse((Text(text, True, {}),), 7, 3))

    def reply(self, prompt):
        """The reply to the last message of a prompt; None if there is none."""
        if self.stop_after is not None and len(self.written) + len(self.judged) >= self.stop_after:
            raise ConnectionAbortedError("the model is gone")
        if "Decide whether a text answers" in prompt:
            text, question = re.findall("Text: (.*)\n\nQuestion: ([^\n]*)", prompt, re.DOTALL)[-1]
            self.judged.append(question)
            things = [name for name, common in THINGS.items() if {name, common} & set(re.findall(r"\w+", question))]
            verdict = bool(things) and all(f"The {name} costs" in text for name in things)
            return json.dumps({"explanation": "It names the thing, or not.", "answerable": verdict})
        case = prompt.rpartition("Text: ")[2]
        things = re.findall(r"The (\w+) costs", case)
        self.written.append(tuple(things))
        if set(things) & self.silent:
            return None
        return json.dumps({"question": self.question(prompt, things)})

    def question(self, prompt, things):
        common = [THINGS[name] for name in things]
        if set(things) & self.bad:
            return "Who discovered the moon and why?"
        if "search box" in prompt:
            return f"{things[0]} {common[0]} fee"
        if "right terms" in prompt:
            return f"what about my {common[0]} there?"
        if "both texts" in prompt:
            return f"Which is dearer, the {common[0]} or the {common[1]}?"
        return f"Is a {common[0]} or another {common[0]} cheap?"
