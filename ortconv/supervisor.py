"""The watcher of a command: it runs the command in a child, and reports the child's death as an error.

The process forks before it has imported anything large. So this module imports little: whatever the parent had in memory, the child
would copy page by page.
"""

from __future__ import annotations

import mmap
import os
import signal
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ortconv.errors import OrtconvError
    from ortconv.watch import Activity

_NOTES = 1 << 16

_INTERRUPTED = 130
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_RETURNED = _NOTES - 1
"""The byte of the notes that is set when the function has returned. Native code may end the child with any exit code."""


def supervised(run: Callable[[], int], died: Callable[[OrtconvError], int]) -> int:
    """Run a function in a child process. Return its exit code, or the result of `died` for the child's death.

    Signals are passed on to the child, which dies with this process. Needs os.fork, and a process without other threads.
    """
    fatal: dict[str, str] = {}
    with mmap.mmap(-1, _NOTES) as notes:
        while True:
            notes[:] = bytes(_NOTES)
            code = _result(run, notes, fatal)
            if code >= 0 and (notes[_RETURNED] or code == _INTERRUPTED):
                return code
            if -code in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(-code, signal.SIG_DFL)
                os.kill(os.getpid(), -code)
            from ortconv.watch import MOST_ATTEMPTS, Activity, Death

            death = Death(code, Activity.decode(notes[:].partition(b"\0")[0]))
            new = set(death.activity.calls) - fatal.keys()
            if not new or len(fatal) >= MOST_ATTEMPTS or death.is_final:
                return died(death.error())
            fatal |= dict.fromkeys(new, death.cause)


def _result(run: Callable[[], int], notes: mmap.mmap, fatal: Mapping[str, str]) -> int:
    """The exit code of a child that runs the function, or minus the signal that killed it."""
    children: list[int] = []
    interrupts: list[int] = []

    def forward(number: int, frame: object) -> None:
        if number == signal.SIGINT:
            interrupts.append(number)
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL if len(interrupts) > 1 else number)

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)  # until there is a child to pass them on to
    before = {}
    for number in _PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, forward)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        for number in before:
            signal.signal(number, _interrupt if number == signal.SIGINT else signal.SIG_DFL)
        _run_child(run, parent, notes, fatal, mask)
    children.append(child)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _, status = os.waitpid(child, 0)
    for number, handler in before.items():
        signal.signal(number, handler)
    return _INTERRUPTED if interrupts else os.waitstatus_to_exitcode(status)


def _run_child(
    run: Callable[[], int], parent: int, notes: mmap.mmap, fatal: Mapping[str, str], mask: Iterable[int]
) -> NoReturn:
    from ortconv import process, watch

    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        watch.die_with(parent)
        watch.begin(partial(_write, notes), fatal)
        code = run()
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    notes[_RETURNED] = 1
    process.end(code)


def _interrupt(number: int, frame: object) -> None:
    """Ctrl-C, once: it may come from the terminal and from the parent."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _write(notes: mmap.mmap, activity: Activity) -> None:
    data = activity.encode()
    notes[: len(data) + 1] = data + b"\0"
