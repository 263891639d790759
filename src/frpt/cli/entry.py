"""Where the `frpt` command begins and ends: Ctrl-C at any moment, output that cannot be written, the exit code.

The console script calls ``main``, which loads the commands only once Ctrl-C is in hand: within five seconds it ends
with one line and exit code 130, whatever the process is busy with.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C has ended: 128 and the signal's number."""
_GRACE = 3.5
"""Seconds for what is half-done to be saved and cleaned up, before the process is ended all the same."""
_WORDS = {
    False: "stopped: nothing half-done is left, run again to start over",
    True: "stopped: run again to go on where it was",
}


class Stop:
    """Whether Ctrl-C was pressed. kept: looks whether there is anything that the same command would go on from."""

    def __init__(self) -> None:
        self.asked = False
        self.kept: Callable[[], bool] = nothing


def nothing() -> bool:
    """Of a command that keeps nothing."""
    return False


stop = Stop()


def main() -> None:
    """Run the command line and leave with its exit code."""
    _open_closed_streams()
    _take_ctrl_c()
    code = _run()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError as error:
        code = _unwritten(error)
    if stop.asked and code != 0:
        atexit._run_exitfuncs()  # files and processes of others; taking torch apart takes seconds, and is left out
        _end()
    sys.exit(code)


def _run() -> int:
    try:
        from frpt.cli.main import app

        app()
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except BaseException as error:
        if stop.asked:  # an interruption may come out as any exception
            return INTERRUPTED
        if isinstance(error, OSError):
            return _unwritten(error)
        raise
    return 0


def _unwritten(error: OSError) -> int:
    """A file or a stream that the system refuses, in one line."""
    name = f"{error.filename!r}: " if error.filename else ""
    _say(f"error: {name}{error.strerror or error}")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else it is tried, and complained of, once more
    return 2


def _open_closed_streams() -> None:
    """A null device for each stream that the caller has closed (``>&-``): no file of ours may get its number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def _take_ctrl_c() -> None:
    """Have Ctrl-C noted, raised in the main thread, and watched by another one, which code in C cannot hold up.

    Processes that this one forks get Python's own way back.
    """
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    signal.signal(signal.SIGINT, _interrupted)
    # while Python takes itself apart it would give Ctrl-C back its own way, to end a command that has done its work
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_leave_ctrl_c)
    threading.Thread(target=_watch, args=(ours,), daemon=True).start()
    unraisable, failed = sys.unraisablehook, threading.excepthook
    sys.unraisablehook = lambda what: None if stop.asked else unraisable(what)
    threading.excepthook = lambda what: None if stop.asked else failed(what)


def _leave_ctrl_c() -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupted(number: int, frame: FrameType | None) -> None:
    if stop.asked or _loading(frame):
        _end()
    stop.asked = True
    raise KeyboardInterrupt


def _loading(frame: FrameType | None) -> bool:
    """Whether a module is being loaded: an exception that passes through an extension's C++ there may abort Python."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _watch(pipe: int) -> None:
    while signal.SIGINT not in os.read(pipe, 64):
        pass
    threading.Event().wait(_GRACE)
    _end()


def _end(*_: Any) -> None:
    """Leave at once; processes that load or train go as well."""
    processes = sys.modules.get("multiprocessing")
    children = [] if processes is None else processes.active_children()
    for child in children:
        child.kill()
    for child in children:
        child.join(0.1)  # a moment, as a rule; else it would still be listed after us
    _say(_WORDS[_kept()])
    os._exit(INTERRUPTED)


def _kept() -> bool:
    try:
        return stop.kept()
    except OSError:  # a directory that has gone, or may not be read
        return False


def _say(words: str) -> None:
    """To the standard error stream, past everything that may be broken; a terminal gets its cursor back."""
    shown = "\r\x1b[?25h\x1b[K" if os.isatty(2) else ""
    try:
        os.write(2, f"{shown}{words}\n".encode())
    except OSError:  # nobody is there to read it: the exit code says it
        return
