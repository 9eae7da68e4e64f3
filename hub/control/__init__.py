"""The control channel: commands that all processes of a hub carry out.

    kick      end streams now; their clients come back, and are authorized anew
    revoke    the same, and refuse the tokens from now on
    lift      accept the tokens again
    call      nothing; a process answers when it has stored what it alone knows
    list      nothing; a process answers who is connected to it
    explain   nothing; it answers why an update did not arrive, or who got it
    top       nothing; it answers how busy it is

A command is never an update.  The history keeps the commands in a list beside its log:

    log        a   b   c           d   e                 what is published
    commands               kick            revoke        place 3, place 5

The place of a command is the end of the log when the history took it.  A process
carries a command out before it dispatches any later entry.  That holds because nothing
tells it of an entry without the commands before it:

    a page of the log     is read together with the commands, in one step
    an own append         returns the commands that the history took before it
    a wake-up             comes for a command as for an entry

So a process that was away for an hour carries out what it missed, and only then
dispatches.  If the list has dropped some of that, it ends all of its streams.

    asker ── command ──► history ──► ledger of each process ──► its streams are aborted
      ▲                                                     └─► answer: how many
      └───────────── the answers, or the names of those who are silent ──┘

A process keeps what it knows in its `Ledger`.  It asks that again in the step that
gives a stream its seat, with no `await` between, and the history asks it in the step
that appends updates.  So a request that was authorized before a command, and is served
after it, is refused, on every process:

    subscribe   the ledger knows a command since the request came ─► the stream ends
    publish     the history has a command that the ledger does not know ─► it appends
                nothing; the process learns the command, and asks the ledger again

If the history is away, no update can be published.  The process that was asked carries
the command out at once, names all others as silent, and stores the command when the
history is back.  After it was away, each process calls those that it knew before, and
dispatches nothing until they have answered, or CALL_SECONDS have passed.  So nothing
that is published later comes before the command, unless the process that was asked has
died with it.  A history that is full, and can still be read, is not away for the
others: they learn the command when it is stored, RETRY seconds after there is room.

Bounds: a text of a command has MAX_TEXT characters; the list has MAX_COMMANDS commands
of MAX_AGE seconds; a hub has `max_revocations` revocations, and a full list refuses the
next one; an answer is kept for ANSWERS_AGE seconds, and waited for ANSWER_SECONDS.

Alternatives that were not taken: entries of a third kind in the log, which every reader
of the log would have to skip, also those of older nodes; and a channel of its own
beside the history (Redis's PUBLISH, sockets between workers), which has no order with
updates, and which a late process cannot read.

    commands   what a command says, and whom it means
    ledger     the commands and revocations that a process knows

The lists themselves are kept by each history (`hub.history`).  `hub.node.control`
carries commands out.
"""
