"""A running hub, checked from outside: publish, follow with clients that come and go, compare.

run    ─ publishers and clients on the nodes of the hub
  └► report    ─ what a run should do, how far it is, and what it found
       ├► checker    ─ what a history and its clients must agree on, and what breaks that
       └► client    ─ a node, and one connection to it
"""
