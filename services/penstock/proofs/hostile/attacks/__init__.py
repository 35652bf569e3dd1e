"""Attacks that last: floods, held connections and expensive messages, in a process of their own."""

from penstock.proofs.hostile.attacks.attack import Attack
from penstock.proofs.hostile.attacks.false_peers import false_worker, vouch_guesses
from penstock.proofs.hostile.attacks.floods import (
    empty_frames,
    ping_flood,
    priority_flood,
    settings_flood,
    window_update_flood,
)
from penstock.proofs.hostile.attacks.guesses import key_guesses, long_prompts
from penstock.proofs.hostile.attacks.header_blocks import continuation_flood, hpack_bomb
from penstock.proofs.hostile.attacks.held_connections import HELD, half_headers, silent_connections, slow_bodies
from penstock.proofs.hostile.attacks.held_streams import (
    MAX_STRANGER_STREAMS,
    OPEN_STREAMS,
    streams_over_the_limit,
    unfinished_messages,
    zero_window_readers,
)
from penstock.proofs.hostile.attacks.large_bodies import (
    json_arrays,
    json_bombs_with_key,
    json_variants,
    text_and_leave,
)
from penstock.proofs.hostile.attacks.large_headers import header_line, many_headers, pipelining
from penstock.proofs.hostile.attacks.resets import rapid_reset
from penstock.proofs.hostile.ports import GRPC_DOORS, HTTP_DOORS, PortKind

DOORS = (PortKind.EDGE_GRPC, PortKind.EDGE_HTTP, PortKind.FRONT)
HEADER_TIMEOUT_S = 12.0  # s in which a server has to give up a request whose headers do not arrive

ATTACKS: dict[str, Attack] = {
    "rapid-reset": Attack(run=rapid_reset, kinds=GRPC_DOORS),
    "settings-flood": Attack(run=settings_flood, kinds=GRPC_DOORS),
    "ping-flood": Attack(run=ping_flood, kinds=GRPC_DOORS),
    "window-update-flood": Attack(run=window_update_flood, kinds=GRPC_DOORS),
    "priority-flood": Attack(run=priority_flood, kinds=GRPC_DOORS),
    "empty-frames": Attack(run=empty_frames, kinds=GRPC_DOORS),
    "continuation-flood": Attack(run=continuation_flood, kinds=GRPC_DOORS),
    "hpack-bomb": Attack(run=hpack_bomb, kinds=GRPC_DOORS),
    "zero-window": Attack(run=zero_window_readers, kinds=GRPC_DOORS),
    "many-streams": Attack(
        run=streams_over_the_limit, kinds=GRPC_DOORS, max_findings={OPEN_STREAMS: MAX_STRANGER_STREAMS}
    ),
    "unfinished-messages": Attack(run=unfinished_messages, kinds=GRPC_DOORS, min_seconds=8.0),
    "header-line": Attack(run=header_line, kinds=HTTP_DOORS),
    "many-headers": Attack(run=many_headers, kinds=HTTP_DOORS),
    "pipelining": Attack(run=pipelining, kinds=HTTP_DOORS),
    "half-headers": Attack(run=half_headers, kinds=HTTP_DOORS, min_seconds=HEADER_TIMEOUT_S, max_findings={HELD: 0}),
    "slow-bodies": Attack(run=slow_bodies, kinds=HTTP_DOORS, min_seconds=6.0),
    "silent-connections": Attack(run=silent_connections, kinds=(*DOORS, PortKind.AUTH, PortKind.CHECKS)),
    "json-arrays": Attack(run=json_arrays, kinds=HTTP_DOORS, min_seconds=4.0),
    "json-variants": Attack(run=json_variants, kinds=HTTP_DOORS, min_seconds=4.0),
    "json-with-key": Attack(run=json_bombs_with_key, kinds=HTTP_DOORS, min_seconds=4.0),
    "text-and-leave": Attack(run=text_and_leave, kinds=GRPC_DOORS),
    "key-guesses": Attack(run=key_guesses, kinds=DOORS, min_seconds=4.0),
    "long-prompts": Attack(run=long_prompts, kinds=DOORS),
    "vouch-guesses": Attack(run=vouch_guesses, kinds=(PortKind.AUTH,), min_seconds=4.0),
    "false-worker": Attack(run=false_worker, kinds=(PortKind.SCHEDULER,)),
}
