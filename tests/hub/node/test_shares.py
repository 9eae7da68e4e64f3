"""The rule of shares, and what is counted while clients come and go."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hub import Settings
from hub.auth.grant import ANONYMOUS, CompiledGrant
from hub.delivery.seat import Ending
from hub.delivery.subscriber import Payer, payer_at
from hub.errors import LimitExceeded, RequestError
from hub.history.memory import MemoryHistory
from hub.hub import Hub
from hub.node.shares import KEPT, PATIENCE, RESOURCES, Held, Rate, Shares
from hub.protocol.updates import Update
from tests.hub.seats import Recorder
from tests.hub.world import check, payer_of, plain

if TYPE_CHECKING:
    from hub.delivery.seat import Seat
    from hub.delivery.subscriber import Subscriber

ONE, OTHER = Payer("one"), Payer("other")
NOBODY = Payer("nobody", anonymous=True)


def refusal(held: Held, payer: Payer, amount: int = 1) -> str | None:
    """Take some of a resource, and return the message of the refusal, if any."""
    before = held.used, held.clients
    try:
        held.take(payer, amount)
    except LimitExceeded as error:
        assert (held.used, held.clients) == before
        return str(error)
    return None


def url_patterns(bound: int, most: float) -> Held:
    return Held(RESOURCES["url_patterns"], bound, most)


def test_n23_a_client_may_have_half_of_a_resource_and_then_its_share() -> None:
    held = url_patterns(100, 10)
    assert refusal(held, ONE, 50) is None
    assert refusal(held, ONE) == (
        "the limit of 10 URL Patterns with groups for one client is reached (client_share); "
        "it applies while more than half of 100 are in use (max_url_patterns)"
    )
    assert refusal(held, OTHER, 10) is None
    assert refusal(held, OTHER) is not None
    held.give_back(ONE, 11)
    assert refusal(held, OTHER) is None  # half is free again
    assert refusal(held, OTHER) is not None
    assert held.clients == {"one": 39, "other": 11}
    held.require(ONE, used=49, held=[50])  # exactly half
    with pytest.raises(LimitExceeded):
        held.require(ONE, used=50, held=[51])


def test_n23_wider_networks_have_shares_that_grow_less_than_they_do() -> None:
    held = url_patterns(1_000, 20)
    held.add(ONE, 500)

    def takes(address: str) -> int:
        count = 0
        while refusal(held, payer_at(address)) is None:
            count += 1
        return count

    assert takes("2001:db8:0:100::/64") == 20
    assert takes("2001:db8:0:101::/64") == 20  # 40 of the network of 56 bits
    assert takes("2001:db8:0:102::/64") == 0
    assert [takes(f"2001:db8:0:{n}00::/64") for n in range(2, 6)] == [20, 20, 0, 0]  # 80 of the one of 48 bits
    told = refusal(held, payer_at("2001:db8:0:300::/64"))
    assert told is not None
    assert "the limit of 80 URL Patterns with groups for one network is reached" in told
    assert takes("2001:db8:1:100::/64") == 20
    assert takes("192.0.2.1") == 20
    before = held.clients
    for name in ("2001:db8:0:100::/64", "2001:db8:0:101::/64"):
        for _ in range(20):
            held.give_back(payer_at(name))
    assert "network 2001:db8:0:100::/56" in before
    assert "network 2001:db8:0:100::/56" not in held.clients
    assert takes("2001:db8:0:102::/64") == 20


@pytest.mark.parametrize("address", ["", "192.0.2.1", "a/64", "a proxy's name", "::1/128", "fe80::1%eth0"])
def test_n23_other_addresses_have_no_wider_networks(address: str) -> None:
    assert payer_at(address).networks == ()


def test_n23_near_the_bound_the_clients_that_hold_most_are_refused_first_and_those_without_a_token() -> None:
    held = url_patterns(16 * KEPT, math.inf)
    free = 2 * KEPT
    assert refusal(held, ONE, 16 * KEPT - free) is None
    few, many = Payer("few"), Payer("many")
    held.hold(few, PATIENCE * 1 - 1)
    held.hold(many, PATIENCE * free)
    assert refusal(held, many) == (
        "the limit of 256 URL Patterns with groups is nearly reached (max_url_patterns): "
        "clients that have few, or a token, come first"
    )
    assert [refusal(held, NOBODY) for _ in range(free - 16)] == [None] * (free - 16)
    assert refusal(held, NOBODY) is not None  # the last part is for the others
    assert [refusal(held, Payer(str(n))) for n in range(15)] == [None] * 15
    assert refusal(held, few) is None
    assert refusal(held, OTHER) == "the limit of 256 URL Patterns with groups is reached (max_url_patterns)"
    assert held.used == 256


CLIENTS = st.builds(Payer, st.sampled_from("abcde"), st.just(False), networks=st.just(())) | st.builds(
    Payer, st.sampled_from("xyz"), st.just(True), networks=st.just(())
)


@given(
    st.integers(1, 400),
    st.integers(1, 40) | st.just(math.inf),
    st.lists(st.tuples(CLIENTS, st.integers(1, 60)), max_size=60),
)
def test_n23_nobody_is_refused_below_half_and_nobody_below_its_share_but_near_the_bound(
    bound: int, most: float, takes: list[tuple[Payer, int]]
) -> None:
    held, own = url_patterns(bound, most), Counter[str]()
    for payer, amount in takes:
        used = sum(own.values())
        refused = refusal(held, payer, amount) is not None
        if used + amount <= bound / 2:
            assert not refused
        elif own[payer.name] + amount > most:
            assert refused
        elif PATIENCE * (bound - used - bound // KEPT) >= max(most, PATIENCE * amount):
            assert not refused
        if not refused:
            own[payer.name] += amount
        assert (held.used, held.clients) == (sum(own.values()), own)
        assert held.used <= bound


def test_a_rate_is_counted_anew_each_second_and_allows_one_large_use() -> None:
    def refused(name: str, amount: int = 1) -> bool:
        try:
            rate.take(name, amount)
        except LimitExceeded as error:
            assert error.headers == {"Retry-After": "1"}
            assert str(error).startswith("the limit of 10 updates a second for one client is reached (client_share)")
            return True
        return False

    now = 0.0
    rate = Rate(RESOURCES["publishes"], 100, 10, clock=lambda: now)
    assert not refused("one", 99)  # all at once: there was room
    assert refused("one")
    now = 1.0
    assert not refused("one", 49)
    assert not refused("one")  # half, and no more
    assert refused("one")
    assert not refused("other", 49)  # below its share until now
    assert refused("other")
    now = 1.999
    assert refused("one")
    now = 2.0
    assert not refused("one", 1_000)
    with pytest.raises(LimitExceeded, match=r"the limit of 100 updates a second is reached \(publish_rate\)"):
        rate.take("other", 1)


def test_each_resource_is_in_the_table_with_a_setting_and_a_share() -> None:
    chosen = Settings(dev=True)
    all_shares = Shares(chosen, clock=lambda: 0.0)
    assert vars(all_shares).keys() == RESOURCES.keys() - {"ids"}
    for name, share in vars(all_shares).items():
        bound = getattr(chosen, RESOURCES[name].setting)
        assert share.bound == bound
        assert share._most == (math.inf if name == "connections" else math.floor(bound * 0.02))
    assert Shares(Settings(dev=True, max_readers=1), clock=lambda: 0.0).readers._most == 1


# -- counted while clients come and go

PATTERNS = [
    ("exact", "a"), ("exact", "b" * 500), ("uritemplate", "a/{n}"), ("mqtt", "a/+/" + "/".join("b" * 50)),
    ("urlpattern", "/a/:n"), ("urlpattern", "/a/(b)"), ("urlpattern", "/a/(b)/(c)"), ("urlpattern", "/c/(\\d+)"),
    ("topic", "a/{n}"), ("topic", "c"),
]  # fmt: skip
ACTIONS = st.lists(
    st.tuples(
        st.just("subscribe"),
        st.sampled_from(["one", "other"]),  # the address
        st.sampled_from([ANONYMOUS, CompiledGrant(subject=" alice"), CompiledGrant()]),
        st.lists(st.sampled_from(PATTERNS), max_size=4),  # perhaps one of them twice
        st.sampled_from([None, "earliest"]),
        st.booleans(),  # whether it waits
    )
    | st.tuples(st.sampled_from(["sit", "leave", "leave"]), st.integers(0, 10)),
    max_size=40,
)


@given(ACTIONS)
@example([("subscribe", "one", ANONYMOUS, [PATTERNS[5]], None, True)] * 3 + [("leave", 0)] * 3)
def test_n23_nothing_is_counted_twice_or_kept_after_its_client_has_gone(actions: list[Any]) -> None:
    asyncio.run(_come_and_go(actions))


async def _come_and_go(actions: list[Any]) -> None:
    # Low bounds, so that some are refused.
    chosen = plain(max_url_patterns=6, client_share=0.5, max_readers=4, max_connections=20)
    hub = Hub(chosen, MemoryHistory(chosen.retention))
    here = Crowd(hub)
    async with hub.running():
        await hub.publish(Update(("a",)))
        for what, *how in actions:
            if what == "subscribe":
                await here.subscribe(*how)
            elif here.seats:
                await getattr(here, what)(list(here.seats)[how[0] % len(here.seats)])
            here.check()
        while here.seats:
            await here.leave(next(iter(here.seats)))
        here.check()


class Crowd:
    """The subscribers of a hub, with all that must be counted for them."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.seats: dict[Subscriber, Seat | None] = {}
        self.readers: set[Subscriber] = set()  # those that do not wait

    async def subscribe(
        self, address: str, grant: CompiledGrant, selectors: list[tuple[str, str]], cursor: str | None, waits: bool
    ) -> None:
        with contextlib.suppress(RequestError):
            subscriber, _ = await self.hub.subscribing.admit(selectors, grant, cursor, address=address, waits=waits)
            self.seats[subscriber] = None
            if not waits:
                self.readers.add(subscriber)

    async def sit(self, subscriber: Subscriber) -> None:
        if self.seats[subscriber] is None:
            self.seats[subscriber] = await self.hub.delivery.take_seat(subscriber, Recorder())

    async def leave(self, subscriber: Subscriber) -> None:
        seat = self.seats.pop(subscriber)
        self.readers.discard(subscriber)
        if seat is not None:
            self.hub.delivery.vacate(seat, 0, 0, Ending.CLIENT_LEFT)
        subscriber.leave()

    def check(self) -> None:
        """Assert that exactly what the subscribers use is counted, for their clients."""
        check(self.hub)
        expected = {name: Counter[str]() for name in ("connections", "matchers", "url_patterns", "readers")}
        for subscriber in self.seats:
            payer = payer_of(subscriber)
            expected["connections"][payer] += 1
            for matcher in subscriber.subscribed:
                expected["matchers"][payer] += matcher.size
                expected["url_patterns"][payer] += matcher.cost
            if subscriber in self.readers:
                expected["readers"][payer] += 1
        for resource, held in expected.items():
            counted: Held = getattr(self.hub.shares, resource)
            assert counted.clients == {payer: amount for payer, amount in held.items() if amount}, resource
        different = {matcher for subscriber in self.seats for matcher in subscriber.subscribed}
        assert self.hub.shares.matchers.used == sum(matcher.size for matcher in different)
        assert self.hub.shares.url_patterns.used == sum(matcher.cost for matcher in different)
