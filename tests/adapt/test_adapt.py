"""`querylect adapt`: from a folder of documents to an export, with a served writer and a tiny policy, and resumed."""

import json

import pytest
from querylect.cli import main
from querylect.data.beir import load_beir, save_beir
from querylect.data.types import Dataset, Document, Question, Split
from querylect.inference.rewriter import Rewriter

from ..chat_server import ChatServer, last_user, serving
from ..forked import Forked
from ..handbook import Author, save_handbook, short_run
from ..waiting import until

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.usefixtures("service_in_thread")]
STAGES = ["documents", "index", "questions", "training", "evaluation", "export"]


@pytest.fixture(scope="module")
def author(run_app):
    """A served model that writes good questions: its URL and the chat server, which records the requests."""
    model = Author()
    server = ChatServer(answer=lambda body: model.reply(last_user(body)))
    with serving(run_app, server) as url:
        yield url, server


@pytest.fixture(scope="module")
def arguments(tmp_path_factory, author, speaking):
    """The arguments of the command without --to."""
    folder = tmp_path_factory.mktemp("adapt")
    settings = [*short_run(speaking, folder), "train.steps=3", "train.validate_steps=3"]
    options = ["--words", "60", "--overlap", "0", "synthetic.count=60", "--llm", "author", "--endpoint", author[0]]
    return [str(save_handbook(folder / "docs")), *settings, *options]


def command(arguments, folder):
    return ["adapt", *arguments, "--to", str(folder)]


@pytest.fixture(scope="module")
def adapted(tmp_path_factory, arguments, service_in_thread):
    """The output folder of one complete call."""
    folder = tmp_path_factory.mktemp("adapted") / "handbook"
    with pytest.raises(SystemExit) as ended:
        main(command(arguments, folder))
    assert ended.value.code in (0, None)
    return folder


def test_documents_become_a_policy_a_report_and_an_export(adapted):
    assert (adapted / "runs" / "handbook" / "report.html").read_text().startswith("<!")
    results = json.loads((adapted / "runs" / "handbook" / "results.json").read_text())
    text = json.dumps(results)
    assert all(system in text for system in ("raw", "first_titles", "rm3", "weighted_words", "hyde"))
    dataset = load_beir(adapted / "dataset")
    assert set(dataset.splits) == {"train", "validation", "test"}
    assert dataset.name == "docs", "the name of the documents"
    assert len(dataset.corpus) == 20
    assert (adapted / "exported" / "README.md").is_file()
    searched = [f"env.index={adapted / 'index'}", f"env.dataset.path={adapted / 'dataset'}"]
    rewriter = Rewriter.from_pretrained(str(adapted / "exported"), settings=searched)
    assert rewriter.rewrite("what about my bike there?").text.startswith("what about my bike there?")


def test_a_second_call_does_nothing_and_prints_the_same_paths(adapted, arguments, author, capsys):
    requests, metrics = len(author[1].bodies), (adapted / "runs" / "handbook" / "metrics.jsonl").read_bytes()
    with pytest.raises(SystemExit) as ended:
        main(command(arguments, adapted))
    assert ended.value.code in (0, None)
    output = capsys.readouterr()
    assert output.out.split() == [str(adapted / "runs" / "handbook" / "report.html"), str(adapted / "exported")]
    assert [line.split()[1].rstrip(":") for line in output.err.splitlines() if line.startswith("[")] == STAGES
    assert output.err.count("is there") == len(STAGES)
    assert len(author[1].bodies) == requests
    assert (adapted / "runs" / "handbook" / "metrics.jsonl").read_bytes() == metrics


def test_a_finished_stage_is_not_taken_for_one_with_other_settings(adapted, arguments, tmp_path, capsys):
    def refused_for(changed, folder=adapted):
        with pytest.raises(SystemExit) as ended:
            main(command(changed, folder))
        assert ended.value.code == 2
        return capsys.readouterr().err

    users = tmp_path / "users"
    test = Split([Question("u", "?")], {"u": {"d": 1}})
    save_beir(Dataset("users", (Document("d", "", "x"),), {"test": test}), users)
    handbook = str(save_handbook(tmp_path / "docs"))
    for changed, stage, name in (
        ([*arguments, "--words", "100"], "documents", "words"),
        ([handbook, *arguments[1:]], "documents", "source"),
        ([*arguments, "synthetic.count=90"], "questions", "synthetic.count"),
        ([*arguments, "--test", str(users)], "questions", "test"),
        ([*arguments, "train.steps=60"], "training", "train.steps"),
    ):
        stderr = refused_for(changed)
        assert repr(stage) in stderr
        assert name in stderr
    (tmp_path / "made" / "corpus").mkdir(parents=True)
    assert str(tmp_path / "made" / "corpus") in refused_for(arguments, tmp_path / "made")
    assert "would be read as documents" in refused_for(arguments, f"{arguments[0]}/adapted")
    assert "reward.kind=metric" in refused_for([*arguments, "reward.kind=answer"], tmp_path / "new")


def test_a_dry_run_prints_the_stages_and_the_config(arguments, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([*command(arguments, tmp_path / "new"), "--dry-run"])
    stdout = capsys.readouterr().out
    assert [line.split()[2].rstrip(":") for line in stdout.splitlines() if line.startswith("# ")] == STAGES
    assert f"path: {tmp_path / 'new' / 'dataset'}" in stdout
    assert "count: 60" in stdout
    assert not (tmp_path / "new").exists()


def test_a_call_killed_while_asking_and_while_training_goes_on(adapted, arguments, author, tmp_path):
    """Killed twice without warning, with its service in a child process; the third call ends with the questions and
    the steps of an undisturbed one."""
    server, folder = author[1], tmp_path / "handbook"
    run = folder / "runs" / "handbook"
    requests = len(server.bodies)
    moments = [
        lambda: len(server.bodies) - requests > 80,
        lambda: (run / "metrics.jsonl").is_file() and (run / "checkpoints" / "checkpoint-1").is_dir(),
    ]
    for number, reached in enumerate(moments):
        process = Forked(command(arguments, folder), tmp_path / f"out{number}", tmp_path / f"err{number}")
        until(lambda p=process, r=reached: r() or p.poll() is not None, (tmp_path / f"err{number}").read_text)
        assert process.poll() is None, (tmp_path / f"err{number}").read_text()
        process.kill()
        process.wait(60)
    assert not (run / "final").exists()
    with pytest.raises(SystemExit) as ended:
        main(command(arguments, folder))
    assert ended.value.code in (0, None)
    for name in ("dataset/queries.jsonl", "dataset/qrels/train.tsv"):
        assert (folder / name).read_bytes() == (adapted / name).read_bytes()
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3]
    assert (folder / "exported" / "README.md").is_file()
