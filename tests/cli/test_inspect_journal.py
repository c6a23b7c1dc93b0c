"""`stepwell inspect journal`: true to the bytes, and calm where they are wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stepwell.cli.journal import read_view
from stepwell.engine.open import open_writer
from stepwell.journal import codec, paths
from stepwell.journal.entry import Draft, Entry, Kind
from stepwell.model import NO_CHECKSUM, Epoch, Position, Transaction
from stepwell.store.memory import MemoryStore
from stepwell.testing import FaultyStore, ManualEnv
from tests.cli.conftest import Pipeline, Run, flip, snapshot
from tests.trimming import trim


def test_every_entry_is_a_row(run: Run, pipeline: Pipeline) -> None:
    """What a person sees must be what is there."""
    ended = run("inspect", "journal", pipeline.directory)
    assert ended.exit_code == 0, ended.stderr
    lines = ended.stdout.splitlines()
    lineage = pipeline.writer.manifest.lineage
    identity = pipeline.writer.manifest.journal.id
    assert lines[:4] == [
        f"store    file://{pipeline.directory}",
        f"journal  {identity}, of pipeline {lineage}",
        "entries  4, at position 1 to 4",
        "replay   starts after position 1 (manifest 2, epoch 1); 3 entries follow",
    ]
    heading, barrier, first, second, _ = lines[5:10]
    assert heading.split() == [
        *("position", "epoch", "kind", "transaction", "step", "closes", "time", "bytes", "inputs")
    ]
    assert barrier.split()[:3] == ["1", "1", "barrier"]
    assert first.split()[:6] == ["2", "1", "step", "1", "0", "yes"]
    assert first.endswith("push -> orders, 2 rows; files -> items, 7 rows")
    assert second.endswith("push -> orders, 3 rows")
    assert lines[-1] == "chain  intact, position 1 to 4"


def test_json_holds_every_field(run: Run, pipeline: Pipeline) -> None:
    """What a program needs must not have to be cut out of a table."""
    shown = json.loads(run("inspect", "journal", pipeline.directory, "--json").stdout)
    assert shown["whole"] is True
    assert shown["problems"] == []
    assert (shown["position_first"], shown["position_last"], shown["entries_in_store"]) == (1, 4, 4)
    assert shown["replay"]["position"] == 1
    entries = shown["entries"]
    assert [entry["kind"] for entry in entries] == ["barrier", "step", "step", "step"]
    assert [entry["previous"] for entry in entries[1:]] == [e["checksum"] for e in entries[:-1]]
    assert entries[1]["bytes"] == pipeline.entry(2).stat().st_size
    assert entries[1]["inputs"][1]["reference"] == {"files": ["a.json"]}
    assert not any(entry["void"] for entry in entries)


def test_a_damaged_entry_is_a_line_and_the_rest_is_shown(run: Run, pipeline: Pipeline) -> None:
    """K2: with one entry broken, the others are needed most; and the exit code is not 0."""
    flip(pipeline.entry(3), 1500)
    ended = run("inspect", "journal", pipeline.directory)
    assert ended.exit_code == 1
    rows = [line for line in ended.stdout.splitlines() if line.startswith("       ")]
    assert [row.split()[0] for row in rows] == ["1", "2", "3", "4"]
    assert rows[2].split()[1:3] == ["?", "DAMAGED"]
    assert "field 'checksum': stored checksum is" in rows[2]
    assert "NOT VERIFIED: 1 problem" in ended.stdout
    assert ended.stderr.startswith("error: the journal is damaged: ")
    assert f"{pipeline.entry(3)}: field 'checksum'" in ended.stderr
    assert "hint: restore the object from a backup" in ended.stderr
    shown = json.loads(run("inspect", "journal", pipeline.directory, "--json").stdout)
    assert [entry["position"] for entry in shown["entries"]] == [1, 2, 3, 4]
    assert [problem["position"] for problem in shown["problems"]] == [3]


@pytest.mark.parametrize("offset", [0, 700, -1])
def test_a_damaged_single_entry_is_refused(run: Run, pipeline: Pipeline, offset: int) -> None:
    """K2: nothing is shown from bytes that are not what was written."""
    flip(pipeline.entry(2), offset)
    ended = run("inspect", "journal", pipeline.entry(2))
    assert ended.exit_code == 1
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"error: file://{pipeline.entry(2)}: ")


def test_an_entry_of_a_format_to_come_is_named_by_both_versions(
    run: Run, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J12: it is not damaged, and what helps is an upgrade."""
    with monkeypatch.context() as future:
        future.setattr(codec, "FORMAT", "stepwell-journal/9")
        pipeline.push()
    ended = run("inspect", "journal", pipeline.directory)
    assert ended.exit_code == 1
    row = next(line for line in ended.stdout.splitlines() if line.split()[:1] == ["5"])
    assert "UNKNOWN" in row
    assert "has stepwell-journal format 9; this Stepwell reads format 2" in row
    assert "hint: upgrade Stepwell on this machine" in ended.stderr
    alone = run("inspect", "journal", pipeline.entry(5))
    assert alone.exit_code == 1
    assert "has stepwell-journal format 9; this Stepwell reads format 2" in alone.stderr


def test_a_missing_entry_is_a_gap_and_an_error(run: Run, pipeline: Pipeline) -> None:
    """F10: entries above the replay position have no gaps; a hole is lost data."""
    pipeline.entry(3).unlink()
    ended = run("inspect", "journal", pipeline.directory)
    assert ended.exit_code == 1
    assert "no entry at position 3, which was not replayed" in ended.stdout
    assert "entries  3, at position 1 to 4, with gaps" in ended.stdout


def test_an_entry_put_in_the_place_of_another_breaks_the_chain(
    run: Run, pipeline: Pipeline
) -> None:
    """K2: an entry can be whole and still not be the one that was there."""
    whole = pipeline.entry(3).read_bytes()
    entry, _ = codec.decode(whole, "entry")
    later = replace(entry.draft, transaction=Transaction(99))
    pipeline.entry(3).write_bytes(b"".join(codec.encode(replace(entry, draft=later)).parts))
    ended = run("inspect", "journal", pipeline.directory)
    assert ended.exit_code == 1
    assert "field 'previous': names" in ended.stdout
    # Position 4 is the one that notices, and it is still shown for what it is.
    shown = json.loads(run("inspect", "journal", pipeline.directory, "--json").stdout)
    assert [entry["problem"] is None for entry in shown["entries"]] == [True, True, True, False]
    assert shown["entries"][3]["transaction"] == 3


def test_a_damaged_manifest_does_not_hide_the_journal(run: Run, pipeline: Pipeline) -> None:
    """K2: the journal is what remains when a manifest is lost."""
    flip(pipeline.manifest(2), 100)
    ended = run("inspect", "journal", pipeline.directory)
    assert ended.exit_code == 1
    assert "push -> orders, 3 rows" in ended.stdout
    assert f"{pipeline.manifest(2)}: field 'checksum'" in ended.stderr


def test_inspecting_writes_nothing(run: Run, pipeline: Pipeline, tmp_path: Path) -> None:
    """F2: only opening for writing is a write; a reader must not disturb the writer."""
    before = snapshot(tmp_path)
    for command in ("journal", "manifest"):
        assert run("inspect", command, pipeline.directory).exit_code == 0
        assert run("inspect", command, tmp_path / "nowhere").exit_code == 1
        assert run("inspect", command, tmp_path).exit_code == 1
    assert run("inspect", "journal", pipeline.entry(2)).exit_code == 0
    assert run("inspect", "manifest", pipeline.manifest(2)).exit_code == 0
    assert snapshot(tmp_path) == before
    pipeline.push()


def test_of_a_long_journal_the_end_is_read_and_the_rest_is_named(
    run: Run, pipeline: Pipeline
) -> None:
    """The first entry of a million is rarely needed."""
    ended = run("inspect", "journal", pipeline.directory, "--limit", 2)
    positions = [line.split()[0] for line in ended.stdout.splitlines() if "step  " in line][1:]
    assert positions == ["3", "4"]
    assert "entries  4, at position 1 to 4; read: 3 to 4." in ended.stdout
    assert "--all, or --after N --limit N" in ended.stdout
    assert ended.stdout.endswith("chain  intact, position 3 to 4\n")
    after = run("inspect", "journal", pipeline.directory, "--after", 1, "--limit", 1, "--json")
    assert [entry["position"] for entry in json.loads(after.stdout)["entries"]] == [2]
    everything = run("inspect", "journal", pipeline.directory, "--all", "--limit", 1, "--json")
    assert len(json.loads(everything.stdout)["entries"]) == 4


def test_only_what_is_shown_is_read() -> None:
    """An entry may hold megabytes; a look at the last one must not fetch them all."""
    env, store = memory_pipeline(entries=100)
    faulty = FaultyStore(store)
    view = read_view(faulty, env, limit=3)
    assert [line.position for line in view.lines] == [99, 100, 101]
    assert view.whole
    read = [
        call.path for call in faulty.calls if call.operation == "get" and "journal/0" in call.path
    ]
    assert len(read) == 4, "three, and the one before them for its checksum"


def test_the_first_link_is_checked_even_if_the_entry_before_is_not_shown() -> None:
    """Otherwise every page would look whole while the journal is not."""
    env, store = memory_pipeline(entries=5)
    found = store.get(paths.entry(Position(4)))
    assert found is not None
    entry, _ = codec.decode(found.data, "entry")
    store.delete(paths.entry(Position(4)))
    other = replace(entry, put_id=env.new_id())
    store.put_new(paths.entry(Position(4)), codec.encode(other).parts)
    view = read_view(store, env, after=4)
    assert [problem.position for problem in view.problems] == [5]


def test_a_void_entry_is_marked(run: Run, pipeline: Pipeline) -> None:
    """F5: it counts for nothing, and a reader must see why it is there."""
    pipeline.open()
    tip = pipeline.writer.journal.tip
    barrier = Draft(Kind.BARRIER, Transaction(0), 0, False, pipeline.env.now())
    late = Entry(
        lineage=pipeline.writer.manifest.lineage,
        epoch=Epoch(1),
        position=tip.next,
        put_id=pipeline.env.new_id(),
        previous=NO_CHECKSUM,
        draft=barrier,
    )
    pipeline.store.put_new(paths.entry(tip.next), codec.encode(late).parts)
    pipeline.push()
    ended = run("inspect", "journal", pipeline.directory)
    assert ended.exit_code == 0, ended.stderr
    assert [line.split()[:4] for line in ended.stdout.splitlines() if ", void" in line] == [
        ["6", "1", "barrier,", "void"]
    ]


def test_trimmed_entries_are_not_a_gap() -> None:
    """Behind the replay position entries go, and young barriers stay: that is how it should be."""
    env, store = memory_pipeline(entries=5)
    writer = open_writer(store, env)
    tip = writer.journal.tip
    writer.commit(lambda manifest: replace(manifest, replay=tip), "flush")
    writer.append(Draft(Kind.STEP, Transaction(6), 0, True, env.now()))
    trim(store, env, Position(tip.position))
    view = read_view(store, env)
    assert view.positions == (1, 7, 8), "two barriers, and what came after"
    assert view.whole, view.problems


def test_a_separate_journal_store_is_shown_without_a_manifest(run: Run, tmp_path: Path) -> None:
    """The journal may lie in a store of its own, where the replay position is unknown."""
    pipeline = Pipeline(tmp_path / "state", journal=tmp_path / "journal-store")
    pipeline.push()
    ended = run("inspect", "journal", tmp_path / "journal-store")
    assert ended.exit_code == 0, ended.stderr
    assert "replay   unknown: there is no readable manifest in this store" in ended.stdout
    elsewhere = run("inspect", "journal", tmp_path / "state")
    assert elsewhere.exit_code == 1
    assert f"its manifest names journal {pipeline.writer.manifest.journal.id}" in elsewhere.stderr
    assert "give the address of the journal store" in elsewhere.stderr


def test_a_swapped_journal_is_noticed(run: Run, tmp_path: Path) -> None:
    """F10: the journal of another pipeline is as good as none."""
    one, other = Pipeline(tmp_path / "one"), Pipeline(tmp_path / "other")
    identity = one.directory / "journal" / "identity.json"
    identity.write_bytes((other.directory / "journal" / "identity.json").read_bytes())
    ended = run("inspect", "journal", one.directory)
    assert ended.exit_code == 1
    assert "holds the journal of another pipeline" in ended.stderr


def test_a_single_entry_shows_its_inputs_and_first_rows(run: Run, pipeline: Pipeline) -> None:
    """To see what was pushed is why one looks at an entry."""
    ended = run("inspect", "journal", pipeline.entry(2))
    assert ended.exit_code == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0] == f"entry        file://{pipeline.entry(2)}"
    assert "transaction  1" in lines
    assert "push -> orders" in lines
    assert lines[lines.index("push -> orders") + 3].endswith(
        "Arrow IPC stream: id int64, customer string"
    )
    assert lines[lines.index("id  customer") + 1 :][:2] == ["0   customer-0", "1   customer-1"]
    assert '  reference  {"files": ["a.json"]}' in lines
    many = run("inspect", "journal", pipeline.entry(4)).stdout
    assert "9   customer-9\n... 2 more rows\n" in many
    barrier = run("inspect", "journal", pipeline.entry(1)).stdout
    assert barrier.endswith("It has no inputs.\n")


def test_a_single_entry_as_json_has_its_rows(run: Run, pipeline: Pipeline) -> None:
    """A program may want to see the data, too."""
    shown = json.loads(run("inspect", "journal", pipeline.entry(2), "--json").stdout)
    assert shown["position"] == 2
    assert shown["inputs"][0]["data"] == {
        "schema": [{"name": "id", "type": "int64"}, {"name": "customer", "type": "string"}],
        "first_rows": [{"id": 0, "customer": "customer-0"}, {"id": 1, "customer": "customer-1"}],
    }
    assert shown["inputs"][1]["data"] is None


def test_a_copy_of_an_entry_can_be_shown_from_anywhere(
    run: Run, pipeline: Pipeline, tmp_path: Path
) -> None:
    """An entry attached to a bug report has lost its store and its name."""
    copy = tmp_path / "attached.bin"
    copy.write_bytes(pipeline.entry(3).read_bytes())
    assert "position     3" in run("inspect", "journal", copy).stdout
    renamed = tmp_path / f"{7:020d}.arrow"
    renamed.write_bytes(pipeline.entry(3).read_bytes())
    ended = run("inspect", "journal", renamed)
    assert ended.exit_code == 1
    assert "field 'position': holds the entry of position 3" in ended.stderr


def test_control_characters_of_stored_names_are_spelled_out(
    run: Run, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal would obey them, and the person at it would not see them."""
    entry, _ = codec.decode(pipeline.entry(4).read_bytes(), "entry")
    evil = replace(entry.draft.inputs[0], source="a\x1b[2J\nb", data=b"not arrow")
    changed = replace(entry, draft=replace(entry.draft, inputs=(evil,)))
    pipeline.entry(4).write_bytes(b"".join(codec.encode(changed).parts))
    for place in (pipeline.directory, pipeline.entry(4)):
        shown = run("inspect", "journal", place).stdout
        assert r"a\x1b[2J\nb -> orders" in shown
        assert "\x1b" not in shown
    assert "not an Arrow IPC stream" in run("inspect", "journal", pipeline.entry(4)).stdout


@pytest.mark.parametrize(
    ("made", "message", "hint"),
    [
        ([], "holds no journal", "it is empty"),
        (["notes.txt"], "holds no journal", "it holds other things"),
    ],
)
def test_a_place_without_a_journal_is_named_with_what_it_holds(
    run: Run, tmp_path: Path, made: list[str], message: str, hint: str
) -> None:
    """A mistyped path is the most common mistake."""
    for name in made:
        (tmp_path / name).write_text("x")
    ended = run("inspect", "journal", tmp_path)
    assert ended.exit_code == 1
    assert message in ended.stderr
    assert f"hint: {hint}" in ended.stderr


def test_the_wrong_level_or_the_wrong_command_gets_a_hint(run: Run, pipeline: Pipeline) -> None:
    """One folder too deep, or `manifest` for `journal`: the next command is known."""
    deep = run("inspect", "journal", pipeline.directory / "journal")
    assert f"hint: give the store itself: file://{pipeline.directory}" in deep.stderr
    wrong = run("inspect", "manifest", pipeline.entry(2))
    assert f"hint: stepwell inspect journal {pipeline.entry(2)}" in wrong.stderr
    gone = run("inspect", "journal", pipeline.entry(77))
    assert gone.exit_code == 1
    assert f"hint: list the objects: stepwell inspect journal {pipeline.directory}" in gone.stderr


def memory_pipeline(entries: int) -> tuple[ManualEnv, MemoryStore]:
    env = ManualEnv()
    store = MemoryStore(env)
    writer = open_writer(store, env)
    for number in range(1, entries + 1):
        writer.append(Draft(Kind.STEP, Transaction(number), 0, True, env.now()))
    return env, store
