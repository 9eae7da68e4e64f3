"""One node of a hub, among its clients and the other nodes."""
