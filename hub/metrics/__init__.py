"""Metrics: the numbers of a hub, for Prometheus.

    a worker                                    the process that serves metrics
    Recorder ─counts─► a slot of the board ◄─────── Collector ◄── GET /metrics
       gauges, when they are asked for     ◄─ "?" ─┘

All numbers are in one block of memory that the processes of a hub share (`board`), with
a slot for each worker.  A worker counts into its slot, which stays if the worker is
killed: the next one counts on.  The sums over all slots are served.

catalogue   the names and the meaning of all numbers
board       the memory, and how current gauges are asked for
recorder    counts: an `Observer`
gauges      where the present numbers are found
server      the HTTP server, which needs prometheus-client
"""
