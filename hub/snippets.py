"""The code of a model card: it answers the example question without this package.

Three blocks: the prompt, then transformers or vLLM, which go on from it. All of them read the chat in `querylect.json`,
so that what they ask is what was measured, to the token. A fourth one says how this package does it.
"""

from dataclasses import dataclass

from .exported import FILE, Exported

SERVICE = 'client.urls=["http://localhost:8765"]'
"""What a rewriter of several turns searches in the card: a service that `querylect serve` runs."""

LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM makes room for."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a reader of the card finds the model."""

    name: str
    """A Hub id, or "." for the folder that holds the card."""
    revision: str | None = None
    """The branch, where it is not the main one."""

    @property
    def on_the_hub(self) -> bool:
        """Whether it has to be downloaded."""
        return self.name != "."

    @property
    def arguments(self) -> str:
        """What loading is given after the name."""
        return f', revision="{self.revision}"' if self.revision else ""


def querylect_snippet(exported: Exported, address: Address, member: str) -> str:
    """The same with this package. `member` is the environment that is meant, "" where there is only one."""
    remote = ", trust_remote_code=True" if exported.policy.trust_remote_code else ""
    meant = f", retriever={quoted(member)}" if member else ""
    question = quoted(exported.members[member].chat.question)
    where = f", settings=['{SERVICE}']" if exported.rollout.used_turn > 1 else ""
    return "\n".join(
        [
            "from querylect import Rewriter",
            "",
            f'rewriter = Rewriter.from_pretrained("{address.name}"{address.arguments}{remote}{where})',
            f"print(rewriter.rewrite({question}{meant}))",
        ]
    )


def prompt_snippet(exported: Exported, address: Address, member: str) -> str:
    """From a question to the ids of its prompt, and from sampled ids to text."""
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
    """The same with vLLM. `rank` is that of an adapter."""
    tokens = exported.rollout.max_new_tokens[0]
    remote = ", trust_remote_code=True" if exported.policy.trust_remote_code else ""
    dtype = f'dtype="{exported.policy.dtype}"{remote}'
    imports, more = ["from vllm import LLM, SamplingParams"], ""
    if exported.lora:
        room = next((one for one in LORA_RANKS if one >= (rank or 0)), LORA_RANKS[-1])
        imports.append("from vllm.lora.request import LoRARequest")
        folder = "name"
        if address.on_the_hub:
            imports.insert(0, "from huggingface_hub import snapshot_download")
            folder = f"snapshot_download(name{address.arguments})"
        load = f'llm = LLM(model="{base}", {dtype}, enable_lora=True, max_lora_rank={room})'
        more = f', lora_request=LoRARequest("rewriter", 1, {folder})'
    else:
        tokenizer = f', tokenizer_revision="{address.revision}"' if address.revision else ""
        load = f"llm = LLM(model=name, {dtype}{address.arguments}{tokenizer})"
    return "\n".join(
        [
            *imports,
            "",
            load,
            f'sampling = SamplingParams(temperature=0.0, max_tokens={tokens}, stop_token_ids=chat["stop_ids"])',
            f'output = llm.generate([{{"prompt_token_ids": ids}}], sampling{more})[0].outputs[0]',
            "print(text_of(output.token_ids))",
        ]
    )


def quoted(text: str) -> str:
    """A Python string of `text`, in double quotes where that needs no more escapes."""
    plain = repr(text)
    if plain.startswith("'") and '"' not in plain and "\\'" not in plain:
        return f'"{plain[1:-1]}"'
    return plain
