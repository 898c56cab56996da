"""The playground: a page without data, which may run its own script alone."""

import re

import httpx
from querylect.envs.server.app import create_app


def test_the_page_may_run_its_own_script_and_load_nothing(environment, run_app):
    with run_app(create_app(environment, token="s3cret")) as url:
        answer = httpx.get(url)
        assert httpx.get(f"{url}/v1/questions?split=test").status_code == 401
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["script-src"].startswith("'sha256-")
    assert not re.search(r"""https?://|(src|href)="(?!data:,)""", answer.text), "the page loads something"
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|localStorage|cookie", answer.text)
