"""MIGRES, worked by hand: filter, extract, judge, write queries, and its three rounds."""

from querylect.methods.method import GARBLED

from ..scripted import ASKED, Shelf, doc, form, ids, migres, run

QUERY = ASKED.text
FOUND = {QUERY: [doc("a"), doc("b"), doc("c")], "Ann's dog": [doc("c"), doc("d")], "kennel": [doc("d"), doc("a")]}
KEYS = {"help to answer": "filter", "Write down": "extract", "suffice": "judge", "simple query": "queries"}


class Steps:
    """Answers each step of MIGRES with the next of its own scripted values."""

    def __init__(self, **values):
        self.values, self.prompts = {name: iter(replies) for name, replies in values.items()}, []

    def __call__(self, prompt):
        self.prompts.append(prompt)
        step = next((name for start, name in KEYS.items() if start in prompt.partition("\n")[0]), "answer")
        return next(self.values[step])


def piece(passage, information):
    return {"passage": passage, "information": information}


def test_migres_gathers_information_until_nothing_is_missing():
    model = Steps(
        filter=[form(passages=[1, 3, 7]), form(passages=[1])],
        extract=[
            form(pieces=[piece(2, "Ann has a dog."), piece(9, "Made up."), piece(1, " ")]),
            form(pieces=[piece(1, "It is red.")]),
        ],
        judge=[form(sufficient=False, missing=["its colour"]), form(sufficient=True, missing=["x"])],
        queries=[form(queries=["Ann's dog", QUERY])],
        answer=["Ann"],
    )
    shelf = Shelf(FOUND)
    result, _ = run(migres(k=3), model, wiki=shelf)
    assert shelf.queries == [[QUERY], ["Ann's dog"]]
    assert ids(result) == ["c", "d"], "a was kept and gave nothing; b was filtered out; c was not shown twice"
    assert result.notes["information"] == ["Ann has a dog.", "It is red."]
    assert (result.notes["unfounded"], result.notes["missing"], result.answer) == (2, [], "Ann")
    filtered, extracted, judged, query_prompt, second, _, _, answer_prompt = model.prompts
    assert "[3] text of c" in filtered
    assert "[1] text of a\n[2] text of c" in extracted, "only what the filter left, numbered anew"
    assert "## Information\n- Ann has a dog.\n" in judged
    assert "## Missing\n- its colour" in query_prompt
    assert f"made before\n- {QUERY}" in query_prompt
    assert "[1] text of d\n" in second
    assert "text of c" not in second
    assert "- Ann has a dog.\n- It is red." in answer_prompt
    assert "[1] text of c\n[2] text of d" in answer_prompt


def test_migres_ends_after_its_rounds_or_without_a_new_query():
    def model(query_rounds):
        return Steps(
            filter=[form(passages=[])] * 9,
            judge=[form(sufficient=False, missing=["all"])] * 9,
            queries=[form(queries=queries) for queries in query_rounds],
            answer=["Ann"],
        )

    shelf, steps = Shelf(FOUND), model([["Ann's dog"], ["kennel"], ["more"]])
    result, _ = run(migres(k=3), steps, wiki=shelf)
    assert shelf.queries == [[QUERY], ["Ann's dog"], ["kennel"]]
    assert (result.documents, result.notes["missing"], result.answer) == ((), ["all"], "Ann")
    assert len(steps.prompts) == 8, "filter, judge and queries twice, judge (nothing new is found), answer"
    shelf = Shelf(FOUND)
    run(migres(k=3), model([["Ann's dog"], [QUERY, " "]]), wiki=shelf)
    assert shelf.queries == [[QUERY], ["Ann's dog"]]


def test_migres_records_what_is_wrong_and_answers_from_nothing():
    result, _ = run(migres(), lambda prompt: "no json, 不", wiki=Shelf(FOUND))
    assert (result.failure, result.notes["text"]) == (GARBLED, "no json, 不")
    empty = Steps(judge=[form(sufficient=True, missing=[])], answer=["Ann"])
    result, _ = run(migres(), empty, wiki=Shelf({}))
    assert (result.answer, result.documents, len(empty.prompts)) == ("Ann", (), 2)
    result, _ = run(migres(answers=False), Steps(judge=[form(sufficient=True, missing=[])]), wiki=Shelf({}))
    assert (result.answer, result.failure) == (None, "")
