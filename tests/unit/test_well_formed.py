"""benchmarks/well_formed.py on the folder of a paper: what was requested in a fixed form, and what was read."""

import json

from querylect.benchmarks import well_formed

from ..jsonl import write_jsonl

SYSTEMS = {"chr": "chr", "hcqr": "hcqr", "rewriting": "multi_query", "wiki": "misknow", "migres": "migres"}
PLANS = {"rewrites": ["a", "b", "c"]}
RECORDS = [
    ("chr", {"H_plus": "a", "H_minus": "b"}, 2, ""),
    ("chr", {"problem": "H_minus: missing"}, 2, "garbled"),
    ("chr", {}, 0, "no reply"),
    ("chr[penalty=0.2]", {"H_plus": "a"}, 1, ""),
    ("hcqr", {"first_stage": {"best_guess": "a"}, **PLANS}, 3, ""),
    ("hcqr", {"first_stage": {"best_guess": "a"}, "repaired": True, "rewrites": []}, 3, "garbled"),
    ("hcqr", {"problem": "best guess: missing"}, 2, "garbled"),
    ("rewriting", {**PLANS, "repaired": True}, 2, ""),
    ("wiki", {"judgements": [{}]}, 4, ""),
    ("wiki", {"draft_kept": True}, 3, ""),
    ("migres", {"unreadable": {"step": "Kept"}}, 2, "garbled"),
]
COUNTS = {
    "chr: hypotheses": (2, 1, 1),
    "hcqr: hypothesis": (3, 2, 1),
    "hcqr: queries": (2, 1, 0),
    "rewriting: queries": (1, 1, 1),
    "wiki: judgement": (2, 1, 1),
    "migres: all steps": (1, 0, 0),
    "judge utility": (4, 3, ""),
}


def test_requests_and_readings_are_counted_by_stage_and_judge(tmp_path, monkeypatch, capsys):
    lines = [
        {"system": system, "notes": notes, "spent": {"calls": calls}, "failure": failure}
        for system, notes, calls, failure in RECORDS
    ]
    write_jsonl(tmp_path / "questions.jsonl", *lines)
    judged = {"system": "chr", "off_format": {"utility": 1}, "means": {"dur": {"value": 1, "n": 3}}}
    systems = {name: {"method": method, "label": ""} for name, method in SYSTEMS.items()}
    rows = [judged, {**judged, "system": "chr[penalty=1]"}]
    results = {"paper": "tiny", "settings": {"systems": systems}, "rows": rows}
    (tmp_path / "results.json").write_text(json.dumps(results))
    monkeypatch.setattr("sys.argv", ["well_formed.py", str(tmp_path)])
    well_formed.main()
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[:2] for row in rows] == [["tiny", name] for name in COUNTS]
    assert [tuple(map(str, counts)) for counts in COUNTS.values()] == [tuple((*row[2:], "")[:3]) for row in rows]
