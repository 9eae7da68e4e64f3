"""A running hub, checked from outside: publish, follow with clients that come and go, compare.

run    ─ the clients, the publishers, the check and the report
"""
