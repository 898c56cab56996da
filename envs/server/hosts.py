"""Which requests a service without a token answers: those of programs on this machine, and of its own page.

It listens on a loopback address, but a browser on this machine carries other people's pages. One of them can have its
own host name resolved to 127.0.0.1 and read answers as its own (DNS rebinding): the Host header shows that name. One
of another origin can send requests without reading the answers: Sec-Fetch-Site or Origin show that. A service with a
token needs neither check, since no other page can send the token.
"""

import ipaddress
import re
from contextlib import suppress

from starlette.datastructures import Headers

_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:@/?#\s]+))(?::\d*)?")
"""The Host header of RFC 9110 (7.2), port included."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host. A name other than localhost counts as reachable."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() == "localhost"


def names_loopback(headers: Headers) -> bool:
    """Whether the Host header is there, once, and names a loopback host."""
    hosts = headers.getlist("host")
    parts = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    return parts is not None and is_loopback(parts["v6"] or parts["name"])


def is_cross_origin(headers: Headers) -> bool:
    """Whether a browser says that a page of another origin sent the request; a program says nothing."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2] != headers.get("host")
