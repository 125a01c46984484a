"""Processes that are forked from one with an open batch or model: one clear line, no hang, and the parent goes on.

Each child ends by SIGALRM if it hangs, which is no status that it may have.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("pydantic", reason="pydantic is not installed")

from own_process import ran

pytestmark = [
    pytest.mark.gl,
    pytest.mark.slow,  # of models alone, tests/engine has the forks
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
]

HEAD = """
import os, signal, sys, threading
from glinfer.errors import ContextError
from glinfer.jobs.local import LocalRunner, LocalSetup
from glinfer.jobs.lines import RequestLine

def status_of(act):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(120)
    act()
    sys.exit(3)

def lines(count):
    body = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 4, "seed": 1}
    return iter([RequestLine(number, f"r{number}", "/v1/completions", body) for number in range(1, count + 1)])

def said(result):
    return result.data["response"]["body"]["choices"]
"""
BATCH = """
setup = LocalSetup([("m", sys.argv[1], {})], {"slots": 2})
with LocalRunner(setup) as runner:
    results = runner.run(lines(4))
    first = said(next(results))

    def use():
        for act in (lambda: list(results), lambda: list(runner.run(lines(1)))):
            try:
                act()
            except ContextError as error:
                print(error)
        try:
            with LocalRunner(setup):
                pass
        except ContextError as error:
            print(error)
        runner.__exit__(None, None, None)

    print([status_of(use), status_of(lambda: None)])
    print([said(each) == first for each in results])
"""
SERVER = """
import glinfer
from glinfer.cli.app import run
model = glinfer.load(sys.argv[1])
expected = model.generate([1, 2, 3], max_tokens=3, temperature=0)

def serve():
    sys.stderr = sys.stdout
    sys.exit(run(["serve", sys.argv[1], "--port", "0"]))

print(status_of(serve))
print(model.generate([1, 2, 3], max_tokens=3, temperature=0) == expected)
"""
STRUCTURE = """
import time
import glinfer
from glinfer.structured import compiler
from glinfer.structured.structure import Structure
model = glinfer.load(sys.argv[1])
compiled, inside, go_on = compiler.Compiler._compiled, threading.Event(), threading.Event()

def slow(self, *given):
    inside.set()
    if threading.current_thread() is not threading.main_thread():
        go_on.wait()
    return compiled(self, *given)

compiler.Compiler._compiled = slow
made = compiler.Compiler(model.require_tokenizer(), model.config.vocab_size)
thread = threading.Thread(target=lambda: made.constraint(Structure("regex", "ab*")))
thread.start()
inside.wait()
print(status_of(lambda: print(type(made.constraint(Structure("regex", "ab*"))).__name__)))
go_on.set()
thread.join()
print(len(made))
"""


def test_a_batch_that_is_forked_says_so_and_the_parents_goes_on(small: Path) -> None:
    *errors, statuses, same = ran(HEAD + BATCH, small)
    assert statuses == "[3, 3]"
    assert same == str([True] * 3)
    assert [error.split(" process ")[0] for error in errors] == ["this"] * 3
    assert all("multiprocessing's 'spawn'" in error for error in errors)


def test_a_server_in_a_process_forked_from_one_with_a_model_ends_in_one_line(small: Path) -> None:
    loading, error, status, same = ran(HEAD + SERVER, small)
    assert loading.startswith("loading small, to be served at http://127.0.0.1:")
    assert error.startswith("glinfer: this process was forked from process ")
    assert (status, same) == ("2", "True")


def test_a_structure_that_a_thread_compiles_meanwhile_holds_up_no_forked_process(small: Path) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    assert ran(HEAD + STRUCTURE, small) == ["Constraint", "3", "1"]
