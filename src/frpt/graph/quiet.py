"""torch.export without its noise: what it logs and warns of before an error, and the thread that it leaves behind.

Called by ``capture``. Loggers, warning filters and threads are afterwards as they were.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import warnings
from collections.abc import Iterator

_FAKE_TENSORS = logging.getLogger("torch._subclasses.fake_tensor")


@contextlib.contextmanager
def quiet_export() -> Iterator[None]:
    """A failing export says nothing but its exception; of one that succeeds the warnings are passed on."""
    with warnings.catch_warnings(record=True) as caught, _without_tracebacks(), _without_monitor():
        warnings.simplefilter("ignore", FutureWarning)  # torch.export's own, about its internals
        warnings.filterwarnings("ignore", ".*_flat_weights")  # a recurrent module's own list of its weights
        yield
    for w in caught:
        warnings.warn_explicit(w.message, w.category, w.filename, w.lineno, source=w.source)


@contextlib.contextmanager
def _without_tracebacks() -> Iterator[None]:
    """Exceptions that torch logs while it runs ops on fake tensors in this thread; they are raised as well."""
    thread = threading.get_ident()

    def no_exception_of_ours(record: logging.LogRecord) -> bool:
        return record.exc_info is None or record.thread != thread

    _FAKE_TENSORS.addFilter(no_exception_of_ours)
    try:
        yield
    finally:
        _FAKE_TENSORS.removeFilter(no_exception_of_ours)


@contextlib.contextmanager
def _without_monitor() -> Iterator[None]:
    """torch.fx makes a hidden tqdm bar, and that a thread that watches bars for ever; one that was there stays."""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)  # torch.fx has imported it where it is installed
    watched = getattr(tqdm, "monitor", None)
    try:
        yield
    finally:
        tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
        monitor = getattr(tqdm, "monitor", None)
        if watched is None and monitor is not None:
            monitor.exit()
            tqdm.monitor = None  # type: ignore[union-attr]
