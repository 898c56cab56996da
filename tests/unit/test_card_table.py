"""The table of a model card: a column for each system that the trained policy was compared with."""

from querylect.export.card import results_table
from querylect.export.exported import ExportedResults, ExportedRollout

ROLLOUT = ExportedRollout(
    turns=2, turn=2, max_new_tokens=[8, 8], max_prompt_tokens=64, documents=3, document_tokens=8, k=10
)
MEASURED = {"raw": 0, "rm3": 0, "hyde": 1, "untrained": 2, "warm start": 2, "trained": 2}
LEADS = {"raw": 0.5, "rm3": 0.4, "hyde": 0.3, "untrained": 0.2, "warm start": 0.1}


def results(*left_out):
    arms = {system: turn for system, turn in MEASURED.items() if system not in left_out}
    row = {"n": 4, "metrics": {"ndcg@10": 0.5}, "low": 0.4, "high": 0.6, "calls": 1, "searches": 1.0, "format_ok": 1.0}
    test = {"n": 4, "low": 0.0, "high": 1.0, "p": 0.01, "p_holm": 0.02, "wins": 3, "ties": 0, "losses": 1}
    return ExportedResults.model_validate(
        {
            "created": "now", "split": "test", "questions": 4, "headline": "", "explanation": "", "seed": 0,
            "versions": {}, "retriever": "bm25", "best_training_free": "rm3" if "rm3" in arms else None,
            "environment": {"name": "toy", "corpus_size": 1, "corpus_hash": "", "index_hash": "", "splits": {}},
            "systems": [{"system": system, "turn": turn, **row} for system, turn in arms.items()],
            "comparisons": [
                {
                    "system": "trained", "turn": 2, "against": {"system": system, "turn": arms[system]}, **test,
                    "difference": lead, "significant": True, "verdict": "beats",
                }
                for system, lead in LEADS.items() if system in arms
            ],
        }
    )  # fmt: skip


def compared(measured):
    """The columns of comparisons of the trained policy's row."""
    head, _, *rows = [
        [cell.strip() for cell in line.split("|")] for line in results_table(measured, ROLLOUT).split("\n")
    ]
    (trained,) = (cells for cells in rows if cells[1] == "**trained policy, turn 2, which is used**")
    cells = dict(zip(head, trained, strict=True))
    return {name.removeprefix("against "): cell for name, cell in cells.items() if name.startswith("against ")}


def test_hyde_and_the_warm_start_have_columns_where_they_were_measured():
    columns = compared(results())
    plain = ["the raw question", "untrained, same turn"]
    assert list(columns) == [
        *plain, "the best training-free baseline", "HyDE at equal cost", "the warm start, same turn",
    ]  # fmt: skip
    leads = [LEADS[system] for system in ("raw", "untrained", "rm3", "hyde", "warm start")]
    assert list(columns.values()) == [f"+{lead:.3f} (p = 0.020), 3 better, 1 worse" for lead in leads]
    assert list(compared(results("rm3", "hyde", "warm start"))) == plain
