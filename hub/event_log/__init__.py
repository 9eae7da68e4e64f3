"""The event log: what was published, and who was connected, in files for whoever asks later.

    DIR/updates/20261103T120000.000000Z-NODE.jsonl         a line an update, of all nodes and each once
    DIR/sessions/20261103T120000.000000Z-NODE.jsonl        a line when a connection begins or ends, of this node
    DIR/sessions/20261103T120100.000000Z-NODE.jsonl.part   which is being written
    DIR/nodes/NODE                                         who runs, locked; how far it has dispatched, and when
    DIR/lock                                               of the node that writes the updates

    {"hub":…,"epoch":…,"position":7,"time":ms,"id":…,"topics":[…],"private":false,"type":null,"retry":null,
     "data_bytes":12}                                                            and "data", if that is asked for
    {"event":"connect","hub":…,"epoch":…,"node":…,"number":3,"subscriber":…,"selectors":[{"type":…,"pattern":…}],
     "authorised":[…],"time":µs,"after":5}
    {"event":"disconnect","node":…,"number":3,"time":µs,"until":9,"clean":true}
    {"event":"end","node":…,"time":µs,"until":9,"clean":true}                    all that is open of the node ends here
    {"event":"end","node":…,"time":µs,"until":9,"clean":false,"hub":…,"epoch":…,"updates":false,"found":µs}
    {"event":"gap","node":…,"time":µs,"after":9,"until":12,"hub":…,"epoch":…,"updates":true,"found":µs,"cause":…}

A connection was written, of what it wanted, what has after < position <= until, and nothing else: what was handed to
its socket, be that read or not.  Positions are those of the log itself, whichever node counts, in one epoch.  Selectors
are in the words of the library; of tokens, and of what they say about their bearers, there is nothing here.  What reads
the log to its end without being a subscriber is no connection.

The log is behind the hub by some milliseconds, on a busy machine by a second or more, and nobody waits for it.  A
segment is closed when it is old or large enough: then it is on the disk, and has its name, and does not change.  If the
disk is full, or the directory is away, the hub goes on, and connections wait for a while in memory.

What is exact, and when.  If a hub ends by itself and has written everything, the lines are what was written to each
socket.  If a process is killed, the next node that writes the updates closes its segments, at the latest when the hub
is started again, and marks what may be missing: an end that is not clean.  The connections of the dead node before
`time`, and its deliveries up to `until`, are in the log; later ones may not be.  The updates are all there if the log
of updates survived, which the node that finds the dead one sees by the epoch: it reads on where the dead node stopped.
If the epoch is another one, as that of a log in memory always is, `updates` is true: those after `until` may be
missing, too.  A node that could not write everything in time leaves as if it was killed.  A gap says the same of
connections that had no room, of updates that the log had forgotten before they were written, and of a connection of
which it is not known any more where it ended: its `clean` is false.  What is missing lies between `time` and `found`,
which is null as long as some of the connections without room are there; a second line says when the last one has gone.
A mark may be written twice, with another `found`; the later one counts.  A hub that is killed and never started again
leaves no mark: its last segments keep the name .part, and its connections stay open.

Not marked: what a node did that was killed before it could write to the directory for the first time.  A connection
that is open when its node is killed counts as having got all that it wanted up to `until`, also if it is slow.  A
connection that is reset while a write waits for room ends with what was handed over at once.  Behind a server that does
not park (`uvicorn hub:app`) what the server took counts as handed over, of which it keeps up to 64 KiB.

The directory is for the processes of one machine, whose locks need one kernel.

recorder    ─ EventLog: when something is written, and how far the log is exact
  ├► sessions    ─ the connections of this node
  ├► updates     ─ the updates of all nodes, if this one leads
  └► marks       ─ what is missing
       └► segments    ─ the files, their locks, and what is mended in them
"""
