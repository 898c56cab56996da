"""The exceptions of this package: one flat hierarchy below `QuerylectError`.

Every message says what was found, what was expected and what to do. Exit codes of the command line: 2 for a
`UserError` (the user can fix it), 75 for a `StoppedError` (resume later), 1 for any other `QuerylectError` (something
outside failed).
"""


class QuerylectError(Exception):
    """Base of all errors that this package raises deliberately."""

    exit_code = 1
    already_reported = False
    """Whether another process of the same run reports it to the user."""
    label = "error"
    """Prefix of the message on the command line."""


class UserError(QuerylectError):
    """Invalid user input: an argument, a setting or a file."""

    exit_code = 2


class ConfigError(UserError):
    """A configuration file or override does not describe a valid run."""


class DataError(UserError):
    """A corpus, a question file or a qrel file is missing, empty or inconsistent."""


class IndexFolderError(UserError):
    """An index folder is missing, incomplete or corrupt, or was built for something else."""


class MissingPackageError(UserError):
    """An optional package of this one is not installed; the message names the extra that installs it."""


class ModelError(UserError):
    """A model name or folder does not lead to a usable model."""


class CheckpointError(UserError):
    """A checkpoint is missing, incomplete or was written by a run with another configuration."""


class RequestError(UserError):
    """The environment service refused a request as wrong (HTTP 4xx): repeating it would not help."""


class TokenError(RequestError):
    """The environment service did not accept the bearer token (HTTP 401 or 403)."""


class ClusterError(UserError):
    """The cluster refused a job as it was specified."""


class HubError(QuerylectError):
    """The Hugging Face Hub refused a request, or did not answer; the same command goes on with what is missing."""


class EnvironmentUnavailableError(QuerylectError):
    """No replica of the environment service answered before the deadline."""


class EngineUnavailableError(QuerylectError):
    """What generates text, or a process that it needs, did not start, did not answer or answered with an error."""


class StorageError(QuerylectError):
    """A file could not be read, written or locked; no partial file is left behind."""


class StoppedError(QuerylectError):
    """A signal ended a run before its last step; --resume continues it. 75 is EX_TEMPFAIL of sysexits.h."""

    exit_code = 75
    label = "stopped"


class IncompleteError(QuerylectError):
    """Some parts of an evaluation failed; the others are complete."""

    label = "incomplete"


def in_one_line(error: object, limit: int = 300) -> str:
    """The message of an error on one line, cut to `limit` characters; its type if the message is empty."""
    return " ".join(str(error).split())[:limit] or type(error).__name__
