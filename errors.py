"""One flat family of errors, named by the boundary that was crossed.

Every message says what was seen, what was expected and what to do. The command line turns a `UserError` into exit
code 2 (the user can mend it), a `StoppedError` into 75 (going on later will do) and any other `QuerylectError` into
exit code 1 (something outside failed).
"""


class QuerylectError(Exception):
    """Base of every error that this project raises on purpose."""

    exit_code = 1
    told_elsewhere = False
    """Whether another process of the same run tells it to the user."""
    label = "error"
    """What the command line writes before the message."""


class UserError(QuerylectError):
    """Something that the user typed or provided is not usable as it is."""

    exit_code = 2


class ConfigError(UserError):
    """A configuration file or override does not describe a valid run."""


class DataError(UserError):
    """A corpus, a question file or a qrel file is missing, empty or inconsistent."""


class IndexFolderError(UserError):
    """An index folder is missing, incomplete or corrupt, or was built for something else."""


class ModelError(UserError):
    """A model name or folder does not hold a usable model."""


class CheckpointError(UserError):
    """A checkpoint is missing, incomplete or was written by a run with another configuration."""


class RequestError(UserError):
    """The environment service refused a request as wrong (HTTP 4xx): repeating it would not help."""


class TokenError(RequestError):
    """The environment service wants another bearer token (HTTP 401 or 403)."""


class ClusterError(UserError):
    """The cluster did not take a job as it was asked for."""


class HubRefusedError(UserError):
    """The Hugging Face Hub refused a request as wrong (HTTP 4xx): repeating it would not help."""


class HubUnavailableError(QuerylectError):
    """The Hugging Face Hub did not answer, or not in time; the same command goes on later."""


class EnvironmentUnavailableError(QuerylectError):
    """No replica of the environment service answered before the deadline."""


class EngineUnavailableError(QuerylectError):
    """The server that generates did not answer, or answered with an error."""


class DownloadError(QuerylectError):
    """A download did not finish; what has arrived is kept, and the same command goes on from there."""


class StorageError(QuerylectError):
    """The disk did not take what had to be written; nothing half-written was left behind."""


class TrackingError(QuerylectError):
    """Weights & Biases could not be reached, or did not take what was to be uploaded; it stays on disk."""


class StoppedError(QuerylectError):
    """A signal ended a run before its last step; it goes on with --resume. 75 is EX_TEMPFAIL of sysexits.h."""

    exit_code = 75
    label = "stopped"


class CollapseError(QuerylectError):
    """The policy under training collapsed and the guard ended the run."""

    label = "collapsed"


class BaselineError(QuerylectError):
    """An environment does not show what is published for it, so nothing was measured in it."""


class IncompleteError(QuerylectError):
    """Some parts of an evaluation could not be carried out; the others were."""

    label = "incomplete"


def first_line(error: BaseException, most: int | None = None) -> str:
    """What a foreign error says, in one line of at most `most` characters; its type where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:most]
