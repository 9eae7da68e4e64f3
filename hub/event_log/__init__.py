"""The analysts' side: a node writes what was published and who was connected, for `hub.spark`.

recorder    ─ what is written, and when: updates, sessions, gaps
"""
