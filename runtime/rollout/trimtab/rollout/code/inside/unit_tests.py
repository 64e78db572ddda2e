"""Runs unit tests in this process and the program in another, which cannot look into this one.

The tests know what is expected, and this process the secret that signs the verdict. So the program gets neither: it is
started anew from its text, is called over a pipe with plain values, and answers with plain values, which are compared
here. This process is not dumpable: processes of the same user can neither trace it nor open its memory or its pipes.
What the program writes to our output, if it finds a way, is not signed; and a verdict that it sees cannot be turned
into another one.
"""

import ast
import asyncio
import ctypes
import hashlib
import hmac
import importlib
import inspect
import json
import os
import select
import signal
import subprocess
import sys
import time
import types
import unittest
from pathlib import Path
from typing import Any

_PR_SET_DUMPABLE = 4
_MOST_BYTES = 1 << 22
_TEXT = 500
_SERVE = "serve"
_TESTS = "tests"

# How values cross: those of plain types are copied, others stay where they are and are known by a number.


def packed(value: Any, keep: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    for kind, mark in ((list, "l"), (tuple, "t"), (set, "s"), (frozenset, "f")):
        if isinstance(value, kind):
            return {mark: [packed(one, keep) for one in value]}
    if isinstance(value, dict):
        return {"d": [[packed(key, keep), packed(one, keep)] for key, one in value.items()]}
    if isinstance(value, bytes):
        return {"b": value.hex()}
    if isinstance(value, complex):
        return {"c": [value.real, value.imag]}
    return {"r": keep(value)}


def unpacked(given: Any, kept: Any) -> Any:
    if not isinstance(given, dict):
        return given
    ((mark, inner),) = given.items()
    if mark == "r":
        return kept(inner)
    if mark == "b":
        return bytes.fromhex(inner)
    if mark == "c":
        return complex(*inner)
    if mark == "d":
        return {unpacked(key, kept): unpacked(one, kept) for key, one in inner}
    return {"l": list, "t": tuple, "s": set, "f": frozenset}[mark](unpacked(one, kept) for one in inner)


# The program's side.

OPERATIONS: dict[str, Any] = {
    "call": lambda it, *arguments, **named: it(*arguments, **named),
    "get": getattr,
    "len": len,
    "item": lambda it, key: it[key],
    "list": list,
    "contains": lambda it, one: one in it,
    "str": str,
}


def reachable(process: int) -> bool:
    """Whether a program could look into the tests, or into what was told to the sandbox."""
    if process == os.getpid():
        return False
    try:
        os.close(os.open(f"/proc/{process}/mem", os.O_RDONLY))
    except OSError:
        try:
            Path(f"/proc/{process}/fd/0").readlink()
        except OSError:
            return False
    return True


def serve(reads: int, writes: int) -> None:
    """What is reachable is told before the program is there, so that the answer is ours."""
    asked = os.fdopen(reads, "r", encoding="utf-8")
    answers = os.fdopen(writes, "w", encoding="utf-8")

    def answer(document: dict[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    answer({"reachable": any(reachable(int(one.name)) for one in Path("/proc").iterdir() if one.name.isdecimal())})
    kept: list[Any] = []

    def keep(value: Any) -> int:
        kept.append(value)
        return len(kept) - 1

    names: dict[str, Any] = {"__name__": "solution"}
    try:
        exec(compile(json.loads(asked.readline())["code"], "solution.py", "exec"), names)  # noqa: S102 - in a sandbox
    except BaseException as error:  # noqa: BLE001 - whatever it is: the program does not even begin
        answer({"raised": [type(error).__name__, str(error)[:_TEXT]]})
        return
    shown = {name: value for name, value in names.items() if not name.startswith("__")}
    modules = {name: value.__name__ for name, value in shown.items() if isinstance(value, types.ModuleType)}
    values = {name: packed(value, keep) for name, value in shown.items() if name not in modules}
    answer({"names": values, "modules": modules})
    for line in asked:
        request = json.loads(line)
        target, arguments, named = (unpacked(request[part], kept.__getitem__) for part in ("on", "with", "named"))
        try:
            value = packed(OPERATIONS[request["do"]](target, *arguments, **named), keep)
            answer({"value": value, "with": packed(arguments, keep)})
        except BaseException as error:  # noqa: BLE001 - also an exit: it is what the call came to
            answer({"raised": [type(error).__name__, str(error)[:_TEXT]]})


# The tests' side.


class ProgramGone(BaseException):
    """It ended, hung or answered nonsense. No Exception: tests catch those."""


class ProgramLate(ProgramGone):
    """It hung."""


class ProgramRaised(Exception):
    """Of a kind that is not Python's own."""


class Program:
    """The process that has it, for tests up to the one that it does not outlive."""

    def __init__(self, code: str, *, seconds: float, first: bool) -> None:
        """Of another than the first, what is reachable may be what the program left."""
        self.seconds = seconds
        self.ends_at = time.monotonic() + seconds
        down, up = os.pipe(), os.pipe()
        command = [sys.executable, "-I", "-B", str(Path(__file__).resolve()), _SERVE, str(down[0]), str(up[1])]
        nowhere = subprocess.DEVNULL
        self.process = subprocess.Popen(
            command, stdin=nowhere, stdout=nowhere, stderr=nowhere, pass_fds=(down[0], up[1]), env={}
        )
        os.close(down[0])
        os.close(up[1])
        self.writes, self.reads = down[1], up[0]
        self.waiting = b""
        self.unprotected = bool(self.answer().get("reachable", True)) and first
        if self.unprotected:
            return
        self.tell({"code": code})
        began = self.answer()
        if "raised" in began:
            raise ProgramGone(": ".join(map(str, began["raised"])))
        # It may say what it likes, and must not take the place of what Python itself looks up.
        told = {str(name): value for name, value in began["names"].items() if not str(name).startswith("__")}
        self.names = {name: unpacked(value, self.remote) for name, value in told.items()}
        self.modules = {str(name): str(module) for name, module in began["modules"].items()}

    def remote(self, number: int) -> "Remote":
        return Remote(self, number)

    def ask(self, do: str, on: "Remote", *arguments: Any, **named: Any) -> Any:
        request = {
            "do": do,
            "on": packed(on, _number),
            "with": packed(list(arguments), _number),
            "named": packed(named, _number),
        }
        self.tell(request)
        answer = self.answer()
        if "raised" in answer:
            name, text = answer["raised"]
            kind = getattr(__import__("builtins"), str(name), None)
            if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, UnicodeError):
                raise kind(text)
            raise ProgramRaised(f"{name}: {text}")
        try:
            after = unpacked(answer["with"], self.remote)
            value = unpacked(answer["value"], self.remote)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ProgramGone(f"an answer that cannot be read: {error}") from None
        for before, now in zip(arguments, after, strict=False):
            _change(before, now)
        return value

    def tell(self, document: dict[str, Any]) -> None:
        waiting = (json.dumps(document) + "\n").encode()
        os.set_blocking(self.writes, False)
        while waiting:
            _, ready, _ = select.select([], [self.writes], [], max(0.0, self.ends_at - time.monotonic()))
            if not ready:
                raise ProgramLate(f"it took over {self.seconds:g} s")
            try:
                waiting = waiting[os.write(self.writes, waiting) :]
            except BrokenPipeError:
                raise ProgramGone("it ended") from None

    def answer(self) -> dict[str, Any]:
        while b"\n" not in self.waiting:
            ready, _, _ = select.select([self.reads], [], [], max(0.0, self.ends_at - time.monotonic()))
            if not ready:
                raise ProgramLate(f"it took over {self.seconds:g} s")
            more = os.read(self.reads, 1 << 16)
            self.waiting += more
            if not more:
                raise ProgramGone("it ended")
            if len(self.waiting) > _MOST_BYTES:
                raise ProgramGone("an answer that is too long")
        line, self.waiting = self.waiting.split(b"\n", 1)
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise ProgramGone("an answer that is none")
        return document

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.reads)
        os.close(self.writes)
        # What tests still have of it asks nobody, and not the next one on the same numbers.
        self.reads = self.writes = -1


class Remote:
    """A function, a class or an object of the program's. It equals nothing but itself: whether something is right is
    never the program's to say.
    """

    def __init__(self, program: Program, number: int) -> None:
        self.__dict__["_program"] = program
        self.__dict__["_number"] = number

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._program.ask("call", self, *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._program.ask("get", self, name)

    def __len__(self) -> int:
        return int(self._program.ask("len", self))

    def __getitem__(self, key: Any) -> Any:
        return self._program.ask("item", self, key)

    def __iter__(self) -> Any:
        return iter(self._program.ask("list", self))

    def __contains__(self, one: Any) -> bool:
        return self._program.ask("contains", self, one) is True

    def __str__(self) -> str:
        return str(self._program.ask("str", self))

    def __bool__(self) -> bool:
        return True


def _number(value: Any) -> int:
    if not isinstance(value, Remote):
        raise TypeError(f"a {type(value).__name__} cannot be passed to the program: tests pass plain values")
    return int(value._number)


def _change(before: Any, now: Any) -> None:
    """What a call did to an argument, which was a copy there."""
    if isinstance(before, list) and isinstance(now, list):
        before[:] = now
    elif isinstance(before, dict | set) and type(before) is type(now) and before != now:
        before.clear()
        before.update(now)


class Run:
    """All tests, each counted. Names of Python's own stay Python's: a program that has a `sorted` of its own would be
    shown what it is expected to return.
    """

    def __init__(self, job: dict[str, Any], key: bytes) -> None:
        self.key = key
        self.code = job["code"]
        self.seconds = job["seconds"]
        self.program: Program | None = None
        self.begun = False
        self.lines: list[str] = []
        self.passed = 0
        self.total = 0

    def source(self, source: str, module: types.CodeType) -> None:
        self.lines = source.splitlines()
        names: dict[str, Any] = {"__name__": _TESTS}

        def begin() -> None:
            exec(module, self.fill(names))  # noqa: S102 - in a sandbox

        if not self.one(_TESTS, begin, counts=False):
            return
        functions = [
            (name, value)
            for name, value in names.items()
            if name.startswith("test") and isinstance(value, types.FunctionType)
        ]
        suites = [
            (f"{name}.{method}", value(method))
            for name, value in names.items()
            if isinstance(value, type) and issubclass(value, unittest.TestCase)
            for method in unittest.defaultTestLoader.getTestCaseNames(value)
        ]
        for name, function in functions:
            # One that takes arguments fails: there is nobody to give them.
            awaited = inspect.iscoroutinefunction(function)
            self.one(name, (lambda test=function: asyncio.run(test())) if awaited else function, names=names)
        for name, case in suites:
            self.one(name, case.debug, names=names)
        if not functions and not suites:
            self.total += 1
            self.passed += 1

    def one(self, name: str, test: Any, *, names: dict[str, Any] | None = None, counts: bool = True) -> bool:
        """Whether it passed. One that only begins the others counts when it fails."""
        try:
            if names is not None and (self.program is None):
                self.fill(names)
            if self.program is not None:
                self.program.ends_at = time.monotonic() + self.seconds
            test()
        except BaseException as error:  # noqa: BLE001 - whatever the test raises: it did not pass
            told = {"failed": name, "why": _why(error, self.lines), "late": isinstance(error, ProgramLate)}
            sys.stdout.write(json.dumps(told) + "\n")
            self.total += 1
            if isinstance(error, ProgramGone) and self.program is not None:
                self.program.end()
                self.program = None
            return False
        self.total += counts
        self.passed += counts
        return True

    def fill(self, names: dict[str, Any]) -> dict[str, Any]:
        if self.program is None:
            self.program = Program(self.code, seconds=self.seconds, first=not self.begun)
            self.begun = True
            if self.program.unprotected:
                document = {"unprotected": True, "signed": _signed(self.key, "unprotected")}
                sys.stdout.write(json.dumps(document) + "\n")
                sys.stdout.flush()
                os._exit(1)
        module = types.ModuleType("solution")
        vars(module).update(self.program.names)
        sys.modules["solution"] = module
        ours = vars(__import__("builtins"))
        for name, value in self.program.names.items():
            # Those that the tests define themselves stay theirs, also in another process of the program's.
            if name not in ours and (name not in names or isinstance(names[name], Remote)):
                names[name] = value
        for name, path in self.program.modules.items():
            if name not in names and path.split(".")[0] in sys.stdlib_module_names:
                names[name] = importlib.import_module(path)
        return names


def check_asserts(tree: ast.Module) -> None:
    """A module that only defines things would pass whatever the program is."""
    passive = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign)
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef) and statement.bases:
            return
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and statement.name.startswith("test"):
            return
        if not isinstance(statement, passive) and not isinstance(getattr(statement, "value", None), ast.Constant):
            return
    raise ValueError("they assert nothing: write assertions, functions test_... or classes of unittest")


def _why(error: BaseException, lines: list[str]) -> str:
    """With the line of the test that it happened in."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    trace, number = error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _TESTS:
            number = trace.tb_lineno
        trace = trace.tb_next
    line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    return f"{text[:_TEXT]} in `{line[:_TEXT]}`" if line else text[:_TEXT]


def main() -> None:
    if sys.argv[1:2] == [_SERVE]:
        serve(int(sys.argv[2]), int(sys.argv[3]))
        return
    job = json.loads(sys.stdin.buffer.read())
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        sys.stdout.write(json.dumps({"unprotected": True}) + "\n")
        return
    sys.stdout.write('{"began": true}\n')
    sys.stdout.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    key = bytes.fromhex(job.pop("secret"))
    try:
        trees = [ast.parse(source, _TESTS) for source in job["tests"]]
        for tree in trees:
            check_asserts(tree)
        modules = [compile(tree, _TESTS, "exec") for tree in trees]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = f"{type(error).__name__}: {error}"[:_TEXT]
        sys.stdout.write(json.dumps({"broken": why, "signed": _signed(key, f"broken {why}")}) + "\n")
        return
    run = Run(job, key)
    for source, module in zip(job["tests"], modules, strict=True):
        run.source(source, module)
    if run.program is not None:
        run.program.end()
    told = f"{run.passed}/{run.total}"
    sys.stdout.write("\n" + json.dumps({"passed": run.passed, "total": run.total, "signed": _signed(key, told)}) + "\n")
    sys.stdout.flush()
    os._exit(0)


def _signed(key: bytes, told: str) -> str:
    return hmac.new(key, told.encode(), hashlib.sha256).hexdigest()


if __name__ == "__main__":
    main()
