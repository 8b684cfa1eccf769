"""Atomic writing: whatever happens, the old file or the new one, complete, and nothing beside it."""

import dis
import gc
import itertools
import os
import sys
import warnings

import pytest

from dsmgp._util import atomic_write as module
from dsmgp._util.atomic_write import atomic_write

CONTENT = b"new" * 1000


def interruptible(code):
    """The offsets at which Python may raise KeyboardInterrupt: after a call, and on entering a function."""
    instructions = list(dis.get_instructions(code))
    return {
        after.offset
        for before, after in itertools.pairwise(instructions)
        if before.opname.startswith(("CALL", "RESUME")) or before.opname == "JUMP_BACKWARD"
    }


class Interrupt:
    """Raises KeyboardInterrupt at the n-th point where Python may do so in a module, once."""

    def __init__(self, n, file):
        self.left, self.file, self.points = n, file, {}

    def __call__(self, frame, event, argument):
        code = frame.f_code
        if code.co_filename != self.file:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti in self.points.setdefault(code, interruptible(code)):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self)

    def __exit__(self, *_):
        sys.settrace(self.before)


def interrupted_everywhere(write):
    """Call ``write`` with an interrupt at every point in turn, and count the points."""
    n = 0
    while True:
        n += 1
        try:
            with Interrupt(n, module.__file__):
                write()
        except KeyboardInterrupt:
            yield n
        else:
            return


def test_an_interrupt_leaves_the_old_file_or_the_new_one_and_nothing_open(tmp_path):
    path = tmp_path / "file"
    n_open = len(os.listdir("/proc/self/fd"))
    outcomes = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an unclosed file would be reported
        path.write_bytes(b"old")
        for _ in interrupted_everywhere(lambda: atomic_write(path, lambda f: f.write(CONTENT))):
            assert os.listdir(tmp_path) == ["file"]
            outcomes.append(path.read_bytes())
            path.write_bytes(b"old")
            gc.collect(1)  # what this call left; all of a large process would take minutes
    assert len(outcomes) > 30
    assert set(outcomes) == {b"old", CONTENT}
    # Syncing the folder comes last, when the file is in its place: two points there may leave its number open.
    assert len(os.listdir("/proc/self/fd")) <= n_open + 2


def test_an_error_of_the_writer_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(file):
        file.write(b"half")
        raise RuntimeError("failed")

    with pytest.raises(RuntimeError, match="failed"):
        atomic_write(path, fail)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("name", "message"), [("no/file", "does not exist; create it first"), (".", "is a folder")]
)
def test_errors_say_what_to_do(tmp_path, name, message):
    with pytest.raises(OSError, match=message):
        atomic_write(tmp_path / name, lambda file: None)
