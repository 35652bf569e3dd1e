"""After any events in any order, a proxy that follows the protocol has the resources that it subscribes to."""

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.routing.resources.types import Resource, ResourceType
from penstock.routing.snapshot import Snapshot
from penstock.routing.xds.delta import DeltaRequest, DeltaSubscription
from penstock.routing.xds.sotw import SotwRequest, SotwSubscription

KIND = ResourceType.ENDPOINT
NAMES = ("a", "b", "c")
names = st.sets(st.sampled_from(NAMES), min_size=1)
bodies = st.dictionaries(st.sampled_from(NAMES), st.binary(max_size=1))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), bodies),
        st.tuples(st.just("want"), names),
        st.tuples(st.just("answer"), st.none()),
        st.tuples(st.just("take"), st.none()),
        st.tuples(st.just("reconnect"), st.none()),
    ),
    min_size=8,
    max_size=30,
)


def snapshot_of(named):
    refers = frozenset((KIND, name) for name in named)
    resources = [Resource(type=KIND, name=name, body=body) for name, body in named.items()]
    return Snapshot.of([*resources, Resource(type=ResourceType.CLUSTER, name="all", body=b"", references=refers)])


class DeltaProxy:
    """Keeps its resources across streams, as Envoy does."""

    def __init__(self, wanted):
        self.wanted = wanted
        self.holds = {}
        self.connect()

    def connect(self):
        self.server, self.way = DeltaSubscription(KIND), []
        versions = {name: version for name, (version, _) in self.holds.items()}
        self.server.receive(DeltaRequest(type=KIND, subscribe=tuple(self.wanted), initial_versions=versions))

    def want(self, wanted):
        added, left = wanted - self.wanted, self.wanted - wanted
        self.server.receive(DeltaRequest(type=KIND, subscribe=tuple(added), unsubscribe=tuple(left)))
        self.holds = {name: held for name, held in self.holds.items() if name in wanted}
        self.wanted = wanted

    def take(self, answer):
        sent = {each.name: (each.version, each.body) for each in answer.resources if each.name in self.wanted}
        self.holds = {name: held for name, held in self.holds.items() if name not in answer.removed} | sent
        self.server.receive(DeltaRequest(type=KIND, nonce=answer.nonce))


class SotwProxy:
    def __init__(self, wanted):
        self.wanted = wanted
        self.holds = {}
        self.connect()

    def connect(self):
        self.server, self.way, self.nonce = SotwSubscription(KIND), [], ""
        self.tell()

    def tell(self):
        self.server.receive(SotwRequest(type=KIND, names=tuple(self.wanted), nonce=self.nonce))

    def want(self, wanted):
        self.wanted = wanted
        self.holds = {name: held for name, held in self.holds.items() if name in wanted}
        self.tell()

    def take(self, answer):
        self.holds = {each.name: (each.version, each.body) for each in answer.resources if each.name in self.wanted}
        self.nonce = answer.nonce
        self.tell()


def play(proxy, script):
    """Run the script with delayed responses; then deliver all of them."""
    snapshot = snapshot_of({})
    for step, what in script:
        if step == "publish":
            snapshot = snapshot_of(what)
        elif step == "want":
            proxy.want(what)
        elif step == "answer":
            send(proxy, snapshot)
        elif step == "take" and proxy.way:
            proxy.take(proxy.way.pop())
        elif step == "reconnect":
            proxy.connect()
    owed = 0
    while proxy.way or send(proxy, snapshot):
        proxy.take(proxy.way.pop())
        owed += 1
    assert owed <= 3
    there = snapshot.by_type[KIND]
    assert {name: body for name, (_, body) in proxy.holds.items()} == {
        name: there[name].body for name in proxy.wanted if name in there
    }


def send(proxy, snapshot):
    """Send the response that is due; never two at once."""
    if answer := proxy.server.due(snapshot):
        assert proxy.way == []
        proxy.way.append(answer)
    return answer


@settings(max_examples=300)  # enough to find each of the protocol's rules when it is taken out
@given(wanted=names, script=steps)
def test_an_incremental_proxy_converges(wanted, script):
    play(DeltaProxy(wanted), script)


@settings(max_examples=300)  # enough to find each of the protocol's rules when it is taken out
@given(wanted=names, script=steps)
def test_a_state_of_the_world_proxy_converges(wanted, script):
    play(SotwProxy(wanted), script)
