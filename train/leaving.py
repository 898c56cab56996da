"""Giving a step up: apart from the callbacks that decide it, so that who waits for others can know of it too."""


class LeaveNow(BaseException):
    """The step under way is given up. Like KeyboardInterrupt it passes every `except Exception`."""
