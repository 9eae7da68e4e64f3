"""Checks a running hub from outside: publishes, follows with clients, and compares.

run    ─ publishers and clients on the nodes of the hub
  └► report    ─ the plan of a run, its progress, and its findings
       ├► checker    ─ the rules that a history and its clients must keep
       └► client    ─ a node, and one connection to it
"""
