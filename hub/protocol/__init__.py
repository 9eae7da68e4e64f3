"""The protocol: what goes over the wire, as values; pure, without I/O and without the other parts of the hub.

    requests         forms, queries, headers and JSON -> values, and nothing else decodes what a client sent
    events           updates -> bytes of an event stream, and back
    subscriptions    subscribers as documents of the subscription API, and as updates
    updates          what an update is
    topics           topics, matcher types and their matchers
    origins          which origins an operator allows
    PROTOCOL.md      the rules of the protocol, by the numbers that code and tests cite, such as N44

Arrows point down: requests, subscriptions and events need updates, and updates need topics.
"""
