"""The event log: published updates and connections, as files of JSON lines.

    DIR/updates/20261103T120000.000000Z-NODE.jsonl       updates of all nodes, each once
    DIR/sessions/20261103T120000.000000Z-NODE.jsonl      connections of one node
    DIR/sessions/20261103T120100.000000Z-NODE.jsonl.part is still being written
    DIR/nodes/NODE      locked while the node lives; how far its log is exact
    DIR/key             the key of the names, unless a setting gives it
    DIR/lock            locked by the node that writes the updates

    {"hub":…,"epoch":…,"position":7,"time":ms,"id":…,"topics":[…],"private":false,
     "type":null,"retry":null,"data_bytes":12,"presence":false}
                                                        with "data" if that is turned on
    {"event":"connect","hub":…,"epoch":…,"node":…,"number":3,"subscriber":…,
     "issuer":…,"subject":…,"token_id":…,"address":…,
     "selectors":[{"type":…,"pattern":…}],"authorised":[…],"time":µs,"after":5}
    {"event":"disconnect","node":…,"number":3,"time":µs,"until":9,"clean":true,
     "reason":"client_left"}
    {"event":"end","node":…,"time":µs,"until":9,"clean":true}
        ends all open connections of the node
    {"event":"end","node":…,"time":µs,"until":9,"clean":false,"hub":…,"epoch":…,
     "updates":false,"found":µs}
    {"event":"gap","node":…,"time":µs,"after":9,"until":12,"hub":…,"epoch":…,
     "updates":true,"found":µs,"cause":…}

A connection was sent exactly the matching updates with after < position <= until;
"sent" means handed to its socket, read or not.  Positions are those of the history
itself, within one epoch.  Selectors are in the terms of the library.  The log has no
tokens.  Of their claims it has the issuer, the subject and the id: see `names`.  The
names and the reason are missing in the lines of earlier versions.  A reader that is not
a subscriber (`Prefer: wait=0`) is not a connection.

The log is behind the hub by some milliseconds, or by a second or more on a busy
machine, and nothing waits for it.  A segment is closed when it is old or large enough;
from then on it is on disk under its name, and never changes.  If the disk is full or
the directory is missing, the hub continues, and connections wait in memory for a while.

What is exact:

- If a hub ends normally and has written everything, the lines are what each socket was
  given.
- If a process is killed, the next node that writes the updates closes its segments, at
  the latest when the hub starts again, and marks what may be missing: an `end` that is
  not clean.  The log has the dead node's connections before `time`, and its deliveries
  up to `until`; later ones may be missing.  All updates are there if the history
  survived, which the other node sees by the epoch.  In another epoch (always, for a
  history in memory) `updates` is true: updates after `until` may be missing too.
- A node that cannot write everything in time leaves like a killed one.
- A `gap` says the same of connections for which there was no room, of updates that were
  forgotten before they were written, and of a connection whose end is unknown (its
  `clean` is false).  What is missing lies between `time` and `found`.  `found` is null
  while some of the connections without room are open; a second line follows when the
  last one has ended.
- A mark may be written twice with different `found`; the later one counts.
- If a hub is killed and never started again, there is no mark: its last segments keep
  the suffix .part, and its connections stay open.

Not marked: what a node did before its first write, if it was killed then.  A connection
that is open when its node is killed counts as having received all it wanted up to
`until`, even if it was slow.  A connection that is reset while a write waits for room
ends with what was handed over at once.  On a server without detached streams
(`uvicorn hub:app`), what the server has accepted counts as handed over; it buffers up
to 64 KiB.

The directory is for the processes of one machine, because its locks need one kernel.

recorder    ─ EventLog: when something is written, and how far the log is exact
  ├► sessions    ─ the connections of this node
  ├► updates     ─ the updates of all nodes, if this one leads
  └► marks       ─ what is missing
       └► segments    ─ the files, their locks and their repair
            └► names  ─ what lines say of persons, and the key of that
"""
