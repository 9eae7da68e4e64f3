"""The wire format of the protocol, as plain values.

    requests         forms, queries, headers and JSON to values; all decoding is here
    hints            what is odd about a valid request
    events           updates to the bytes of an event stream, and back
    subscriptions    subscribers as documents of the subscription API, and as updates
    updates          what an update is
    data             the data of an update as text, and JSON
    topics           topics, matcher types and their matchers
    origins          which origins an operator allows
    PROTOCOL.md      the rules of the protocol; code and tests cite their numbers

Everything is pure: there is no I/O, and nothing needs the other parts of the hub.
Arrows point down: hints need requests; requests, subscriptions and events need updates;
and updates need topics and data.
"""
