"""The code blocks of a model card, which answer the example question.

Three blocks need no querylect: one builds the prompt, and transformers or vLLM continue from it. They read the chat in
`querylect.json`, so their prompts match the evaluated ones token by token. The fourth block uses this package.
"""

from dataclasses import dataclass

from .exported import FILE, Exported

SERVICE = 'client.urls=["http://localhost:8765"]'
"""The setting in the card's code for rewriters that search between turns: a running `querylect serve`."""

LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM accepts for `max_lora_rank`."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a reader of the card finds the model."""

    name: str
    """A Hub id, or "." for the folder of the card."""
    revision: str | None = None
    """The branch, if it is not the main one."""

    @property
    def on_the_hub(self) -> bool:
        """Whether the model is a Hub repository."""
        return self.name != "."

    @property
    def arguments(self) -> str:
        """Arguments of `from_pretrained` after the name, as code."""
        return f', revision="{self.revision}"' if self.revision else ""


def querylect_snippet(exported: Exported, address: Address, member: str) -> str:
    """Rewriting with this package. `member` is the name of the environment, "" if there is only one."""
    remote = ", trust_remote_code=True" if exported.policy.trust_remote_code else ""
    retriever = f", retriever={quoted(member)}" if member else ""
    question = quoted(exported.members[member].chat.question)
    settings = f", settings=['{SERVICE}']" if exported.rollout.used_turn > 1 else ""
    return "\n".join(
        [
            "from querylect import Rewriter",
            "",
            f'rewriter = Rewriter.from_pretrained("{address.name}"{address.arguments}{remote}{settings})',
            f"print(rewriter.rewrite({question}{retriever}))",
        ]
    )


def prompt_snippet(exported: Exported, address: Address, member: str) -> str:
    """Code that turns a question into prompt ids, and sampled ids into text."""
    chat = exported.members[member].chat
    path = 'json.load(file)["chat"]' if not member else f'json.load(file)["environments"]["{member}"]["chat"]'
    remote = ", trust_remote_code=True" if exported.policy.trust_remote_code else ""
    comment = "" if address.on_the_hub else "  # this folder"
    if chat.template is not None:
        lines = [
            f"question = {quoted(chat.question)}",
            'messages = [{**m, "content": m["content"].replace("{question}", question)} for m in chat["template"]]',
        ]
    else:
        lines = ['messages = chat["messages"]  # of the example question']
    return "\n".join(
        [
            "import json",
            "",
            "from transformers import AutoTokenizer",
            "from transformers.utils import cached_file",
            "",
            f'name = "{address.name}"{comment}',
            f"tokenizer = AutoTokenizer.from_pretrained(name{address.arguments}{remote})",
            f'with open(cached_file(name, "{FILE}"{address.arguments}), encoding="utf-8") as file:',
            f"    chat = {path}",
            "",
            *lines,
            "prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)",
            "ids = []",
            'for text in (prompt, chat["opening"]):',
            '    ids += tokenizer(text, add_special_tokens=False)["input_ids"] if text else []',
            "",
            "",
            "def text_of(sampled):",
            '    kept = [token for token in sampled if token not in chat["stop_ids"]]',
            '    return chat["opening"] + tokenizer.decode(kept, clean_up_tokenization_spaces=False)',
        ]
    )


def transformers_snippet(exported: Exported, address: Address, base: str | None) -> str:
    """Greedy decoding with transformers (and peft, for an adapter)."""
    remote = ", trust_remote_code=True" if exported.policy.trust_remote_code else ""
    dtype = f"dtype=torch.{exported.policy.dtype}{remote}"
    imports = ["import torch", "from transformers import AutoModelForCausalLM"]
    if exported.lora:
        imports = [
            "import torch",
            "from peft import PeftModel",
            "from transformers import AutoModelForCausalLM, GenerationConfig",
        ]
        load = [
            f'base = AutoModelForCausalLM.from_pretrained("{base}", {dtype})',
            f"model = PeftModel.from_pretrained(base, name{address.arguments}).merge_and_unload()",
            f"model.generation_config = GenerationConfig.from_pretrained(name{address.arguments})",
        ]
    else:
        load = [f"model = AutoModelForCausalLM.from_pretrained(name, {dtype}{address.arguments})"]
    return "\n".join(
        [
            *imports,
            "",
            *load,
            "prompt_ids = torch.tensor([ids])",
            "with torch.inference_mode():",
            "    output = model.generate(prompt_ids, attention_mask=torch.ones_like(prompt_ids))",
            "print(text_of(output[0, len(ids) :].tolist()))",
        ]
    )


def vllm_snippet(exported: Exported, address: Address, base: str | None, rank: int | None) -> str:
    """Greedy decoding with vLLM. `rank` is the LoRA rank of an adapter."""
    tokens = exported.rollout.max_new_tokens[0]
    remote = ", trust_remote_code=True" if exported.policy.trust_remote_code else ""
    dtype = f'dtype="{exported.policy.dtype}"{remote}'
    imports, lora_argument = ["from vllm import LLM, SamplingParams"], ""
    if exported.lora:
        max_rank = next((size for size in LORA_RANKS if size >= (rank or 0)), LORA_RANKS[-1])
        imports.append("from vllm.lora.request import LoRARequest")
        folder = "name"
        if address.on_the_hub:
            imports.insert(0, "from huggingface_hub import snapshot_download")
            folder = f"snapshot_download(name{address.arguments})"
        load = f'llm = LLM(model="{base}", {dtype}, enable_lora=True, max_lora_rank={max_rank})'
        lora_argument = f', lora_request=LoRARequest("rewriter", 1, {folder})'
    else:
        tokenizer = f', tokenizer_revision="{address.revision}"' if address.revision else ""
        load = f"llm = LLM(model=name, {dtype}{address.arguments}{tokenizer})"
    return "\n".join(
        [
            *imports,
            "",
            load,
            f'sampling = SamplingParams(temperature=0.0, max_tokens={tokens}, stop_token_ids=chat["stop_ids"])',
            f'output = llm.generate([{{"prompt_token_ids": ids}}], sampling{lora_argument})[0].outputs[0]',
            "print(text_of(output.token_ids))",
        ]
    )


def quoted(text: str) -> str:
    """`text` as a Python string literal, in double quotes unless that needs more escapes."""
    plain = repr(text)
    if plain.startswith("'") and '"' not in plain and "\\'" not in plain:
        return f'"{plain[1:-1]}"'
    return plain
