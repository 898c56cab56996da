"""Worker processes that never outlive their parent, however it ended."""

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """End this process, one of `multiprocessing`, as soon as its parent is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
