"""Where a service answers, and what it asks for."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """A service that was started for a run, with the token that it was started with."""

    url: str
    token: str | None = field(default=None, repr=False)
    """None: the token of `client.token_env`."""

    @property
    def headers(self) -> dict[str, str]:
        """What every request to it carries."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}
