"""One node of a hub, among its clients, its publishers and the other nodes.

    shares            how much of each costly thing one client may use
    admission         which connections may start, and how long they last
    outage            what subscribers are told while the hub cannot serve them
    matchers          the patterns of requests and tokens: compiled, shared, limited
    publish_window    how far publishers may be ahead of dispatch
    presence          the subscribers of all nodes, and the updates about them
    control           commands that end streams, and the questions of an operator
    connections       an answer: who is connected
    fates             an answer: what became of an update
    watch             an answer: how busy this process is
    health            whether new clients should come here, and whether the node works
    shutdown          how the node ends

Belongs here: a limit, a promise or a state of the whole node.  Does not belong here: a
single update, or a single stream, once it has a seat (`delivery`).
"""
