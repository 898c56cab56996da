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
    args = parser.parse_args()
    config = load_config(args.config, args.overrides)
    env, extend = config.env, config.questions.extend
    assert env.question_index is not None, "env.retriever must be qb-rag"
    assert extend is not None, "questions.extend must name a retriever over the contents"
    index = open_question_index(env.question_index.folder)
    pool = Pool(index.questions(), index.answers())
    journal = AnswerJournal(index.path)
    questions, contents = [question.id for question in pool.questions], list(index.contents())
    judged = judged_pairs(pool, journal.answers.by_key.values(), journal.pairs.by_key.values())
    own_pairs, answered = set(), set()
    for answer in pool.answers:
        if answer.source == "written" or (answer.source == "vetted" and answer.question not in answered):
            own_pairs.add((answer.question, answer.content))
        answered.add(answer.question)
    similar = similar_contents(pool.questions, set(contents), extend, env, open_corpus(env.dataset))
    if args.unjudged_are_wrong:
        pairs = zip((questions[position] for position in similar.questions.tolist()), similar.contents, strict=True)
        judged = {**dict.fromkeys(pairs, False), **judged}
    print(describe("numpy", "scipy", "bm25s"))
    cross = [yes for pair, yes in judged.items() if pair not in own_pairs]
    print(
        f"{len(questions)} questions, {len(contents)} contents, {len(own_pairs)} pairs in A; {len(cross)} cross pairs "
        f"judged, {sum(cross)} of them answered"
    )
    retrieval = Retrieval(env, index, args.split, args.limit)
    shares = [float(share) for share in args.shares.split(",")]
    rows = []
    for estimate in compare(pool.answers, own_pairs, judged, similar, questions, contents, extend, shares, retrieval):
        cells = ["–" if value is None else f"{value:.3f}" for value in (estimate.precision, estimate.recall)]
        rows.append([estimate.name, str(estimate.pairs), *cells, f"{estimate.ndcg:.4f}"])
    print(*markdown_table(["estimate", "pairs", "precision", "recall", "nDCG@10"], rows), sep="\n")


if __name__ == "__main__":
    main()
