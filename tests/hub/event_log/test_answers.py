"""The answers from an event log: agreement with a naive reading of random logs, with a
real hub, and what the commands print.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from hub.errors import ConfigurationError
from hub.event_log import lines
from hub.event_log.answers import of_subject, unread, who
from hub.event_log.names import digest
from hub.event_log.segments import dead_nodes
from hub.protocol.data import to_json
from skipfilter import compile_matcher
from tests.asgi import application, bearer, classic_token, current_token, follow, publish
from tests.hub.commands import run
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

Record = dict[str, Any]
HUB = "https://hub.example/.well-known/mercure"
NOON = 1_700_000_000_000
KEY = b"k" * 32
TOPICS = ["a", "b", "/c/1", "/c/2", "d/e/f", "/x"]
SELECTORS = [
    *(("exact", topic) for topic in TOPICS),
    *[("uritemplate", "/c/{id}"), ("everything", "*"), ("mqtt", "d/#"), ("urlpattern", "/c/:id"), ("amqp", "#")],
]


def quiet(*_: object) -> None:
    """Show no progress."""


def selectors(some: list[tuple[str, str]]) -> list[Record]:
    return [{"type": type, "pattern": pattern} for type, pattern in some]


def random_log(source: random.Random, step: int = 1_000) -> tuple[list[Record], list[Record]]:
    """Return the lines of sessions, and of updates, in two epochs and of three nodes.

    There are `step` milliseconds between two updates.
    """
    updates, sessions = [], []
    for epoch, most in (("e1", 30), ("e2", 12)):
        updates += [
            {
                "hub": HUB, "epoch": epoch, "position": position, "time": NOON + step * position,
                "id": f"{epoch}-{source.randrange(most)}", "topics": source.sample(TOPICS, source.choice([1, 1, 2])),
                "private": source.random() < 0.6, "type": None, "retry": None, "data_bytes": 1,
                "presence": source.random() < 0.1,
            }
            for position in range(1, most + 1)
        ]  # fmt: skip
        for node in ("n1", "n2", "n3"):
            for number in range(source.randrange(12)):
                after = source.randrange(most)
                came = after + source.choice([0, 0, 1, 3])  # later, if it has read the history
                name = source.choice([None, "42", "43"])
                subject = name if name is None or source.random() < 0.5 else digest(KEY, "subject", "i", name)
                about = {"node": f"{node}{epoch}", "number": number}
                sessions.append(
                    {
                        "event": "connect", "hub": HUB, "epoch": epoch, **about, "subscriber": f"{node}{epoch}{number}",
                        "issuer": "i", "subject": subject, "token_id": None, "address": None,
                        "selectors": selectors(source.sample(SELECTORS, source.randint(1, 2))),
                        "authorised": selectors(source.sample(SELECTORS, source.randint(0, 2))),
                        "time": (NOON + step * came) * 1_000, "after": after,
                    }
                )  # fmt: skip
                if source.random() < 0.7:
                    position = source.randint(after, most)
                    time = (NOON + step * max(position, came)) * 1_000
                    gone = {"event": "disconnect", **about, "time": time, "until": position, "clean": True}
                    sessions.append(gone | {"reason": "client_left"})
            if source.random() < 0.5:
                position = source.randrange(most)
                time = (NOON + step * position) * 1_000
                is_clean = source.random() < 0.5
                about = (
                    {"hub": HUB, "epoch": epoch, "updates": False, "found": time + 5_000 * step} if not is_clean else {}
                )
                sessions.append(
                    {
                        "event": "end",
                        "node": f"{node}{epoch}",
                        "time": time,
                        "until": position,
                        "clean": is_clean,
                        **about,
                    }
                )
    return sessions, updates


def write(path: Path, sessions: list[Record], updates: list[Record], source: random.Random) -> None:
    """Write the lines as several files; the last one may still be written."""
    for kind, records in (("sessions", sessions), ("updates", updates)):
        folder = path / kind
        folder.mkdir(parents=True)
        edges = sorted({0, len(records), *(source.randrange(len(records) + 1) for _ in range(3))})
        for n, (start, stop) in enumerate(pairwise(edges)):
            is_last = stop == len(records)
            text = "".join(to_json(record) + "\n" for record in records[start:stop])
            (folder / f"{n:03}.jsonl{'.part' if is_last else ''}").write_text(text + ('{"cut' if is_last else ""))


def closed(path: Path) -> None:
    """Close the files that a hub still writes, so that the pipeline reads them."""
    for part in path.glob("*/*.part"):
        text = part.read_text()
        part.with_suffix("").write_text(text[: text.rindex("\n") + 1])
        part.unlink()


def naive(sessions: list[Record], updates: list[Record]) -> dict[tuple[str, int], dict[str, set[str]]]:
    """Return for each update, by epoch and position, which subscribers had which fate."""
    gone = {(line["node"], line["number"]): line for line in sessions if line["event"] == "disconnect"}
    ends = {line["node"]: line for line in sessions if line["event"] == "end"}
    found: dict[tuple[str, int], dict[str, set[str]]] = {}
    for update in updates:
        fates: dict[str, set[str]] = {"received": set(), "denied": set(), "others": set()}
        for line in sessions:
            if line["event"] != "connect" or line["epoch"] != update["epoch"]:
                continue
            end = gone.get((line["node"], line["number"])) or ends.get(line["node"])
            last = math.inf if end is None else max(end["until"], line["after"])
            if line["after"] < update["position"] <= last:
                wants, may_read = (
                    any(matches(one, topic) for one in line[name] for topic in update["topics"])
                    for name in ("selectors", "authorised")
                )
                fate = "others" if not wants else "received" if may_read or not update["private"] else "denied"
                fates[fate].add(line["subscriber"])
        found[update["epoch"], update["position"]] = fates
    return found


def matches(selector: dict[str, str], topic: str) -> bool:
    return compile_matcher(selector["type"], selector["pattern"], base_url=HUB).match(topic)


@pytest.mark.processes
def test_several_processes_answer_as_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(0)
    sessions, updates = random_log(source)
    write(tmp_path, sessions, updates, source)

    def asked() -> list[object]:
        log = str(tmp_path)
        return [who(log, updates[5]["id"], quiet), of_subject(log, "42", quiet, key=KEY), unread(log, quiet)]

    alone = asked()
    monkeypatch.setattr(lines, "SMALL", 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert asked() == alone


@pytest.mark.parametrize("seed", range(30))
def test_the_answers_agree_with_a_naive_reading(seed: int, tmp_path: Path) -> None:
    source = random.Random(seed)
    sessions, updates = random_log(source)
    write(tmp_path, sessions, updates, source)
    expected = naive(sessions, updates)
    # 1. Who received each update.
    for id in {update["id"] for update in updates}:
        found = who(str(tmp_path), id, quiet)
        assert [(one.update.epoch, one.update.position) for one in found] == [
            (update["epoch"], update["position"]) for update in updates if update["id"] == id
        ]
        for one in found:
            assert one.update.epoch is not None
            fates = expected[one.update.epoch, one.update.position]
            assert {c.subscriber for c in one.received + one.open + one.perhaps} == fates["received"]
            ended = {(line["node"], line["number"]) for line in sessions if line["event"] == "disconnect"}
            ends = {line["node"]: line["clean"] for line in sessions if line["event"] == "end"}
            for fate in ("received", "open", "perhaps"):
                for c in getattr(one, fate):
                    is_known = (c.node, c.number) in ended or ends.get(c.node) is True
                    assert fate == ("received" if is_known else "perhaps" if c.node in ends else "open")
            assert {c.subscriber for c in one.denied} == fates["denied"]
            assert one.others == len(fates["others"])
            assert {mark.node for mark in one.marks} == {
                line["node"]
                for line in sessions
                if line["event"] == "end"
                and not line["clean"]
                and line["epoch"] == one.update.epoch
                and line["until"] < one.update.position
                and one.update.time * 1_000 <= line["found"]
            }
    # 2. What a user received.
    for subject in ("42", "43"):
        day = of_subject(str(tmp_path), subject, quiet, key=KEY)
        names = {subject, digest(KEY, "subject", "i", subject)}
        theirs = {line["subscriber"] for line in sessions if line["event"] == "connect" and line["subject"] in names}
        assert {one.connection.subscriber for one in day.sessions} == theirs
        assert sorted((one.update.epoch, one.update.position, one.subscriber) for one in day.received) == sorted(
            (*place, one) for place, fates in expected.items() for one in fates["received"] & theirs
        )
    # 3. What no one received.
    private = [update for update in updates if update["private"] and not update["presence"]]
    answer = unread(str(tmp_path), quiet)
    assert answer.total == len(private)
    lost = {
        (update["epoch"], update["position"], bool(expected[update["epoch"], update["position"]]["denied"]))
        for update in private
        if not expected[update["epoch"], update["position"]]["received"]
    }
    told = {(update.epoch, update.position, wanted) for update, wanted, _ in answer.updates}
    assert lost <= told
    unsure = [is_unsure for _, _, is_unsure in answer.updates]
    assert (answer.unread, answer.unsure) == (len(told) - sum(unsure), sum(unsure))
    assert answer.wanted == sum(wanted for _, wanted, is_unsure in answer.updates if not is_unsure)
    assert unread(str(tmp_path), quiet, limit=2) == answer._replace(updates=answer.updates[:2])
    for update, _, is_unsure in answer.updates if seed < 3 else []:
        (one,) = [one for one in who(str(tmp_path), update.id, quiet) if one.update == update]
        assert not one.received + one.open
        assert bool(one.marks or one.perhaps) == is_unsure


# -- a real hub, and the commands


@pytest.mark.anyio
async def test_the_commands_say_who_received_what_while_the_hub_runs(tmp_path: Path) -> None:
    log = str(tmp_path)
    async with (
        application(event_log=log, event_log_subject="plain", subscriptions=False) as app,
        AsyncExitStack() as stack,
    ):
        for subject, granted in (("42", "/users/42"), ("43", "/users/43")):
            signed = bearer(current_token(subject=subject, subscribe=[granted]))
            await stack.enter_async_context(follow(app, ("match_uritemplate", "/users/{id}"), headers=[signed]))
        await stack.enter_async_context(follow(app, ("match", "other")))
        publisher = classic_token(publish=["*"])
        first = await publish(app, publisher, ("topic", "/users/42"), ("private", "on"))
        last = await publish(app, publisher, ("topic", "/users/44"), ("private", "on"))
        await until(lambda: last in "".join(path.read_text() for path in (tmp_path / "updates").iterdir()))

        async def told(*arguments: str) -> tuple[int, list[str], str]:
            ended = await asyncio.to_thread(run, "log", *arguments, "--log", log)
            return ended.returncode, ended.stdout.splitlines(), ended.stderr

        status, out, err = await told("who", "--update", first)
        assert (status, err) == (0, "")
        assert out[0] == (
            "0 connections received the update; 1 that are open have it or get it next; 1 wanted it and might not read "
            "it; 1 others were connected."
        )
        assert out[1].endswith(f"{first}  private  /users/42")
        assert out[2].startswith("  open     42  127.0.0.1  urn:uuid:")
        assert out[3].startswith("  denied   43  127.0.0.1  urn:uuid:")
        status, out, err = await told("of", "--subject", "42")
        assert (status, err) == (0, "")
        assert out[0] == "1 connection: 1 deliveries of 1 updates."
        assert out[1].startswith("  42  127.0.0.1  urn:uuid:")
        assert out[1].endswith(" open")
        assert first in out[2]
        status, out, err = await told("unread")
        assert (status, err) == (0, "")
        assert out[0] == (
            "1 of 2 private updates were received by no connection; 1 of these were wanted by one that might not read them."
        )
        assert out[1].endswith(f"{last}  private  /users/44  wanted")
        for arguments, count in ((("who", "--update", first), 3), (("of", "--subject", "42"), 3), (("unread",), 2)):
            _, out, _ = await told(*arguments, "--json")
            assert len([json.loads(line) for line in out]) == count
        status, out, err = await told("unread", "--limit", "0")
        assert (len(out), err) == (1, "skipfilter: 1 more are not printed: see --limit\n")
        for arguments, reason in (
            (("who", "--update", "x"), "the log has no update with the id 'x'"),
            (("of", "--subject", "x"), "the log has no connection of the subject 'x'"),
        ):
            status, out, err = await told(*arguments)
            assert (status, out) == (1, [])
            assert reason in err


def test_what_is_no_log_is_one_sentence(tmp_path: Path) -> None:
    ended = run("log", "unread", "--log", str(tmp_path / "none"))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "this is not an event log" in ended.stderr
    ended = run("log", "unread")
    assert (ended.returncode, ended.stderr) == (2, "skipfilter: no event log: give --log, or the setting event_log\n")
    for kind in ("sessions", "updates"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "1.jsonl").write_text('{"event": 1}\n')
    for arguments in (("unread",), ("of", "--subject", "a"), ("who", "--update", "a")):
        (tmp_path / "updates" / "1.jsonl").write_text('{"id": "a"}\n')
        (tmp_path / "sessions" / "1.jsonl").write_text('{"event": "connect", "subject": "a"}\n')
        ended = run("log", *arguments, "--log", str(tmp_path))
        assert (ended.returncode, ended.stdout) == (1, "")
        assert "a line is not a record of an event log" in ended.stderr


def test_marks_say_what_may_be_missing(tmp_path: Path) -> None:
    sessions, updates = random_log(random.Random(1))
    about = {"epoch": "e1", "hub": HUB, "updates": False}
    gap = {
        "event": "gap",
        "node": "n9",
        "time": NOON * 1_000,
        "after": 3,
        "until": None,
        "cause": "had no room",
        **about,
    }
    sessions.append(gap | {"found": None})
    write(tmp_path, sessions, updates, random.Random(1))
    id = updates[10]["id"]
    ended = run("log", "who", "--update", id, "--log", str(tmp_path))
    assert (
        "skipfilter: some may be missing: n9 had no room at 2023-11-14T22:13:20.000+00:00, and its deliveries"
        in ended.stderr
    )
    found = [one for one in who(str(tmp_path), id, quiet) if one.update.position == 11]
    assert "n9" in {mark.node for one in found for mark in one.marks}
    assert unread(str(tmp_path), quiet).unsure
    # A second line ends the mark.
    folder = tmp_path / "sessions"
    (folder / "zzz.jsonl").write_text(to_json(gap | {"found": (NOON + 4_500) * 1_000}) + "\n")
    found = [one for one in who(str(tmp_path), id, quiet) if one.update.position == 11]
    assert "n9" not in {mark.node for one in found for mark in one.marks}


@pytest.mark.anyio
async def test_a_process_that_has_died_is_named_until_its_end_is_marked(tmp_path: Path) -> None:
    async with application(event_log=str(tmp_path), subscriptions=False) as app:
        await publish(app, classic_token(publish=["*"]), ("topic", "a"))
        assert (await asyncio.to_thread(run, "log", "unread", "--log", str(tmp_path))).stderr == ""
        assert dead_nodes(str(tmp_path)) == []
    (tmp_path / "nodes" / "n7").write_text("")  # as a killed process leaves it
    ended = await asyncio.to_thread(run, "log", "unread", "--log", str(tmp_path))
    assert ended.returncode == 0
    assert "some may be missing: the process n7 has died" in ended.stderr


def test_missing_updates_matter_to_users_of_other_processes(tmp_path: Path) -> None:
    sessions, updates = random_log(random.Random(2))
    gap = {"event": "gap", "node": "leader", "time": NOON * 1_000, "after": 3, "until": None, "cause": "lost updates"}
    gap |= {"epoch": "e1", "hub": HUB, "updates": True, "found": None}
    write(tmp_path, [*sessions, gap], updates, random.Random(2))
    day = of_subject(str(tmp_path), "42", quiet, key=KEY)
    assert day.sessions
    assert "leader" in {mark.node for mark in day.marks}


def test_a_log_without_updates_has_none(tmp_path: Path) -> None:
    for kind in ("sessions", "updates"):
        (tmp_path / kind).mkdir()
    assert unread(str(tmp_path), quiet) == (0, 0, 0, 0, [])
    assert who(str(tmp_path), "x", quiet) == []


def test_a_file_that_is_closed_meanwhile_is_read_under_its_new_name(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_bytes(b"{}\n{}\n{")
    assert list(lines.lines_in(tmp_path / "1.jsonl.part")) == [b"{}", b"{}"]
    with pytest.raises(FileNotFoundError):
        list(lines.lines_in(tmp_path / "2.jsonl"))
    with pytest.raises(ConfigurationError):
        lines.files_of(str(tmp_path), "updates")
    assert lines.parsed(b'{"a": "\\ud800"}') == {"a": "\ud800"}
    with pytest.raises(ValueError, match="this is no object"):
        lines.parsed(b"1")
