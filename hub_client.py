"""Makes huggingface_hub fail at once if the Hub cannot be reached, also when transformers calls it.

Without a connection it would ask six times for every file that is not in its cache, 23 seconds in all, since it treats
each failure to connect as transient. Once the Hub is reached, huggingface_hub decides: it reports a 404 at once, and
retries after a server error (5xx), too many requests and a timeout while reading.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2

CONNECT_SECONDS = 2.0
"""How long a connection to the Hub may take."""


def fail_fast_without_hub() -> None:
    """From now on in this process, a request to a Hub that cannot be reached raises OfflineModeIsEnabled.

    huggingface_hub then uses the files in its cache, and does not try again. The `__cause__` is the error of the
    connection. Call it before a model or a file is asked for by its Hub id; a second call does nothing.
    """
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils import _http

    if _http._GLOBAL_CLIENT_FACTORY is _http.default_client_factory:  # one that a caller has set stays
        set_client_factory(_client)


def _client() -> "httpx2.Client":
    """The default client of huggingface_hub, whose failed connections count as offline mode."""
    import httpx2
    from huggingface_hub.errors import OfflineModeIsEnabled
    from huggingface_hub.utils import _http

    client: httpx2.Client = _http.default_client_factory()
    send = client.send

    def send_or_report(request: httpx2.Request, **options: Any) -> httpx2.Response:
        timeout = request.extensions.get("timeout", {})
        seconds = min(CONNECT_SECONDS, timeout.get("connect") or CONNECT_SECONDS)
        request.extensions["timeout"] = {**timeout, "connect": seconds}
        try:
            response: httpx2.Response = send(request, **options)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            reason = str(error) or f"none within {seconds:g} s"
            raise OfflineModeIsEnabled(f"no connection to {request.url.host}: {reason}") from error
        return response

    client.send = send_or_report  # type: ignore[method-assign]
    return client
