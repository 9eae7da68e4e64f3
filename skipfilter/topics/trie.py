"""A trie of word patterns; a topic is walked along all matching branches at once.

Patterns  a.b   a.*   #.c   a.#      (`one` is *, `many` is #, `value` is the payload)

    root ─a──► · ─b───► (a.b)       topic a.c    {root, root.many}
     │         ├─one──► (a.*)         after a    {a, a.many, root.many}
     │         └─many─► (a.#)         after c    {a.one, a.many, root.many.c, root.many}
     └─many──► · ─c───► (#.c)         found      (a.*)  (a.#)  (#.c)

Each word leads from a set of nodes to the next set.  A `many` node joins the set
together with its parent, and stays.  A set holds each node once, so the cost is not
exponential: a topic costs O(words * nodes in the set), however many ways there are to
read it.  If a pattern is removed, so are the nodes that only it needed.

Packages with such tries, such as paho-mqtt's MQTTMatcher, know one grammar, and follow
one branch after the other.

Source: the set of states of K. Thompson's Regular Expression Search Algorithm, 1968,
over the tries of RabbitMQ and of T. Treat, Fast Topic Matching, 2016, which backtrack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from skipfilter.topics.words import MANY, ONE, Wildcard

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
    from typing import Self

Payload = TypeVar("Payload")
Word = TypeVar("Word", bound="Hashable")
Found = TypeVar("Found", covariant=True)
NodeType = TypeVar("NodeType", bound="AnyNode[Any]")


_NO_WORDS: Final[dict[Any, Any]] = {}
"""Shared and never changed: most nodes have no words, and a dict is as large as a node.
"""


class Node(Generic[Word, Payload]):
    """A node of a trie; `value` is the payload of its pattern, or None."""

    __slots__ = ("many", "one", "value", "words")

    def __init__(self) -> None:
        self.words: dict[Word, Node[Word, Payload]] = _NO_WORDS
        self.one: Node[Word, Payload] | None = None
        self.many: Node[Word, Payload] | None = None
        self.value: Payload | None = None

    def child(self, word: Word | Wildcard) -> Node[Word, Payload] | None:
        """Return the child for a word or wildcard, or None."""
        if word is ONE:
            return self.one
        if word is MANY:
            return self.many
        return self.words.get(word)

    def set_child(self, word: Word | Wildcard, child: Node[Word, Payload] | None) -> None:
        """Set the child for a word or wildcard; None removes it."""
        if word is ONE:
            self.one = child
        elif word is MANY:
            self.many = child
        elif child is None:
            del self.words[word]
            self.words = self.words or _NO_WORDS
        elif self.words:
            self.words[word] = child
        else:
            self.words = {word: child}

    def leads_on(self) -> bool:
        """Return whether the node has a child."""
        return bool(self.words) or self.one is not None or self.many is not None


class Trie(Generic[Word, Payload]):
    """Patterns as sequences of words and wildcards, without two MANY in a row.

    Every node but the root has a child or a `value`, as long as the caller that removes
    a `value` also calls `prune`.  One thread at a time.
    """

    def __init__(self) -> None:
        self.root: Node[Word, Payload] = Node()
        self.inner_manys = 0  # how many `many` nodes have a child
        self.changes = 0  # incremented if a node is made or removed
        self._nodes = 1
        self._words = 0  # nodes that a word leads to
        self._dicts = 0  # nodes that have such children

    def node(self, pattern: Iterable[Word | Wildcard]) -> Node[Word, Payload]:
        """Return the node of `pattern`, and make it if it is new; it then has no
        `value`.
        """
        node = self.root
        was_many = False
        for word in pattern:
            # As Node.child, without a call.
            child = node.one if word is ONE else node.many if word is MANY else node.words.get(word)
            if child is None:
                if was_many:
                    self.inner_manys += not node.leads_on()
                child = Node()
                self._count(node, word, 1)
                node.set_child(word, child)
                self.changes += 1
            node = child
            was_many = word is MANY
        return node

    def prune(self, pattern: Sequence[Word | Wildcard]) -> None:
        """Remove the nodes that only `pattern` needed; its `value` must be gone."""
        path = [self.root]
        for word in pattern:
            child = path[-1].child(word)
            assert child is not None
            path.append(child)
        for depth in range(len(pattern), 0, -1):
            if path[depth].value is not None or path[depth].leads_on():
                return
            path[depth - 1].set_child(pattern[depth - 1], None)
            self._count(path[depth - 1], pattern[depth - 1], -1)
            self.changes += 1
            self.inner_manys -= depth > 1 and pattern[depth - 2] is MANY and not path[depth - 1].leads_on()

    def find(self, words: Iterable[Word], *, hidden: bool = False) -> list[Payload]:
        """Return the values of the patterns that match `words`, without repeats.

        `hidden` leaves out patterns that begin with a wildcard; the topic must then
        have at least one word.
        """
        return find_all(self.root, words, hidden) if self.inner_manys else find_simple(self.root, words, hidden)

    def finds(self, words: Iterable[Word], *, hidden: bool = False) -> bool:
        """Return whether any pattern matches; stops at the first `many` that
        ends one.
        """
        return finds(self.root, words, hidden)

    def nodes(self) -> Iterator[tuple[tuple[Word | Wildcard, ...], Node[Word, Payload]]]:
        """Iterate over (pattern, node) of all nodes below the root, in no certain
        order.
        """
        below: list[tuple[tuple[Word | Wildcard, ...], Node[Word, Payload]]] = [((), self.root)]
        while below:
            pattern, node = below.pop()
            steps: list[tuple[Word | Wildcard, Node[Word, Payload]]] = list(node.words.items())
            for wildcard, child in ((ONE, node.one), (MANY, node.many)):
                if child is not None:
                    steps.append((wildcard, child))
            for word, child in steps:
                below.append(((*pattern, word), child))
                yield (*pattern, word), child

    @property
    def size(self) -> int:
        """About how many bytes the nodes take, with their words.  O(1).

        A node takes 64 bytes, a dict with few items 200, and a word some 50, and in
        a larger dict 50 more.
        """
        larger = max(0, self._words - 5 * self._dicts)
        return 64 * self._nodes + 200 * self._dicts + 50 * self._words + 50 * larger

    def _count(self, node: Node[Word, Payload], word: Word | Wildcard, change: int) -> None:
        """Count a child of a node that is about to come, or is gone."""
        self._nodes += change
        if not isinstance(word, Wildcard):
            self._words += change
            if not node.words:
                self._dicts += change

    def _check(self) -> None:
        """Assert all invariants; for tests."""
        nodes = [self.root, *(node for _, node in self.nodes())]
        assert self._nodes == len(nodes)
        assert self._words == sum(len(node.words) for node in nodes)
        assert self._dicts == sum(bool(node.words) for node in nodes)
        inner = 0
        for pattern, node in self.nodes():
            assert node.value is not None or node.leads_on(), pattern
            inner += pattern[-1] is MANY and node.leads_on()
        assert inner == self.inner_manys


# -- the walk, for a Trie and for other kinds of nodes


class AnyNode(Protocol[Found]):
    """The attributes of a node that the walk reads; as in `Node`."""

    @property
    def words(self) -> Mapping[Any, Self]:
        """The children by word."""
        ...

    @property
    def one(self) -> Self | None:
        """The child for any one word."""
        ...

    @property
    def many(self) -> Self | None:
        """The child for any number of words."""
        ...

    @property
    def value(self) -> Found | None:
        """The payload of the pattern that ends here."""
        ...


def find_simple(root: AnyNode[Found], words: Iterable[Hashable], hidden: bool) -> list[Found]:
    """Do `Trie.find` if each `many` ends its pattern: it matches whatever words
    follow.
    """
    found: list[Found | None] = []
    words = iter(words)
    # 1. A hidden topic: the first word must be matched literally.
    if hidden:
        literal = root.words.get(next(words, None))
        if literal is None:
            return []
        root = literal
    # 2. One node after the other, as long as there is only one.
    node = root
    frontier: list[AnyNode[Found]] = []
    for word in words:
        if node.many is not None:
            found.append(node.many.value)
        child = node.words.get(word)
        one = node.one
        if one is None:
            if child is None:
                return found  # type: ignore[return-value]  # a `many` without children has a value
            node = child
        elif child is None:
            node = one
        else:
            frontier = [child, one]
            break
    else:
        frontier = [node]
    # 3. From several nodes.
    for word in words:
        reached: list[AnyNode[Found]] = []
        for node in frontier:
            if node.many is not None:
                found.append(node.many.value)
            if (child := node.words.get(word)) is not None:
                reached.append(child)
            if node.one is not None:
                reached.append(node.one)
        if not reached:
            return found  # type: ignore[return-value]
        frontier = reached
    # 4. The end of the topic: patterns that end here, and `many` for no words.
    for node in frontier:
        if node.many is not None:
            found.append(node.many.value)
        if node.value is not None:
            found.append(node.value)
    return found  # type: ignore[return-value]


def find_all(root: AnyNode[Found], words: Iterable[Hashable], hidden: bool) -> list[Found]:
    """Do `Trie.find` for any patterns."""
    frontier = begin(root, hidden)
    for word in words:
        frontier = step(frontier, word, hidden)
        hidden = False
    return [node.value for node in frontier if node.value is not None]


def finds(root: NodeType, words: Iterable[Hashable], hidden: bool) -> bool:
    """Do `Trie.finds`."""
    frontier = begin(root, hidden)
    for word in words:
        for node, stays in frontier.items():
            if stays and node.value is not None:
                return True
        frontier = step(frontier, word, hidden)
        hidden = False
    return any(node.value is not None for node in frontier)


def begin(root: NodeType, hidden: bool) -> dict[NodeType, bool]:
    """Return the nodes before the first word: {node: whether it is a `many`, which
    stays}.
    """
    return {root: False} if root.many is None or hidden else {root: False, root.many: True}


def step(frontier: dict[NodeType, bool], word: Hashable, hidden: bool = False) -> dict[NodeType, bool]:
    """Return the nodes that `word` leads to.

    A `many` joins with its parent, and stays.
    """
    reached: dict[NodeType, bool] = {}
    for node, stays in frontier.items():
        if stays:
            reached[node] = True
        for child in (node.words.get(word), None if hidden else node.one):
            if child is not None:
                reached[child] = False
                if child.many is not None:
                    reached[child.many] = True
    return reached
