"""The playground: a page without data, which may run its own script alone."""

import re

import httpx
import pytest
from querylect.envs.server.app import create_app

pytestmark = pytest.mark.server


def test_the_page_may_run_its_own_script_and_load_nothing_else(environment, run_app):
    with run_app(create_app(environment, token="s3cret")) as url:
        page, script = httpx.get(url), httpx.get(f"{url}/page.js")
        assert httpx.get(f"{url}/v1/questions?split=test").status_code == 401
    assert (page.status_code, script.status_code) == (200, 200)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page.text)
    assert {"default-src 'none'", "script-src 'self'", "connect-src 'self'"} <= set(re.split(r";\s*", policy))
    assert not re.search(r"""https?://|(src|href)="(?!data:,|page\.js)|<script>""", page.text), (
        "the page loads something"
    )
    unsafe = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|localStorage|cookie"
    assert not re.search(unsafe, page.text + script.text)
