"""The schemas of Avro values in Kafka records: finding them, and recording them for replay.

With a registry, a value begins with a zero byte and four bytes of the id of the schema that it was
written with. Without one, it is the bare encoding, and all values have the given schema.

The journal's reference holds the text of each schema that decoded a step (`to_json`), because a
registry may be gone at replay, and a given schema may have changed. So replay asks no registry: an
id that the reference does not have was unknown to the registry then, and is so again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stepwell.connectors.avro import AvroSchema, BadSchemaError, Texts, read_schema
from stepwell.connectors.avro_registry import Registry, RegistryAddress, absent
from stepwell.connectors.options import Options
from stepwell.connectors.values import Unfit
from stepwell.errors import ConfigError, CorruptError, ensure
from stepwell.store.sealed import Json

_HEADER_BYTES = 5
_COMPILED_MAX = 1_000


@dataclass(frozen=True, slots=True)
class AvroLayout:
    """How the values of a source are written."""

    registry: RegistryAddress | None = None
    schema: Texts | None = None
    """With a registry, what values are resolved to; otherwise, what they were written with."""
    keys: bool = False
    """Whether the keys of records are Avro, too."""


def given_schema(options: Options) -> Texts | None:
    """The option `schema`: a mapping, JSON, or the path of a file that holds JSON."""
    given = options.text_or_mapping("schema")
    if given is None:
        return None
    if isinstance(given, Mapping):
        text = json.dumps(given)
    elif given.lstrip().startswith("{"):
        text = given
    else:
        path = Path(options.place("schema"))
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{options.what}: option schema: cannot read {path}: {error}",
                hint="give the path of a file that holds the schema as JSON, or the schema itself",
            ) from error
    try:
        # In one form, however it is indented: it is part of every entry of the journal.
        text = json.dumps(json.loads(text), separators=(",", ":"))
        read_schema((text,))
    except (ValueError, RecursionError, BadSchemaError) as error:
        raise ConfigError(f"{options.what}: option schema cannot be used: {error}") from None
    return (text,)


class AvroSchemas:
    """Finds the schemas of a source, and keeps them parsed."""

    def __init__(self, what: str, layout: AvroLayout) -> None:
        self._layout = layout
        self._registry = None if layout.registry is None else Registry(what, layout.registry)
        self._compiled: dict[Texts, AvroSchema | BadSchemaError] = {}

    def step(self) -> StepSchemas:
        """The schemas of a new step."""
        layout = self._layout
        if self._registry is None:
            ensure(layout.schema is not None, "without a registry, a schema is given")
            return StepSchemas(self._compile, _nothing, {None: layout.schema or ()}, None)
        return StepSchemas(
            self._compile, self._registry.schema, {}, layout.schema, keys=layout.keys
        )

    def replayed(self, fields: Json) -> StepSchemas:
        """The schemas of a step that is read again."""
        try:
            texts = {int(id) if id else None: tuple(t) for id, t in fields["schemas"].items()}
            refused = {int(id): str(reason) for id, reason in fields["refused"].items()}
            reader = None if fields["reader"] is None else tuple(fields["reader"])
            keys = bool(fields["keys"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptError(
                "the Avro schemas of a step", f"cannot be read: {error!r}"
            ) from error

        def find(id: int) -> Texts:
            raise Unfit(refused.get(id) or absent(id))

        try:
            return StepSchemas(self._compile, find, texts, reader, keys=keys)
        except BadSchemaError as error:
            raise CorruptError("the Avro schemas of a step", str(error)) from error

    def _compile(self, texts: Texts) -> AvroSchema:
        made = self._compiled.get(texts)
        if made is None:
            if len(self._compiled) >= _COMPILED_MAX:
                self._compiled.clear()
            try:
                made = read_schema(texts)
            except BadSchemaError as error:
                made = error
            self._compiled[texts] = made
        if isinstance(made, BadSchemaError):
            raise BadSchemaError(str(made))
        return made


def _nothing(id: int) -> Texts:
    raise Unfit(absent(id))


class StepSchemas:
    """The schemas with which the records of one step are decoded."""

    def __init__(
        self,
        compile: Callable[[Texts], AvroSchema],
        find: Callable[[int], Texts],
        texts: dict[int | None, Texts],
        reader: Texts | None,
        *,
        keys: bool = False,
    ) -> None:
        """`find` gives the schema with an id; `keys`: that keys are Avro, too."""
        self.keys = keys
        self._compile = compile
        self._find = find
        self._texts = texts
        """Those that were found; that of all values, without a registry, has no id."""
        self._framed = None not in texts
        self._refused: dict[int, str] = {}
        self._reader_texts = reader
        self.reader = None if reader is None else compile(reader)
        self._known: dict[int | None, AvroSchema | str] = {}

    def to_json(self) -> Json:
        return {
            "schemas": {"" if id is None else str(id): list(t) for id, t in self._texts.items()},
            "refused": {str(id): reason for id, reason in self._refused.items()},
            "reader": None if self._reader_texts is None else list(self._reader_texts),
            "keys": self.keys,
        }

    def value(self, data: bytes) -> object:
        """Decode the value of a record; raises `Unfit` if it is invalid."""
        return self.decode(data, self.writer(self.id_of(data)))

    def decode(self, data: bytes, writer: AvroSchema) -> object:
        return writer.decode(data, _HEADER_BYTES if self._framed else 0, self.reader)

    def key(self, data: bytes) -> object:
        """Decode the key of a record. The schema that is given is one of values."""
        return self.writer(self.id_of(data)).decode(data, _HEADER_BYTES if self._framed else 0)

    def id_of(self, data: bytes) -> int | None:
        """The id of the schema that a value was written with; None if there are no ids."""
        if not self._framed:
            return None
        if len(data) < _HEADER_BYTES or data[0] != 0:
            raise Unfit("not a zero byte and the id of a schema, as with a registry")
        return int.from_bytes(data[1:_HEADER_BYTES], "big")

    def writer(self, id: int | None) -> AvroSchema:
        """The schema with an id; raises `Unfit` if there is none that can be used."""
        if id not in self._known:
            self._known[id] = self._found(id)
        found = self._known[id]
        if isinstance(found, str):
            raise Unfit(found)
        return found

    def _found(self, id: int | None) -> AvroSchema | str:
        """The schema with an id, or the reason why there is none."""
        if id not in self._texts:
            ensure(id is not None, "the schema without an id is given")
            try:
                self._texts[id] = self._find(id or 0)
            except Unfit as unfit:
                if str(unfit) != absent(id or 0):
                    self._refused[id or 0] = str(unfit)
                return str(unfit)
        try:
            return self._compile(self._texts[id])
        except BadSchemaError as error:
            return f"schema {id} cannot be used: {error}"
