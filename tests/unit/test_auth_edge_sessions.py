"""Edge sessions: edges that connect, disconnect and stay away."""

from penstock.auth.edge_sessions import EdgeSessions


def test_an_edge_session_expires_after_the_grace_period():
    edges = EdgeSessions(grace=30.0)
    edges.on_connected("edge-1")
    edges.on_disconnected("edge-1", now=100.0)
    assert edges.pop_expired(now=129.9) == []
    assert edges.pop_expired(now=130.0) == ["edge-1"]
    assert edges.pop_expired(now=200.0) == []


def test_an_edge_that_reconnects_in_time_keeps_its_session():
    edges = EdgeSessions(grace=30.0)
    edges.on_connected("edge-1")
    edges.on_disconnected("edge-1", now=100.0)
    edges.on_connected("edge-1")
    assert edges.pop_expired(now=1_000.0) == []


def test_a_new_stream_may_connect_before_the_old_one_is_closed():
    edges = EdgeSessions(grace=30.0)
    edges.on_connected("edge-1"), edges.on_connected("edge-1")
    edges.on_disconnected("edge-1", now=100.0)
    assert len(edges) == 1
    assert edges.pop_expired(now=1_000.0) == []


def test_edges_of_the_former_process_have_one_grace_period():
    edges = EdgeSessions(grace=30.0)
    edges.expect("edge-1", now=100.0), edges.expect("edge-2", now=100.0)
    edges.on_connected("edge-2")
    assert edges.pop_expired(now=130.0) == ["edge-1"]


def test_a_stall_of_auth_extends_the_grace_period():
    edges = EdgeSessions(grace=30.0, max_gap=1.0)
    edges.on_connected("edge-1")
    edges.on_disconnected("edge-1", now=100.0)
    assert edges.pop_expired(now=140.0) == []
    assert [now for now in range(141, 180) if edges.pop_expired(now=float(now))] == [
        169
    ]  # 1 s of the grace period before the stall, 29 s after
