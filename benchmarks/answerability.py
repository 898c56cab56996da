"""How well thresholded pairs and matrix completion estimate which content answers which question, and what it gains.

    querylect index questions CONFIG …      # a question index, best with judged pairs (questions.extend)
    querylect index build CONFIG
    python benchmarks/answerability.py CONFIG [KEY=VALUE …] [--split test] [--limit 500] [--unjudged-are-wrong]

CONFIG has env.retriever=qb-rag, and questions.extend, which names the retriever over the contents. Of a vetted question
with several contents, A holds the first one and the others are to be found. With `--unjudged-are-wrong` the similar
pairs that nobody judged count as not answered, for collections whose judgements are complete.
"""

import argparse

from answerability_estimates import Retrieval, compare
from machine import describe
from querylect.configs.load import load_config
from querylect.data.corpus import open_corpus
from querylect.envs.retrievers.question_index import open_question_index
from querylect.markdown_tables import markdown_table
from querylect.questions.asking import AnswerJournal
from querylect.questions.extend import similar_contents
from querylect.questions.pool import Pool, judged_pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--split", default="test")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--shares", default="0.0005,0.001,0.005")
    parser.add_argument("--unjudged-are-wrong", action="store_true")
    told = parser.parse_args()
    config = load_config(told.config, told.overrides)
    env, extend = config.env, config.questions.extend
    assert env.question_index is not None, "env.retriever must be qb-rag"
    assert extend is not None, "questions.extend must name a retriever over the contents"
    index = open_question_index(env.question_index.folder)
    pool = Pool(index.questions(), index.answers())
    journal = AnswerJournal(index.path)
    questions, contents = [question.id for question in pool.questions], list(index.contents())
    judged = judged_pairs(pool, journal.answers.by_key.values(), journal.pairs.by_key.values())
    own, seen = set(), set()
    for answer in pool.answers:
        if answer.source == "written" or (answer.source == "vetted" and answer.question not in seen):
            own.add((answer.question, answer.content))
        seen.add(answer.question)
    similar = similar_contents(pool.questions, set(contents), extend, env, open_corpus(env.dataset))
    if told.unjudged_are_wrong:
        pairs = zip((questions[place] for place in similar.questions.tolist()), similar.contents, strict=True)
        judged = {**dict.fromkeys(pairs, False), **judged}
    print(describe("numpy", "scipy", "bm25s"))
    cross = [yes for pair, yes in judged.items() if pair not in own]
    print(
        f"{len(questions)} questions, {len(contents)} contents, {len(own)} pairs in A; {len(cross)} cross pairs "
        f"judged, {sum(cross)} of them answered"
    )
    retrieval = Retrieval(env, index, told.split, told.limit)
    shares = [float(share) for share in told.shares.split(",")]
    rows = []
    for one in compare(pool.answers, own, judged, similar, questions, contents, extend, shares, retrieval):
        precision, recall = ("–" if each is None else f"{each:.3f}" for each in (one.precision, one.recall))
        rows.append([one.name, str(one.pairs), precision, recall, f"{one.ndcg:.4f}"])
    print(*markdown_table(["estimate", "pairs", "precision", "recall", "nDCG@10"], rows), sep="\n")


if __name__ == "__main__":
    main()
