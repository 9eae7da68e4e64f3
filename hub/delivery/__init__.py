"""From the history to the connection of each subscriber.

    history ──► follower ──► live ──► stream ──► connection     the newest page
       │                      └─ audience: which seats receive it
       └──────► reading ────► stream ──► connection             those who catch up
                       └────► a reader with `Prefer: wait=0`    those who do not wait

    delivery      ─ Delivery: arrivals and departures, and all that a stream needs
      ├► stream        ─ the state machine of one stream
      ├► reading       ─ the entries of the history that one seat wants, page by page
      ├► follower      ─ new entries of the history, page by page, to the live seats
      ├► heartbeats    ─ heartbeats and deadlines (timer_wheel)
      ├► live          ─ dispatch: one write to each live seat that wants a page
      ├► audience      ─ the rule: which seats receive an update; and its index
      ├► seat          ─ the place of one connection
      ├► subscriber    ─ the subscriptions, the grant and the deadline of a connection
      └► observer      ─ the interface of listeners to all this, such as the event log

All positions are on one axis.  Each of them includes the entry at this position:

    history           a   b   c   d   e   f   g   h
    position          1   2   3   4   5   6   7   8
                          │           │   │       │
                          │           │   │       end: the newest entry of the history
                          │           │   position: dispatched by now, or in a moment
                          │           dispatched: the last finished dispatch ended here
                          start of a subscriber, `after`: everything up to here is sent

So a subscriber with the start 2 receives c, and what follows.
"""
