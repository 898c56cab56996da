"""The exception that aborts a step; a separate module, so that processes.py can import it without the callbacks."""


class AbortStep(BaseException):
    """Aborts the current step. Like KeyboardInterrupt, it is not caught by `except Exception`."""
