"""After any events in any order, a proxy that follows the protocol has the resources that it subscribes to."""

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.routing.resources.types import Resource, ResourceType
from penstock.routing.snapshot import Snapshot
from penstock.routing.xds.delta import DeltaRequest, DeltaSubscription
from penstock.routing.xds.sotw import SotwRequest, SotwSubscription

RESOURCE_TYPE = ResourceType.ENDPOINT
RESOURCE_NAMES = ("a", "b", "c")
names = st.sets(st.sampled_from(RESOURCE_NAMES), min_size=1)
bodies = st.dictionaries(st.sampled_from(RESOURCE_NAMES), st.binary(max_size=1))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), bodies),
        st.tuples(st.just("subscribe"), names),
        st.tuples(st.just("send"), st.none()),
        st.tuples(st.just("deliver"), st.none()),
        st.tuples(st.just("reconnect"), st.none()),
    ),
    min_size=8,
    max_size=30,
)


def snapshot_of(bodies_by_name):
    refers = frozenset((RESOURCE_TYPE, name) for name in bodies_by_name)
    resources = [Resource(type=RESOURCE_TYPE, name=name, body=body) for name, body in bodies_by_name.items()]
    return Snapshot.of([*resources, Resource(type=ResourceType.CLUSTER, name="all", body=b"", references=refers)])


class DeltaProxy:
    """Keeps its resources across streams, as Envoy does."""

    def __init__(self, names):
        self.names = names
        self.resources = {}
        self.connect()

    def connect(self):
        self.server, self.in_flight = DeltaSubscription(RESOURCE_TYPE), []
        versions = {name: version for name, (version, _) in self.resources.items()}
        self.server.receive(DeltaRequest(type=RESOURCE_TYPE, subscribe=tuple(self.names), initial_versions=versions))

    def subscribe_to(self, names):
        added, left = names - self.names, self.names - names
        self.server.receive(DeltaRequest(type=RESOURCE_TYPE, subscribe=tuple(added), unsubscribe=tuple(left)))
        self.resources = {name: held for name, held in self.resources.items() if name in names}
        self.names = names

    def on_response(self, answer):
        sent = {each.name: (each.version, each.body) for each in answer.resources if each.name in self.names}
        self.resources = {name: held for name, held in self.resources.items() if name not in answer.removed} | sent
        self.server.receive(DeltaRequest(type=RESOURCE_TYPE, nonce=answer.nonce))


class SotwProxy:
    def __init__(self, names):
        self.names = names
        self.resources = {}
        self.connect()

    def connect(self):
        self.server, self.in_flight, self.nonce = SotwSubscription(RESOURCE_TYPE), [], ""
        self.send_request()

    def send_request(self):
        self.server.receive(SotwRequest(type=RESOURCE_TYPE, names=tuple(self.names), nonce=self.nonce))

    def subscribe_to(self, names):
        self.names = names
        self.resources = {name: held for name, held in self.resources.items() if name in names}
        self.send_request()

    def on_response(self, answer):
        self.resources = {each.name: (each.version, each.body) for each in answer.resources if each.name in self.names}
        self.nonce = answer.nonce
        self.send_request()


def run_script(proxy, script):
    """Run the script with delayed responses; then deliver all of them."""
    snapshot = snapshot_of({})
    for step, value in script:
        if step == "publish":
            snapshot = snapshot_of(value)
        elif step == "subscribe":
            proxy.subscribe_to(value)
        elif step == "send":
            send_due(proxy, snapshot)
        elif step == "deliver" and proxy.in_flight:
            proxy.on_response(proxy.in_flight.pop())
        elif step == "reconnect":
            proxy.connect()
    responses = 0
    while proxy.in_flight or send_due(proxy, snapshot):
        proxy.on_response(proxy.in_flight.pop())
        responses += 1
    assert responses <= 3
    published = snapshot.by_type[RESOURCE_TYPE]
    assert {name: body for name, (_, body) in proxy.resources.items()} == {
        name: published[name].body for name in proxy.names if name in published
    }


def send_due(proxy, snapshot):
    """Send the response that is due; never two at once."""
    if answer := proxy.server.due(snapshot):
        assert proxy.in_flight == []
        proxy.in_flight.append(answer)
    return answer


@settings(max_examples=300)  # enough to detect the removal of any one rule of the protocol
@given(names=names, script=steps)
def test_an_incremental_proxy_converges(names, script):
    run_script(DeltaProxy(names), script)


@settings(max_examples=300)  # enough to detect the removal of any one rule of the protocol
@given(names=names, script=steps)
def test_a_state_of_the_world_proxy_converges(names, script):
    run_script(SotwProxy(names), script)
