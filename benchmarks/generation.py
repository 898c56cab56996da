"""Sampling answers: this engine against TRL's own path, and a turn of `hpo` against transformers' `generate`.

    python benchmarks/generation.py trl  [PROMPT] [NEW] [SAMPLES] [ROUNDS]
    python benchmarks/generation.py hpo [QUESTIONS] [SAMPLES]

`trl`: SAMPLES (16) answers of exactly NEW (100) tokens to one prompt of PROMPT (600) tokens, by what GRPOTrainer calls
in a training step (every sample is a row of its own) and by this engine, around the same weights. `hpo`: that config's
prompts, 16 tokens per answer. Both sides sample the same number of tokens; the median of rounds in turn is printed.
"""

import sys
from statistics import median

import torch
from machine import describe, seconds
from querylect.configs.load import load_config
from querylect.data.corpus import load_dataset
from querylect.logs import set_up_logging
from querylect.rewriters.registry import make_rewriter
from querylect.rewriters.retriever_info import RetrieverInfo
from querylect.rollouts.chat import Chat
from querylect.rollouts.engines.base import Sampling
from querylect.rollouts.engines.transformers import TransformersEngine
from querylect.rollouts.policy import load_policy
from stock import settings, trainers

TOKENS_OF_A_TURN = 16


def trl(prompt: str = "600", new: str = "100", samples: str = "16", rounds: str = "3") -> None:
    """Time both and print the ratio and its target."""
    count, length = int(samples), int(new)
    config = settings(
        "auto", f"rollout.branching=[{count}]", "reward.turn_weights=[1.0]", f"rollout.max_new_tokens={length}",
        "train.warm_start.questions=0",
    )  # fmt: skip
    stock, _ = trainers(config, ours=False, generation_kwargs={"min_new_tokens": length})
    ids = torch.randint(5, 40000, (int(prompt),), generator=torch.Generator().manual_seed(0)).tolist()
    engine = TransformersEngine(stock.model, stock.processing_class)
    engine.stop_ids = {-1}  # never stop early

    def ours() -> list[int]:
        (answers,) = engine.generate([ids], count, Sampling(1.0, 1.0, length))
        return [len(answer.ids) for answer in answers]

    def theirs() -> list[int]:
        answers, _ = stock._generate_single_turn([ids] * count, None, {}, count)
        return [len(answer) for answer in answers]

    assert ours() == theirs() == [length] * count
    taken = [(seconds(ours), seconds(theirs)) for _ in range(int(rounds))]
    our_seconds, peer_seconds = median(a for a, _ in taken), median(b for _, b in taken)
    ratio = median(b / a for a, b in taken)
    print(describe())
    size = f"{count} answers of {length} tokens to a prompt of {prompt}, {stock.model.dtype}"
    print(f"{size}, {torch.get_num_threads()} threads, {rounds} rounds in turns")
    print(f"  querylect engine          {our_seconds:6.2f} s  {count * length / our_seconds:6.0f} tokens/s")
    print(f"  TRL, transformers' own    {peer_seconds:6.2f} s  {count * length / peer_seconds:6.0f} tokens/s")
    print(f"  ratio {ratio:.2f} (target at least 1.80: {'reached' if ratio >= 1.8 else 'missed'})")


def hpo(questions: str = "12", samples: str = "4") -> None:
    """Time both and print tokens per second and the ratio."""
    config = load_config("hpo", [])
    model, tokenizer = load_policy(config.policy)
    engine = TransformersEngine(model, tokenizer)
    chat = Chat(tokenizer, engine.stop_ids)
    rewriter = make_rewriter(config.rewriter, RetrieverInfo("bm25", "bm25"))
    train_questions = load_dataset(config.env.dataset).splits["train"].questions[: int(questions)]
    prompts = [chat.first(rewriter.first(question), rewriter.opening) for question in train_questions]
    n = int(samples)
    engine.stop_ids = {-1}

    def ours() -> None:
        engine.generate(prompts, n, Sampling(1.0, 1.0, TOKENS_OF_A_TURN))

    def theirs() -> None:
        batch = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
        with torch.inference_mode():
            model.generate(
                **batch, do_sample=True, top_k=0, num_return_sequences=n, max_new_tokens=TOKENS_OF_A_TURN,
                min_new_tokens=TOKENS_OF_A_TURN,
            )  # fmt: skip

    ours()
    theirs()
    rounds = [(seconds(ours), seconds(theirs)) for _ in range(3)]
    tokens = len(prompts) * n * TOKENS_OF_A_TURN
    our_seconds, peer_seconds = median(a for a, _ in rounds), median(b for _, b in rounds)
    print(describe())
    size = f"{len(prompts)} prompts of {len(prompts[0])} tokens × {n} samples × {TOKENS_OF_A_TURN} tokens"
    print(f"{size}, {torch.get_num_threads()} threads")
    print(f"  querylect engine       {our_seconds:6.2f} s  {tokens / our_seconds:6.0f} tokens/s")
    print(f"  transformers generate  {peer_seconds:6.2f} s  {tokens / peer_seconds:6.0f} tokens/s")
    print(f"  ratio {median(b / a for a, b in rounds):.2f}")


if __name__ == "__main__":
    set_up_logging()
    {"trl": trl, "hpo": hpo}[(sys.argv[1:] or ["trl"])[0]](*sys.argv[2:])
