"""What users hold: every name in `stepwell.__all__`, and nothing public by accident."""

from __future__ import annotations

import ast
import collections.abc
import inspect
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import stepwell
from stepwell import errors
from stepwell.engine.answer import Answer
from stepwell.engine.pushed import Rows
from stepwell.model import Transaction

METHODS = {
    "Pipeline": {
        *("push", "transaction", "run", "stop", "stopping", "deliver", "close"),
        *(
            "query",
            "table",
            "to_spark",
            "tail",
            "explain",
            "status",
            "profile",
            "transaction_number",
        ),
        *("flush", "compact", "clone", "restore"),
        *("checkpoint", "checkpoints", "delete_checkpoint"),
    },
    "Snapshot": {"transaction", "query", "table", "to_spark", "close"},
    "Transaction": {"push", "take", "commit", "abort"},
    "Answer": {
        *("transaction", "rows", "num_rows", "column_names", "schema", "column"),
        *("to_pylist", "to_pandas"),
    },
    "Client": {
        *("ready", "status", "profile", "query", "explain", "push", "transaction"),
        *("checkpoint", "compact", "tail", "stop", "close"),
    },
    "Metrics": {"count", "gauge", "observe"},
    "Profile": {
        *("transactions", "memory", "seconds", "phases", "sinks", "views", "summary", "to_json"),
    },
}
CLASSES = [*METHODS, "Receipt", "Status"]


def test_every_public_name_is_there() -> None:
    """A name in `__all__` that cannot be imported breaks `from stepwell import *`."""
    for name in stepwell.__all__:
        assert getattr(stepwell, name) is not None
    assert set(stepwell.__all__) <= set(dir(stepwell))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = stepwell.nothing


def test_every_error_is_public() -> None:
    """An error that a caller can meet, and cannot catch by name, is caught too broadly."""
    made = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.StepwellError)
    }
    assert made <= set(stepwell.__all__)


@pytest.mark.parametrize("name", METHODS)
def test_no_method_is_public_by_accident(name: str) -> None:
    """What is public has to be kept. A method for our own use begins with an underscore."""
    made = getattr(stepwell, name)
    found = {
        attribute
        for base in made.__mro__
        if base.__module__.startswith("stepwell")
        for attribute, value in vars(base).items()
        if not attribute.startswith("_")
        and (callable(value) or isinstance(value, property) or inspect.isdatadescriptor(value))
    }
    assert found == METHODS[name]


@pytest.mark.parametrize("name", ["open", "read", "connect", *CLASSES])
def test_no_public_signature_says_any(name: str) -> None:
    """`Any` switches the user's type checker off without saying so."""
    public = getattr(stepwell, name)
    checked = 0
    for where, hints in annotations_of(public):
        for parameter, hint in hints.items():
            assert not mentions_any(hint), f"{name}.{where}: {parameter} is {hint}"
            checked += 1
    assert checked


def test_a_signature_that_says_any_is_found() -> None:
    """A walk that finds nothing may just as well be blind."""
    assert mentions_any(Any)
    assert mentions_any(typing.get_type_hints(_example)["a"])
    assert mentions_any(typing.get_type_hints(_example)["b"])
    assert not mentions_any(Rows)


def _example(a: dict[str, list[Any] | None], b: collections.abc.Callable[[Any], int]) -> None: ...


def annotations_of(public: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The annotations of a function, or of a class and its public methods, resolved."""
    if inspect.isfunction(public):
        yield "()", typing.get_type_hints(public, localns=names_for_types(public))
        return
    for base in public.__mro__:
        if not base.__module__.startswith("stepwell"):
            continue
        yield base.__name__, typing.get_type_hints(base, localns=names_for_types(base))
        for name, value in vars(base).items():
            function = value.fget if isinstance(value, property) else value
            if inspect.isfunction(function) and not name.startswith("_"):
                yield name, typing.get_type_hints(function, localns=names_for_types(base))


def names_for_types(made: Any) -> dict[str, Any]:
    """What a module imports for type checkers only."""
    source = inspect.getsource(sys.modules[made.__module__])
    found: dict[str, Any] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            exec("\n".join(ast.unparse(item) for item in node.body), found)
    return found


def mentions_any(hint: Any) -> bool:
    if hint is Any:
        return True
    inner = typing.get_args(hint)
    return any(
        mentions_any(part)
        for item in inner
        for part in (item if isinstance(item, list) else [item])
    )


def test_importing_and_listing_the_package_loads_nothing_heavy() -> None:
    """The command line, and code that only catches an error, must not wait for Arrow or Spark."""
    code = (
        "import sys, stepwell\n"
        "dir(stepwell), stepwell.__all__, stepwell.FencedError\n"
        "heavy = {'pyarrow', 'pyspark', 'numpy', 'yaml', 'sqlglot', 'typer'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


def test_an_answer_is_an_arrow_table_that_knows_its_transaction() -> None:
    """Whatever reads Arrow reads an answer, without knowing Stepwell."""
    rows = pa.table({"id": [1, 2], "name": ["a", None]})
    answer = Answer(Transaction(7), rows)
    assert answer.transaction == 7
    assert (answer.num_rows, len(answer), answer.column_names) == (2, 2, ["id", "name"])
    assert answer.schema == rows.schema
    assert answer.column("id").to_pylist() == answer.column(0).to_pylist() == [1, 2]
    assert answer.to_pylist() == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
    assert answer.to_pandas()["id"].tolist() == [1, 2]
    assert pa.table(answer).equals(rows)
    assert Answer(Transaction(1), rows.slice(0, 0)), "an answer without rows is an answer"


def test_the_version_is_the_packages() -> None:
    """`hatch` reads it from the source, where it must be a plain text."""
    text = Path(stepwell.__file__).read_text(encoding="utf-8")
    assert f'__version__ = "{stepwell.__version__}"' in text
