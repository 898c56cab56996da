"""Untrusted chat templates are bounded: endless loops, endless texts and texts that fill memory end in an error, and
the next template is rendered as usual."""

import os
import signal
import sys
import threading
import time

import pytest
from jinja2 import TemplateError
from querylect.errors import EngineUnavailableError, ModelError
from querylect.rollouts import chat_template
from querylect.rollouts.chat import Chat

from ..raising import refused
from ..tiny import CHATML, tiny_tokenizer

ASKED = [{"role": "user", "content": "my head hurts"}]
TEXT = "<|im_start|>user\nmy head hurts<|im_end|>\n<|im_start|>assistant\n"
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLED = (
    "{% set ns = namespace(text='x') %}{% for n in range(99) %}{% set ns.text = ns.text ~ ns.text %}{% endfor %}"
    "{{ ns.text | length }}"
)
LONG = "{% for n in range(2000) %}{{ 'x' * 1000 }}{% endfor %}"


def render(template):
    return chat_template.render(template, ASKED, {"eos_token": "<|im_end|>"})


@pytest.fixture(scope="module", autouse=True)
def one_child():
    assert render(CHATML) == TEXT
    yield chat_template._renderer._process.pid
    chat_template._renderer.close()


def test_a_template_that_loops_is_stopped_by_the_processor_time_that_it_takes(one_child, monkeypatch):
    monkeypatch.setattr(chat_template, "CPU_SECONDS", 1)
    with refused(ModelError, "1 s of processor time", "chat_template.jinja"):
        render(LOOP)
    assert render(CHATML) == TEXT
    with pytest.raises(ProcessLookupError):
        os.kill(one_child, 0)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages | tojson(indent=1) }} {{ {'a': '<é>'} | tojson }}",
        "{% for n in range(9) %}\n  {% if n == 2 %}{% break %}{% endif %}\n{{ n }}\n{% endfor %}\n{{ eos_token }}",
        "{% generation %}{{ messages[0].content }}{% endgeneration %}{{ add_generation_prompt }}{{ tools }}",
        "{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a }}{{ dict(b=3).b }}{{ undefined }}",
        "{{ strftime_now('%Y') | length }}{{ ' x ' | trim }}{{ messages[0]['reasoning_content'] }}",
    ],
)
def test_a_template_gives_the_text_that_transformers_gives(template):
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [{"role": "user", "content": "<b>é</b>", "reasoning": "why"}]
    (text,), _ = render_jinja_template([messages], chat_template=template, add_generation_prompt=True, eos_token="</s>")
    assert text
    assert chat_template.render(template, messages, {"eos_token": "</s>"}) == text


def test_a_child_that_ended_between_two_templates_is_replaced(one_child):
    assert render(CHATML) == TEXT
    process = chat_template._renderer._process
    process.kill()
    process.wait()
    assert render(CHATML) == TEXT


@pytest.fixture
def no_child():
    chat_template._renderer.close()
    yield
    assert render(CHATML) == TEXT, "the next one starts"


@pytest.mark.usefixtures("no_child")
@pytest.mark.parametrize(("program", "fact"), [("/bin/false", "code 1"), ("/no/such/program", "/no/such/program")])
def test_a_child_that_cannot_start_is_no_fault_of_the_template(program, fact):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chat_template.sys, "executable", program)
        with refused(EngineUnavailableError, fact, "ulimit"):
            render("x" * 2**20)


@pytest.fixture
def with_memory(no_child, tmp_path, monkeypatch):
    """Lets children have so many KiB of address space."""

    def limit(kib):
        limited = tmp_path / "python"
        limited.write_text(f'#!/bin/sh\nulimit -v {kib}\nexec "{sys.executable}" "$@"\n')
        limited.chmod(0o755)
        monkeypatch.setattr(chat_template.sys, "executable", str(limited))

    yield limit
    chat_template._renderer.close()
    monkeypatch.undo()


def test_too_little_memory_for_the_child_is_no_fault_of_the_template(with_memory):
    with_memory(100_000)
    with refused(EngineUnavailableError, "code", "ulimit -v"):
        render(CHATML)


def test_a_template_is_told_the_memory_that_it_had(with_memory):
    with_memory(400_000)
    with refused(ModelError, "MiB of memory") as caught:
        render(DOUBLED)
    assert f"{chat_template.MEMORY_BYTES >> 20} MiB" not in str(caught.value)


def test_a_child_that_ends_while_it_reads_is_an_error_and_not_a_broken_pipe(one_child):
    assert render(CHATML) == TEXT
    process = chat_template._renderer._process
    os.kill(process.pid, signal.SIGSTOP)
    killer = threading.Timer(0.2, process.kill)
    killer.start()
    with refused(ModelError, "code -9"):
        render("x" * 2**20)
    killer.join()
    assert render(CHATML) == TEXT


@pytest.mark.parametrize(
    ("template", "fact"), [(DOUBLED, "MiB of memory"), ("{{ 'x' * 10 ** 11 }}", "MiB of memory"), (LONG, "characters")]
)
def test_a_template_that_fills_memory_or_writes_without_end_is_stopped(template, fact):
    with refused(ModelError, fact):
        render(template)
    assert render(CHATML) == TEXT


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('no') }}", "{{ 1 + 'x' }}", "{% if %}", "{{ ''.__class__.__mro__ }}", "(" * 5]
)
def test_whatever_a_template_raises_is_a_refusal_and_ends_no_child(template):
    process = chat_template._renderer._process
    if template == "(" * 5:
        template = "{{ " + "(" * 5000 + ")" * 5000 + " }}"
    with refused(ModelError, "rewriter.name"):
        render(template)
    assert render(CHATML) == TEXT
    assert chat_template._renderer._process is process


def test_a_long_chat_is_rendered_whole():
    text = "é\n\ud800" * 2**20
    messages = [{"role": "user", "content": text}]
    assert chat_template.render("{{ messages[0].content }}{{ eos_token }}", messages, {"eos_token": "."}) == f"{text}."


def test_an_interrupted_rendering_is_never_the_answer_to_the_next(monkeypatch):
    def interrupt(signum, frame):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGUSR1, interrupt)
    spent = threading.Thread(target=_interrupt_when_busy, args=(chat_template._renderer._process.pid,))
    spent.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            render(LOOP)
    finally:
        spent.join()
        signal.signal(signal.SIGUSR1, previous)
    assert render(CHATML) == TEXT


def _interrupt_when_busy(child):
    def ticks():
        with open(f"/proc/{child}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[11])

    start = ticks()
    while ticks() < start + 5:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGUSR1)


def test_a_forked_process_renders_with_a_child_of_its_own(one_child):
    if (forked := os.fork()) == 0:
        code = 1
        try:
            code = 0 if render(CHATML) == TEXT and chat_template._renderer._process.pid != one_child else 2
            chat_template._renderer.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
    assert render(CHATML) == TEXT


def test_a_policy_is_prompted_through_the_bounded_renderer(monkeypatch):
    tokenizer = tiny_tokenizer("{{ 'x' * 10 ** 11 }}")
    with refused(ModelError):
        Chat(tokenizer, {tokenizer.eos_token_id}).first(ASKED)


def test_a_tokenizer_with_a_chat_of_its_own_writes_it_or_refuses_messages():
    class Own(type(tiny_tokenizer())):
        def apply_chat_template(self, messages, **_):
            if messages[0]["role"] == "system":
                raise TemplateError("no system turn")
            return messages[0]["content"]

    tokenizer = tiny_tokenizer()
    tokenizer.__class__ = Own
    chat = Chat(tokenizer, {tokenizer.eos_token_id})
    assert tokenizer.decode(chat.first(ASKED)) == "my head hurts"
    with refused(ModelError, "no system turn"):
        chat.first([{"role": "system", "content": "Rewrite."}, *ASKED])
